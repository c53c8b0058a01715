"""`time_on_device`: mean seconds per call."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.timing_and_profiling.declaration import time_on_device
from gpudojo.days.day8.timing_and_profiling.measured_times import (
    TimedAnswer,
    TimedCall,
    describe_timing,
    draw_durations,
    measured_time,
    note_on_value,
    time_in_words,
    wrong_time,
)
from gpudojo.days.day8.timing_and_profiling.timed_work import Workshop
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, torch, try_inputs
from gpudojo.grading.checks import (
    count_in_words,
    expect_float,
    is_about_cuda,
    raised_instead,
    runs,
)
from gpudojo.model.evidence import Cases, Raised
from gpudojo.model.exercise import Failed, Seen

# ---- scenarios -----------------------------------------------------------------------------------


class TimingSetting(NamedTuple):
    """One scenario: how long the calls of `fn` take, the later ones as long as the last."""

    device: Any
    milliseconds: tuple[float, ...]
    options: dict[str, int]


def _call_time_on_device(call: Call, setting: TimingSetting) -> TimedCall:
    """Call the student's function and describe its answer. Raises StudentRaised."""
    device, milliseconds, options = setting
    durations = draw_durations(call, f"{device} {options}", *milliseconds)
    repeats = options.get("repeats", 5)

    def ask(workshop: Workshop) -> TimedAnswer:
        """Call the student's function with work of this workshop.

        Returns its answer, beside the right time. Raises StudentRaised.
        """
        work = workshop.make(durations, device)
        value = call(Sealed(work), device, **options)
        timed = work.took[-repeats:]
        right = math.fsum(timed) / repeats
        time = measured_time(value, work.took, right, workshop.modelled)
        return TimedAnswer(value, {"": time})

    return describe_timing(call, repeats, ask)


@time_on_device.probe(machine="one gpu")
def beside_a_gpu(call: Call) -> Cases[TimedCall]:
    """Calls on the CPU of a machine with a GPU, then on the GPU.

    On the CPU there are the defaults, two slow calls to warm up, and three short calls and a long
    one. Raises StudentRaised for an error about a closed device or memory.
    """
    settings = {
        "as_it_comes": TimingSetting("cpu", (4,), {}),
        "slow_first_calls": TimingSetting(
            torch.device("cpu"), (50, 50, 10), {"repeats": 3, "warmup": 2}
        ),
        "uneven_calls": TimingSetting("cpu", (8, 8, 8, 40), {"repeats": 4, "warmup": 0}),
        "a_device_that_works_later": TimingSetting(
            call.device, (40, 40, 10), {"repeats": 4, "warmup": 2}
        ),
    }
    return try_inputs(_call_time_on_device, call, settings)


@time_on_device.probe(machine="two gpus", edge=True)
def beside_another_gpu(call: Call) -> Cases[TimedCall]:
    """A call on the second GPU.

    The first one, which is the current one, has nothing to do. Raises StudentRaised for an error
    about a closed device or memory.
    """
    setting = TimingSetting("cuda:1", (60, 10), {"repeats": 4, "warmup": 1})
    return try_inputs(_call_time_on_device, call, {"the_second_gpu": setting})


@time_on_device.probe(machine="mac", edge=True)
def on_a_mac(call: Call) -> Cases[TimedCall]:
    setting = TimingSetting("mps", (60, 10), {"repeats": 4, "warmup": 1})
    return try_inputs(_call_time_on_device, call, {"an_apple_gpu": setting})


@time_on_device.probe(machine="laptop", edge=True)
def without_a_gpu(call: Call) -> Cases[TimedCall]:
    setting = TimingSetting("cpu", (4,), {"repeats": 3, "warmup": 1})
    return try_inputs(_call_time_on_device, call, {"no_gpu": setting})


