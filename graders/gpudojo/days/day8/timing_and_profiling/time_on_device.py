"""`time_on_device`: mean seconds per call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from gpudojo.days.day8.returned_numbers import float_or_none
from gpudojo.days.day8.timing_and_profiling.declaration import time_on_device
from gpudojo.days.day8.timing_and_profiling.measured_times import (
    CLOCKS,
    LAST,
    At,
    Bounded,
    bounds_for,
    draw_durations,
    failure_of_waiting_elsewhere,
    is_near,
    look_by_both_clocks,
    names_of_clocks,
    note_on_issuing,
    note_on_unit,
    reads_wall_clock,
    time_in_words,
    useless_wait_in,
)
from gpudojo.days.day8.timing_and_profiling.timed_work import open_workshop
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, torch, try_scenarios
from gpudojo.grading.checks import (
    count_in_words,
    expect_float,
    is_about_cuda,
    raised_instead,
    runs,
    scenario_pairs,
)
from gpudojo.model.evidence import Cases, Raised
from gpudojo.model.exercise import Failed, Seen

# ---- scenarios -----------------------------------------------------------------------------------


class Timed(Bounded, frozen=True):
    """One call of `time_on_device`."""

    kind: str
    calls: int
    repeats: int
    clocks: list[str]  # which of our clocks it read
    elsewhere: str  # "gpu" or "stream": it waited for one that had nothing to do
    line: int | None  # where it did
    really: Timed | None  # the same in real time, for a function that read none of them

    @property
    def holds(self) -> bool:
        return self.fits or (self.really is not None and self.really.fits)

    @property
    def best(self) -> Timed:
        """By the clock that tells more: the simulated one if it was read, else the real one."""
        return self if self.clocks or self.really is None else self.really


class _TimingScenario:
    """One call of `time_on_device`, with calls of `fn` that take about so long."""

    def __init__(
        self, call: Call, name: str, device: Any, *milliseconds: float, **options: int
    ) -> None:
        self.call = call
        self.durations = draw_durations(call, name, *milliseconds)
        self.device = device
        self.options = options

    def __call__(self) -> Timed:
        return look_by_both_clocks(self.look, _is_enough)

    def look(self, modelled: bool) -> Timed:
        """Call the student's function once. Raises StudentRaised."""
        with open_workshop(self.call, modelled) as workshop:
            work = workshop.make(self.durations, self.device)
            value = self.call(Sealed(work), self.device, **self.options)
            clocks = names_of_clocks(workshop.clock)
        repeats = self.options.get("repeats", 5)
        took = work.took
        bounds = bounds_for(math.fsum(took[-repeats:]) / repeats, modelled)
        waited = useless_wait_in(self.call)
        return Timed(
            value=float_or_none(value),
            took=took[:50],
            right=bounds.right,
            least=bounds.least,
            most=bounds.most,
            kind=type(value).__name__,
            calls=len(took),
            repeats=repeats,
            clocks=clocks,
            elsewhere=waited.elsewhere,
            line=waited.line,
            really=None,
        )


def _is_enough(found: Timed) -> bool:
    """True if it is known by the modelled clock whether an answer is right."""
    return found.value is None or found.fits or reads_wall_clock(found.clocks)


@time_on_device.probe(machine="one gpu")
def beside_a_gpu(call: Call) -> Cases[Timed]:
    """Calls on the CPU of a machine with a GPU, then on the GPU.

    On the CPU there are three short calls and a long one, two slow calls to warm up, and the
    defaults.
    """
    return try_scenarios(
        {
            "uneven_calls": _TimingScenario(
                call, "uneven", "cpu", 8, 8, 8, 40, repeats=4, warmup=0
            ),
            "slow_first_calls": _TimingScenario(
                call, "slow", torch.device("cpu"), 50, 50, 10, repeats=3, warmup=2
            ),
            "as_it_comes": _TimingScenario(call, "defaults", "cpu", 4),
            "a_device_that_works_later": _TimingScenario(
                call, "later", call.device, 40, 40, 10, repeats=4, warmup=2
            ),
        }
    )


