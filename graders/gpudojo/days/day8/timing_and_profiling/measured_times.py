"""Times that students' functions return: how they are measured, and what is said of wrong ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from gpudojo.days.day8.returned_numbers import float_or_none
from gpudojo.days.day8.timing_and_profiling.timed_work import Workshop, issue_time, open_workshop
from gpudojo.grading.call import Call, StudentRaised
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import Failed

CLOCKS: Final = ("perf_counter(", "time(", "monotonic(", "now(", "record(")
# Where a clock is stopped
LAST: Final = (*(f"last {name}" for name in CLOCKS), *CLOCKS)
MILLISECOND: Final = 1e-3
MOST_CALLS: Final = 50  # whose durations are kept


class MeasuredTime(Case, frozen=True):
    """The seconds per call that student code found, beside what the calls took."""

    value: float | None  # None for something that is no number
    right: float  # the mean of the calls that count
    took: list[float]  # by all calls, the warm-up included
    calls: int
    modelled: bool  # whether time was: otherwise it is this machine's

    @property
    def fits(self) -> bool:
        """True if the answer is the right time, within 2 % or, in real time, within more."""
        if self.value is None or not self.calls:
            return False
        if self.modelled:
            return self.right * 0.98 <= self.value <= self.right * 1.02
        # That the host overslept, and a busy machine's odd millisecond, are not the student's.
        return self.right * 0.9 <= self.value <= self.right * 1.5 + 2 * MILLISECOND


def measured_time(value: Any, took: Sequence[float], right: float, modelled: bool) -> MeasuredTime:
    """Describe a `value` that student code returned for calls that `took` so long."""
    return MeasuredTime(float_or_none(value), right, list(took[:MOST_CALLS]), len(took), modelled)


class WaitElsewhere(Case, frozen=True):
    """A wait for something that had nothing to do."""

    stream: bool  # whether for another stream, and not for another GPU
    line: int | None


class TimedCall(Case, frozen=True):
    """One call of a function that times work."""

    kind: str  # of what it returned
    times: dict[str, MeasuredTime]  # by device; "" where there is only one
    repeats: int
    clocks: list[str]  # that it read: Python's by their names, and "event"
    wait: WaitElsewhere | None

    @property
    def time(self) -> MeasuredTime:
        """The time of a function that times one device."""
        return self.times[""]

    @property
    def fits(self) -> bool:
        return all(time.fits for time in self.times.values())

    @property
    def reads_wall_clock(self) -> bool:
        """True if it read a clock that goes on while nothing is computed."""
        other_clocks = ("process_time", "thread_time")
        return any(not name.startswith(other_clocks) for name in self.clocks)


class TimedAnswer(NamedTuple):
    """What a student's function returned, and the times in it by device."""

    value: Any
    times: dict[str, MeasuredTime]


def describe_timing(call: Call, repeats: int, ask: Callable[[Workshop], TimedAnswer]) -> TimedCall:
    """Describe a call of the student's function, which `ask` makes with work of a workshop.

    Time is modelled. A wrong answer of code that has read no clock of the model is asked for again
    in real time: it may have read another one, such as that of `datetime`, or one that it kept in a
    default argument. Raises StudentRaised in modelled time only.
    """
    found = _describe_by_clock(call, repeats, ask, modelled=True)
    if found.fits or found.reads_wall_clock:
        return found
    try:
        really = _describe_by_clock(call, repeats, ask, modelled=False)
    except StudentRaised:
        return found
    if really.fits or not found.clocks:
        return really
    return found


def _describe_by_clock(
    call: Call, repeats: int, ask: Callable[[Workshop], TimedAnswer], modelled: bool
) -> TimedCall:
    """Describe a call in modelled time, or in real time. Raises what `ask` raises: StudentRaised.

    `ask` calls the student's function with work of the workshop that it is given; `repeats` is how
    often that is to be timed.
    """
    with open_workshop(call, modelled) as workshop:
        answer = ask(workshop)
        clocks = set(workshop.clock.clocks_read)
        if workshop.clock.recorded_events:
            clocks.add("event")
    wait = call.ledger.useless_wait()
    return TimedCall(
        kind=type(answer.value).__name__,
        times=answer.times,
        repeats=repeats,
        clocks=sorted(clocks),
        wait=None if wait is None else WaitElsewhere(wait.device_works, call.line_of(wait)),
    )


