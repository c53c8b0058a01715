"""Times that students' functions return: how they are measured, and what is said of wrong ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

import msgspec

from gpudojo.days.day8.timing_and_profiling.timed_work import HostClock, issue_time
from gpudojo.grading.call import Call, StudentRaised
from gpudojo.model.evidence import Case
from gpudojo.model.exercise import Failed

At = tuple[str, ...]  # patterns for the line to show
CLOCKS: Final = ("perf_counter(", "time(", "monotonic(", "now(", "record(")
# Where a clock is stopped
LAST: Final = (*(f"last {name}" for name in CLOCKS), *CLOCKS)
MILLISECOND: Final = 1e-3


T = TypeVar("T", bound=Case)


class Bounded(Case, frozen=True):
    """A time that was returned, beside the right one and the limits within which it is accepted."""

    value: float | None
    took: list[float]
    right: float
    least: float
    most: float

    @property
    def fits(self) -> bool:
        return self.value is not None and bool(self.took) and self.least <= self.value <= self.most


def draw_durations(call: Call, name: str, *milliseconds: float) -> list[float]:
    """About these durations, in seconds; different for every seed.

    So no answer is known beforehand. They are chosen so that no two mistakes give about the same
    answer, within 10 % either way.
    """
    generator = random.Random(f"{call.seed} {name}")
    return [value * generator.uniform(0.9, 1.1) * MILLISECOND for value in milliseconds]


class Bounds(NamedTuple):
    """What work took per call, and the least and the most that may be returned for it."""

    right: float
    least: float
    most: float


def bounds_for(right: float, modelled: bool) -> Bounds:
    """The bounds for work that took `right` seconds per call."""
    if modelled:
        return Bounds(right, right * 0.98, right * 1.02)
    # That the host overslept, and a busy machine's odd millisecond, are not the student's fault.
    return Bounds(right, right * 0.9, right * 1.5 + 2 * MILLISECOND)


def names_of_clocks(clock: HostClock) -> list[str]:
    """The clocks that student code has read: Python's by their names, and "event"."""
    names = set(clock.clocks_read)
    if clock.recorded_events:
        names.add("event")
    return sorted(names)


def reads_wall_clock(clocks: Iterable[str]) -> bool:
    """True if one of these clocks goes on while nothing is computed."""
    return any(not name.startswith(("process_time", "thread_time")) for name in clocks)


def look_by_both_clocks(look: Callable[[bool], T], is_enough: Callable[[T], bool]) -> T:
    """What `look(True)` sees by the modelled clock, and perhaps what is seen in real time.

    The second is in `really`. It is looked at unless the first `is_enough`: for a wrong answer of
    code that has read no clock which the model moves on, but another one, such as that of
    `datetime`, or one that it kept in a default argument. Raises StudentRaised by the modelled
    clock only.
    """
    found = look(True)
    if is_enough(found):
        return found
    try:
        return msgspec.structs.replace(found, really=look(False))
    except StudentRaised:
        return found


class WaitElsewhere(NamedTuple):
    """Where a call waited for something that had nothing to do.

    That is a GPU ("gpu") or a stream ("stream"); "" and None if it did not.
    """

    elsewhere: str
    line: int | None


def useless_wait_in(call: Call) -> WaitElsewhere:
    """Where the latest call of the student's function waited in vain, from the ledger."""
    wait = call.ledger.useless_wait()
    if wait is None:
        return WaitElsewhere("", None)
    elsewhere = "stream" if wait.device_works else "gpu"
    in_file = wait.site is not None and wait.site.file == str(call.path)
    return WaitElsewhere(elsewhere, wait.site.line if in_file and wait.site is not None else None)


def is_near(value: float, right: float) -> bool:
    return math.isclose(value, right, rel_tol=0.05)


def time_in_words(seconds: float) -> str:
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms"


def note_on_issuing(value: float) -> str:
    """A note on a time in which work was issued, but not done; empty for other times."""
    if issue_time() / 2 < value < issue_time() * 2:
        return ": that is the time to issue the work, and not the time to run it"
    return ""


def note_on_unit(value: float, right: float, repeats: int) -> str:
    """A note on an answer that is right except for its unit or its division.

    Empty for other answers. `value` and `right` are seconds per call of `repeats` calls.
    """
    if is_near(value, right * repeats):
        return ": that is the time of all calls together, not of one"
    if value and value == round(value, 3) and abs(value - right) <= 0.05:
        return ": that is rounded"
    if is_near(value, right * 1e3) or is_near(value, right * 1e3 * repeats):
        return ": that is in milliseconds"
    if is_near(value, right * 1e9):
        return ": that is in nanoseconds"
    return ""


def failure_of_waiting_elsewhere(times: str, elsewhere: str, line: int | None) -> Failed:
    """The failure of a wait for a stream or a GPU that had no work.

    `times` begins its sentence; `elsewhere` is "stream" or "gpu".
    """
    if elsewhere == "stream":
        happened = f"{times}: it waited for a stream that had no work"
        expected = "a wait for all work of the device"
        return Failed(happened, expected, line, "timed-without-synchronising")
    happened = f"{times}: it waited for another GPU"
    expected = "a wait for the device that was passed in"
    return Failed(happened, expected, line, "current-gpu-used")