@time_on_device.probe(machine="two gpus", edge=True)
def beside_another_gpu(call: Call) -> Cases[Timed]:
    """A call on the second GPU.

    The first one, which is the current one, has nothing to do.
    """
    return try_scenarios(
        {"the_second_gpu": _TimingScenario(call, "second", "cuda:1", 60, 10, repeats=4, warmup=1)}
    )


@time_on_device.probe(machine="mac", edge=True)
def on_a_mac(call: Call) -> Cases[Timed]:
    return try_scenarios(
        {"an_apple_gpu": _TimingScenario(call, "mac", "mps", 60, 10, repeats=4, warmup=1)}
    )


@time_on_device.probe(machine="laptop", edge=True)
def without_a_gpu(call: Call) -> Cases[Timed]:
    return try_scenarios({"no_gpu": _TimingScenario(call, "laptop", "cpu", 4, repeats=3, warmup=1)})


# ---- claims --------------------------------------------------------------------------------------


def _why_it_raises(raised: Raised, seen: Seen) -> str | None:
    """The mistake behind an error of an event that the device had not reached; None for others."""
    early = "device not ready" in raised.message or "must be completed" in raised.message
    return "timed-without-synchronising" if early else None


ON_THE_CPU: Final = {
    "as_it_comes": "the defaults",
    "slow_first_calls": "repeats=3, warmup=2",
    "uneven_calls": "repeats=4, warmup=0",
}
runs(time_on_device, scenarios=(*ON_THE_CPU, "a_device_that_works_later"), diagnose=_why_it_raises)


def _note_on_division(found: Timed) -> str:
    """A note on a time that is right except that it was divided by all calls; else empty."""
    right = found.right * found.repeats / max(found.calls, 1)
    if is_near(found.value or 0.0, right):
        return ": divided by all calls, including the warm-up"
    return ""


@time_on_device.check(points=0.25)
def calls_it_as_often_as_asked(seen: Seen, wanted: Seen) -> None:
    """`fn` is called exactly `warmup + repeats` times."""
    every = list(scenario_pairs(seen[beside_a_gpu], wanted[beside_a_gpu], *ON_THE_CPU))
    timed = seen[beside_a_gpu]["uneven_calls"]
    for name, found, right in every:
        if found.calls != right.calls:
            happened = f"with {ON_THE_CPU[name]} `fn` was called {count_in_words(found.calls)}"
            at = _loop_to_show(every, timed)
            lines = () if at is None else None
            raise Failed(happened, f"{right.calls} calls", at=at or (), ran=lines)


def _loop_to_show(every: Sequence[tuple[str, Timed, Timed]], timed: Timed) -> At | None:
    """Patterns for the loop that calls `fn` too often, or not often enough.

    None where no loop is more likely than the other. `every` has name, case and reference of all
    scenarios; `timed` is the one whose mean may tell which calls were timed.
    """
    surplus = {found.calls - right.calls for _, found, right in every}
    if len(surplus) == 1:  # the same number of calls too many in every scenario
        total = (timed.value or 0.0) * timed.repeats
        all_timed = total > 0 and is_near(total, math.fsum(timed.took))
        return ("last for",) if all_timed else None
    if [name for name, found, right in every if found.calls != right.calls] == ["as_it_comes"]:
        return ("",)  # only the defaults are wrong
    if len({found.calls - found.repeats for _, found, _ in every}) == 1:
        return ("fn(",)  # `warmup` is not used
    return ("for",)


@time_on_device.check(points=0.25)
def gives_the_mean_per_call(seen: Seen, wanted: Seen) -> None:
    """It returns the mean number of seconds per call, as a float."""
    found = seen[beside_a_gpu]["uneven_calls"]
    expect_float(found.kind, found.value is not None)
    if found.holds:
        return
    found = found.best
    assert found.value is not None
    calls = ", ".join(f"{took * 1e3:.1f}" for took in found.took)
    happened = f"{len(found.took)} calls of {calls} ms gave {found.value:.6f}"
    note = note_on_unit(found.value, found.right, found.repeats)
    if not note and found.clocks and not reads_wall_clock(found.clocks):
        clock = found.clocks[0]
        note = f": {clock}() counts only the time of the processor, without waiting"
    raise Failed(f"{happened}{note}", f"their mean in seconds: {found.right:.4f}")


