"""`compare_devices`: seconds per call on several devices."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.timing_and_profiling.declaration import compare_devices
from gpudojo.days.day8.timing_and_profiling.measured_times import (
    MILLISECOND,
    MOST_CALLS,
    MeasuredTime,
    TimedAnswer,
    TimedCall,
    describe_timing,
    draw_durations,
    measured_time,
    wrong_time,
)
from gpudojo.days.day8.timing_and_profiling.timed_work import TimedWork, Workshop
from gpudojo.days.day8.watched_objects import Sealed
from gpudojo.grading.call import Call, StudentRaised, torch, try_inputs
from gpudojo.grading.checks import runs, scenario_pairs
from gpudojo.grading.differences import tell_apart
from gpudojo.model.errors import without_addresses
from gpudojo.model.evidence import Cases
from gpudojo.model.exercise import Failed, Seen, returned_other_type

GROWTH: Final = 1.15  # how much longer each call takes than the one before

# ---- scenarios -----------------------------------------------------------------------------------


class _WorkMaker:
    """A `make_work` for student code.

    It remembers what it has made, by the name of the device.
    """

    def __init__(self, call: Call, workshop: Workshop) -> None:
        """A maker of work of this workshop, for one call of the student's function."""
        self.call = call
        self.workshop = workshop
        self.made: dict[str, TimedWork] = {}
        self.wrong_line: int | None = None  # where it was called with no device, or several

    def __call__(self, *devices: Any) -> Sealed:
        """Work for one device, sealed; the same one for each call with it.

        Takes time by the clock. Raises TypeError for no device, or several, as a function of Python
        does, and notes the line of that; raises torch's error for what is no device.
        """
        if len(devices) != 1:  # perhaps it was taken for the work itself, and called by a helper
            self.wrong_line = self.wrong_line or self.call.line_now(outermost=True)
            count = len(devices)
            raise TypeError(f"make_work() takes one device, but was called with {count} arguments")
        device = devices[0]
        # Making the work takes time too, which must not be counted.
        self.workshop.clock.sleep(25 * MILLISECOND)
        key = str(device)
        if key not in self.made:
            warm = 10
            if torch.device(device).type == "cpu":
                warm = 4
            first, second = draw_durations(self.call, key, 40, warm)
            # Later calls take longer and longer: the mean tells how many of them were timed.
            later = [second * GROWTH**number for number in range(MOST_CALLS)]
            durations = [first, *later]
            self.made[key] = self.workshop.make(durations, device)
        return Sealed(self.made[key])

    def time_of(self, device: str, value: Any, repeats: int) -> MeasuredTime:
        """Describe the student's `value` for a device; without calls where nothing was made."""
        took = self.made[device].took if device in self.made else []
        warm = took[1:][-repeats:]  # the first call of each device's work is the slow one
        right = 0.0
        if warm:
            right = math.fsum(warm) / len(warm)
        return measured_time(value, took, right, self.workshop.modelled)


class ComparingSetting(NamedTuple):
    """One scenario."""

    devices: list[Any]
    options: dict[str, int]


def _call_compare_devices(call: Call, setting: ComparingSetting) -> TimedCall:
    """Call the student's function and describe its answer. Raises StudentRaised."""
    repeats = setting.options.get("repeats", 3)

    def ask(workshop: Workshop) -> TimedAnswer:
        """Call the student's function, and return its answer with a time for each key of a dict.

        Raises StudentRaised.
        """
        maker = _WorkMaker(call, workshop)
        try:
            found = call(Sealed(maker), setting.devices, **setting.options)
        except StudentRaised as error:  # shown at the line that used `make_work` wrongly
            line = maker.wrong_line or error.evidence.line
            raise error.with_facts(line=line) from None
        times = {}
        if isinstance(found, dict):
            for key, value in dict.items(found):
                if isinstance(key, str):
                    name = key
                else:
                    name = without_addresses(repr(key))
                times[name] = maker.time_of(name, value, repeats)
        return TimedAnswer(found, times)

    return describe_timing(call, repeats, ask)