def draw_durations(call: Call, name: str, *milliseconds: float) -> list[float]:
    """About these durations, in seconds; different for every seed and name.

    So no answer is known beforehand. They are chosen so that no two mistakes give about the same
    answer, within 10 % either way.
    """
    generator = random.Random(f"{call.seed} {name}")
    factors = [generator.uniform(0.9, 1.1) for _ in milliseconds]
    durations = zip(milliseconds, factors, strict=True)
    return [value * factor * MILLISECOND for value, factor in durations]


def is_near(value: float, right: float) -> bool:
    return math.isclose(value, right, rel_tol=0.05)


def time_in_words(seconds: float) -> str:
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms"


def note_on_value(time: MeasuredTime, repeats: int) -> str:
    """What is wrong with an answer that is right but for its unit or its division; else empty."""
    value = time.value or 0.0
    right = time.right
    if is_near(value, right * repeats):
        return ": that is the time of all calls together, not of one"
    if value and value == round(value, 3) and abs(value - right) <= 0.05:
        return ": that is rounded"
    milliseconds = right * 1e3
    if is_near(value, milliseconds) or is_near(value, milliseconds * repeats):
        return ": that is in milliseconds"
    if is_near(value, right * 1e9):
        return ": that is in nanoseconds"
    if time.calls > repeats and is_near(value, right * repeats / time.calls):
        return ": divided by all calls, including the warm-up"
    return ""


def wrong_time(
    found: TimedCall, time: MeasuredTime, device: str, warm_up_is_timed: bool = False
) -> Failed:
    """The failure of a wrong time on a device, with its cause where that can be told.

    It is returned, not raised. `warm_up_is_timed` is whether that shows on the CPU, too.
    """
    value = time.value or 0.0
    right = time.right
    needed = f"{device} needed {time_in_words(right)} per call"
    happened = f"{needed}, and the answer is {time_in_words(value)}"
    note = note_on_value(time, found.repeats)
    if note:
        expected = "the seconds of one timed call"
        happened = f"{happened}{note}"
        # The clock and its waits are right, and the number is not.
        return Failed(happened, expected, at=("elapsed_time(",), about="gives_the_mean_per_call")
    total = math.fsum(time.took)
    per_call = total / max(time.calls, 1)
    with_warm_up = is_near(value, total / found.repeats) or is_near(value, per_call)
    if with_warm_up and (device == "cpu" or time.calls <= found.repeats or warm_up_is_timed):
        expected = "the calls after the warm-up, timed as in `time_on_device`"
        at = ("warmup=", *CLOCKS)
        return Failed(happened, expected, None, "timed-the-warm-up", at)
    # On the CPU there is nothing to wait for.
    if device == "cpu" or (value > right and not with_warm_up):
        return Failed(happened, "its work, timed on that device as in `time_on_device`")
    if found.wait is not None:
        return _waited_elsewhere(happened, found.wait)
    return _clock_read_too_early(happened, value, right)


def _waited_elsewhere(happened: str, wait: WaitElsewhere) -> Failed:
    """The failure of a wait for a stream or a GPU that had no work. It is returned, not raised.

    `happened` begins its sentence.
    """
    if wait.stream:
        happened = f"{happened}: it waited for a stream that had no work"
        expected = "a wait for all work of the device"
        return Failed(happened, expected, wait.line, "timed-without-synchronising")
    happened = f"{happened}: it waited for another GPU"
    expected = "a wait for the device that was passed in"
    return Failed(happened, expected, wait.line, "current-gpu-used")


def _clock_read_too_early(happened: str, value: float, right: float) -> Failed:
    """The failure of a clock that was started or stopped without waiting for the device.

    It is returned, not raised. `happened` begins its sentence; `value` and `right` are seconds.
    """
    expected = "a wait for `device` (CUDA or MPS) before the clock is started"
    expected = f"{expected}, and one before it stops"
    key = "timed-without-synchronising"
    if value > right:
        happened = f"{happened}: the clock was started before the warm-up was done"
        return Failed(happened, expected, None, key, CLOCKS)
    if issue_time() / 2 < value < issue_time() * 2:
        happened = f"{happened}: that is the time to issue the work, and not the time to run it"
    else:
        happened = f"{happened}: the clock was stopped before the work was done"
    return Failed(happened, expected, None, key, LAST)