@time_on_device.check(points=0.25, needs=("runs", "gives_the_mean_per_call"))
def leaves_the_warm_up_out(seen: Seen, wanted: Seen) -> None:
    """The warm-up calls are not timed."""
    found = seen[beside_a_gpu]["slow_first_calls"]
    if found.holds:
        return
    found = found.best
    value = found.value or 0.0
    calls = "two warm-up calls of about 50 ms, then three of 10 ms,"
    happened = f"{calls} gave {time_in_words(value)} per call"
    expected = f"{time_in_words(found.right)}: the clock starts after the warm-up"
    key = "timed-the-warm-up" if value > found.right else None
    note = _note_on_division(found)
    if note:
        expected = f"{time_in_words(found.right)}: divided by `repeats`"
        at = ("return", "last return")
        raise Failed(f"{happened}{note}", expected, misconception=key, at=at)
    raise Failed(happened, expected, misconception=key)


@time_on_device.check(points=0.5, needs=("runs", "gives_the_mean_per_call"))
def waits_for_the_device(seen: Seen, wanted: Seen) -> None:
    """The device is synchronised before the clock is started and before it is stopped."""
    found = seen[beside_a_gpu]["a_device_that_works_later"]
    if not found.holds:
        raise _waited_wrongly(found.best, "the GPU")


@time_on_device.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_an_apple_gpu(seen: Seen, wanted: Seen) -> None:
    """For "mps" it waits for the Mac's GPU, and does not call CUDA."""
    found = _case_without_error(seen[on_a_mac], "an_apple_gpu", 'device="mps" on a Mac')
    if not found.holds:
        raise _waited_wrongly(found.best, "the Mac's GPU")


def _waited_wrongly(found: Timed, device: str) -> Failed:
    """The failure of a wrong time on a GPU: a wrong unit, a wrong division or a missing wait."""
    value = found.value or 0.0
    right = found.right
    times = f"{time_in_words(right)} per call and the clock says {time_in_words(value)}"
    happened = f"{device} needed {times}"
    note = note_on_unit(value, right, found.repeats)
    if note:
        expected = "seconds per call; an event's elapsed_time() is in milliseconds"
        return Failed(f"{happened}{note}", expected, at=("elapsed_time(",))
    note = _note_on_division(found)
    if note:
        expected = "the time of the timed calls, divided by their number"
        return Failed(f"{happened}{note}", expected)
    if found.elsewhere:
        return failure_of_waiting_elsewhere(happened, found.elsewhere, found.line)
    key = "timed-without-synchronising"
    if value < right:
        stopped_early = ": the clock was stopped before the work was done"
        happened = f"{happened}{note_on_issuing(value) or stopped_early}"
        expected = "a wait for `device` (CUDA or MPS) before the clock is started"
        return Failed(happened, f"{expected}, and one before it stops", None, key, LAST)
    happened = f"{happened}: the clock was started before the warm-up was done"
    expected = "a wait for `device` between the warm-up and the clock's start"
    return Failed(happened, f"{expected}, and one before it stops", None, key, CLOCKS)


def _case_without_error(cases: Cases[Timed], name: str, what: str) -> Timed:
    """What was seen in a scenario, which is `what` in words. Raises Failed after an error."""
    raised = cases.errors.get(name)
    if raised is not None:
        key = "cuda-for-every-device" if is_about_cuda(raised.message) else None
        raise raised_instead(raised, what, misconception=key)
    return cases[name]


@time_on_device.check(points=0.25)
def works_without_a_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cpu" it also works on a machine without a GPU."""
    found = _case_without_error(
        seen[without_a_gpu], "no_gpu", 'device="cpu" on a machine without a GPU'
    )
    if not found.calls or not found.value:
        calls = f"without a GPU `fn` was called {count_in_words(found.calls)}"
        happened = f"{calls}, and the time is {found.value}"
        raise Failed(happened, "the time of its calls, as with a GPU")


@time_on_device.check(points=0.25, needs=("runs", "waits_for_the_device"))
def waits_for_the_right_gpu(seen: Seen, wanted: Seen) -> None:
    """With "cuda:1" it waits for the second GPU, even if the first one is current."""
    found = seen[beside_another_gpu]["the_second_gpu"]
    if not found.holds:
        raise _waited_wrongly(found.best, "the second GPU")