# ---- claims --------------------------------------------------------------------------------------


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error of an event that the device had not reached; None for others."""
    if is_about_cuda(raised.message) or "Expected a cuda device" in raised.message:
        return "cuda-for-every-device"
    early = "device not ready" in raised.message or "must be completed" in raised.message
    if early:
        return "timed-without-synchronising"
    return None


ON_THE_CPU: Final = {
    "as_it_comes": "the defaults",
    "slow_first_calls": "repeats=3, warmup=2",
    "uneven_calls": "repeats=4, warmup=0",
}
runs(time_on_device, scenarios=(*ON_THE_CPU, "a_device_that_works_later"), diagnose=_why_it_raises)


@time_on_device.check(points=0.25)
def calls_it_as_often_as_asked(seen: Seen, wanted: Seen) -> None:
    """`fn` is called exactly `warmup + repeats` times."""
    for name, arguments in ON_THE_CPU.items():
        calls = seen[beside_a_gpu][name].time.calls
        right = wanted[beside_a_gpu][name].time.calls
        if calls != right:
            happened = f"with {arguments} `fn` was called {count_in_words(calls)}"
            raise Failed(happened, f"{right} calls")


@time_on_device.check(points=0.25)
def gives_the_mean_per_call(seen: Seen, wanted: Seen) -> None:
    """It returns the mean number of seconds per call, as a float."""
    found = seen[beside_a_gpu]["uneven_calls"]
    time = found.time
    expect_float(found.kind, time.value is not None)
    if time.fits:
        return
    milliseconds = [f"{took * 1e3:.1f}" for took in time.took]
    calls = f"{len(milliseconds)} calls of {', '.join(milliseconds)} ms"
    happened = f"{calls} gave {time.value:.6f}"
    note = note_on_value(time, found.repeats)
    if not note and found.clocks and not found.reads_wall_clock:
        clock = found.clocks[0]
        note = f": {clock}() counts only the time of the processor, without waiting"
    happened = f"{happened}{note}"
    expected = f"their mean in seconds: {time.right:.4f}"
    raise Failed(happened, expected)


@time_on_device.check(points=0.25, needs=("runs", "gives_the_mean_per_call"))
def leaves_the_warm_up_out(seen: Seen, wanted: Seen) -> None:
    """The warm-up calls are not timed."""
    found = seen[beside_a_gpu]["slow_first_calls"]
    time = found.time
    if time.fits:
        return
    value = time.value or 0.0
    note = note_on_value(time, found.repeats)
    calls = "two warm-up calls of about 50 ms, then three of 10 ms,"
    happened = f"{calls} gave {time_in_words(value)} per call{note}"
    expected = f"{time_in_words(time.right)}: the mean of the calls after the warm-up"
    key = None
    if value > time.right:
        key = "timed-the-warm-up"
    at: tuple[str, ...] = ()
    if note:
        at = ("return",)
    raise Failed(happened, expected, None, key, at)


def _times_the_warm_up(seen: Seen) -> bool:
    """True if the calls on the CPU show that the warm-up is timed, where no wait is needed.

    Raises ScenarioRaised where they ended with an error.
    """
    time = seen[beside_a_gpu]["slow_first_calls"].time
    return not time.fits and (time.value or 0.0) > time.right


def _expect_wait(found: TimedCall, device: str, warm_up_is_timed: bool) -> None:
    """Raises Failed for a wrong time on a GPU, which is `device` in words."""
    if not found.fits:
        raise wrong_time(found, found.time, device, warm_up_is_timed)


@time_on_device.check(points=0.5, needs=("runs", "gives_the_mean_per_call"))
def waits_for_the_device(seen: Seen, wanted: Seen) -> None:
    """The time of a GPU is right, too: the device is synchronised before the clock is started and
    before it is stopped."""
    warm_up_is_timed = _times_the_warm_up(seen)
    found = seen[beside_a_gpu]["a_device_that_works_later"]
    _expect_wait(found, "the GPU", warm_up_is_timed)


@time_on_device.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_an_apple_gpu(seen: Seen, wanted: Seen) -> None:
    """For "mps" it waits for the Mac's GPU, and does not call CUDA."""
    warm_up_is_timed = _times_the_warm_up(seen)
    found = _case_without_error(seen[on_a_mac], "an_apple_gpu", 'device="mps" on a Mac')
    _expect_wait(found, "the Mac's GPU", warm_up_is_timed)


def _case_without_error(cases: Cases[TimedCall], name: str, what: str) -> TimedCall:
    """What was seen in a scenario, which is `what` in words. Raises Failed after an error."""
    raised = cases.errors.get(name)
    if raised is not None:
        key = None
        if is_about_cuda(raised.message):
            key = "cuda-for-every-device"
        raise raised_instead(raised, what, misconception=key)
    return cases[name]


@time_on_device.check(points=0.25)
def works_without_a_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cpu" it also works on a machine without a GPU."""
    machine = 'device="cpu" on a machine without a GPU'
    time = _case_without_error(seen[without_a_gpu], "no_gpu", machine).time
    if not time.calls or not time.value:
        calls = f"without a GPU `fn` was called {count_in_words(time.calls)}"
        happened = f"{calls}, and the time is {time.value}"
        raise Failed(happened, "the time of its calls, as with a GPU")


@time_on_device.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_the_right_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cuda:1" it waits for the second GPU, even if the first one is current."""
    warm_up_is_timed = _times_the_warm_up(seen)
    found = seen[beside_another_gpu]["the_second_gpu"]
    _expect_wait(found, "the second GPU", warm_up_is_timed)