@compare_devices.probe(machine="one gpu")
def comparisons(call: Call) -> Cases[TimedCall]:
    """Comparisons of CPU and GPU in both orders.

    In the second the devices are objects, and the repeats others. Raises StudentRaised for an error
    about a closed device or memory.
    """
    devices = [torch.device("cpu"), torch.device("cuda:0")]
    settings = {
        "gpu_first": ComparingSetting(["cuda", "cpu"], {}),
        "cpu_first": ComparingSetting(devices, {"repeats": 5}),
    }
    return try_inputs(_call_compare_devices, call, settings)


@compare_devices.probe(machine="two gpus", edge=True)
def comparisons_with_two_gpus(call: Call) -> Cases[TimedCall]:
    setting = ComparingSetting(["cpu", "cuda:1"], {})
    return try_inputs(_call_compare_devices, call, {"second_gpu": setting})


# ---- claims --------------------------------------------------------------------------------------

runs(compare_devices)


@compare_devices.check(points=0.25)
def names_every_device_in_order(seen: Seen, wanted: Seen) -> None:
    """The keys are the devices as strings, in the order given."""
    for _, found, right in scenario_pairs(seen[comparisons], wanted[comparisons]):
        _expect_keys(found, right)


def _expect_keys(found: TimedCall, right: TimedCall) -> None:
    """Raises Failed unless the answer is a dict with the reference's keys, in their order."""
    if not found.times:
        raise returned_other_type(found.kind, "a dict")
    if list(found.times) != list(right.times):
        expected = f"{', '.join(right.times)}, as strings and in this order"
        happened = f"the keys are {', '.join(found.times)}"
        happened = tell_apart(happened, list(found.times), list(right.times), "the keys")
        raise Failed(happened, expected)


@compare_devices.check(points=0.25, needs=("runs", "names_every_device_in_order"))
def times_each_as_it_should(seen: Seen, wanted: Seen) -> None:
    """Each value is that device's own seconds per call, over `repeats` calls, with warm-up and
    waiting for it."""
    for found in seen[comparisons].values():
        _expect_right_times(found)
    few = seen[comparisons]["gpu_first"].times["cpu"].calls
    many = seen[comparisons]["cpu_first"].times["cpu"].calls
    if many - few != 2:
        default = f"the CPU's work was called {few} times by default"
        happened = f"{default}, and {many} times with repeats=5"
        expected = "2 calls more with repeats=5 than by default, where it is 3"
        raise Failed(happened, expected, at=("time_on_device(",))
    second = seen[comparisons_with_two_gpus]["second_gpu"]
    _expect_keys(second, wanted[comparisons_with_two_gpus]["second_gpu"])
    _expect_right_times(second)


def _expect_right_times(found: TimedCall) -> None:
    """Raises Failed for a wrong time, and for one that is no number or was not measured.

    The CPU's comes first: it needs no waiting, so that a mistake has fewer causes.
    """
    for device in sorted(found.times, key=lambda name: name != "cpu"):
        time = found.times[device]
        if time.value is None:
            raise Failed(f"the value for {device} is no number", "seconds as a float")
        if not time.calls:
            happened = f"no work that `make_work({device!r})` returned was called"
            raise Failed(
                happened, "work made for every device, and timed", at=("lambda", "make_work(")
            )
        if time.fits:
            continue
        timed = _count_timed_calls(time)
        if timed is not None and timed != found.repeats:
            happened = f"the value for {device} is the mean of {timed} calls"
            expected = f"the mean of {found.repeats} calls, after the warm-up"
            raise Failed(happened, expected, at=("without repeats", "time_on_device("))
        failed = wrong_time(found, time, device)
        # What a helper does is that one's failure; here it is shown how it was called.
        failed.at = ("time_on_device(", *failed.at)
        failed.about = ""
        raise failed


def _count_timed_calls(time: MeasuredTime) -> int | None:
    """Of how many calls, the last ones, the answer is the mean; None if of none, or of all."""
    for count in range(1, len(time.took)):
        timed = time.took[-count:]
        if time.value and math.isclose(time.value, math.fsum(timed) / count, rel_tol=1e-3):
            return count
    return None
