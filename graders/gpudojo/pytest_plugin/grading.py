"""Grades one file in the student's own run."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pytest

from gpudojo.grading.explain import explained, timed_out
from gpudojo.grading.references import Reference, reference_for
from gpudojo.grading.time_limits import time_limit
from gpudojo.model.errors import DojoError
from gpudojo.model.evidence import CallStatus, Evidence, Observation
from gpudojo.model.exercise import Check, Exercise, Function, Probe
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.pytest_plugin.timelines import Pair

if TYPE_CHECKING:
    from gpudojo.grading.load import Submission


CHARACTERS: Final = 1_000_000
QUITTING: Final = "Quitting debugger"  # what pytest says when the user leaves the debugger


class Interrupts:
    """Whether an exception is the user's wish to stop, and not the student's code speaking."""

    def __init__(self) -> None:
        self.real = False
        self.known = False

    def ours(self, error: BaseException) -> bool:
        if isinstance(error, KeyboardInterrupt):
            return self.real or not self.known
        return isinstance(error, pytest.exit.Exception) and str(error) == QUITTING


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Note a Ctrl-C when it comes."""
    found = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    found.known = True
    if not callable(before):  # ignored, as in the background of a script: then none can come
        yield found
        return

    def handler(signum: int, frame: FrameType | None) -> Any:
        found.real = True
        return before(signum, frame)

    signal.signal(signal.SIGINT, handler)
    try:
        yield found
    finally:
        if signal.getsignal(signal.SIGINT) is handler:  # a debugger puts its own there
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def bounded_output(characters: int = CHARACTERS) -> Iterator[None]:
    """Keep only so much of what is printed: an endless loop would fill the disk pytest captures it on."""
    with contextlib.ExitStack() as undo:
        for stream in (sys.stdout, sys.stderr):
            _bound(stream, characters, undo)
        yield


def _bound(stream: Any, characters: int, undo: contextlib.ExitStack) -> None:
    original, left = stream.write, characters

    def write(text: str) -> int:
        nonlocal left
        if left > 0:
            original(text[:left])
            left -= len(text)
            if left <= 0:
                original(f"\n… more than {characters:,} characters were printed; the rest was not kept\n")
        return len(text)

    try:
        stream.write = write
    except AttributeError:
        return
    undo.callback(_unbound, stream)


def _unbound(stream: Any) -> None:
    with contextlib.suppress(AttributeError):
        del stream.write


@dataclasses.dataclass(frozen=True)
class Limits:
    """What student code may take in this run."""

    seconds: float | None = None
    method: str = "signal"
    output: bool = True  # whether output is captured, and so has to be bounded


class Grader:
    """The results of one student file; each function is looked at once, when its first check is asked for."""

    def __init__(self, path: Path, kind: str, seed: int) -> None:
        self.path = path
        self.kind = kind
        self.seed = seed
        self.student: Submission | None = None
        self.watching = False  # whether what functions do is kept, to be drawn
        self.pairs: dict[str, Pair] = {}
        self._results: dict[str, dict[str, CheckResult]] = {}
        self._references: dict[str, Reference] = {}

    def result(self, exercise: Exercise, function: Function, check: Check, limits: Limits) -> CheckResult:
        if function.name not in self._results:
            try:
                results = self._grade(exercise, function, limits)
            except DojoError as error:  # ours: costs the student nothing, and is loud
                results = [_ours(exercise, function, each, str(error)) for each in function.checks]
            self._results[function.name] = {result.check: result for result in results}
        return self._results[function.name][check.name]

    def _grade(self, exercise: Exercise, function: Function, limits: Limits) -> list[CheckResult]:
        from gpudojo.grading.judge import judge
        from gpudojo.grading.load import load

        # Before the student's file: that may spoil the process it is loaded into.
        reference = self._references.get(exercise.stem)
        if reference is None:
            reference = self._references[exercise.stem] = reference_for(self.path, exercise)
        if self.student is None:
            with self._guarded(limits) as stop:
                self.student = load(self.path, stop.ours)
        yours = theirs = function
        if self.watching:
            recorded = reference.timelines(exercise, function)
            pair = self.pairs[function.name] = Pair.over(exercise, function, recorded)
            yours, theirs = pair.functions
        found: dict[str, Observation] = {}
        for probe in yours.probes:
            late = next((seen for seen in found.values() if timed_out(seen)), None)
            found[probe.name] = late or self._observe(exercise, yours, probe, limits)
        seen = Evidence(exercise.stem, function.name, self.kind, self.seed, found)
        wanted = seen
        if all(each.status in (CallStatus.RETURNED, CallStatus.RAISED) for each in found.values()):
            wanted = reference.evidence(exercise, theirs, self.kind, self.seed)
        results = judge(exercise, function, seen, wanted)
        lines, signature = self.student.lines, reference.signature(exercise, function)
        return [explained(result, function, found, lines, signature) for result in results]

    def _observe(self, exercise: Exercise, function: Function, probe: Probe, limits: Limits) -> Observation:
        from gpudojo.grading.load import raised
        from gpudojo.grading.observe import observe

        assert self.student is not None
        alone = dataclasses.replace(function, probes=[probe])
        with self._guarded(limits) as stop:
            try:
                evidence = observe(exercise, alone, self.student, self.kind, self.seed)
            except DojoError:
                raise
            except BaseException as error:  # what no probe catches: time-outs, pytest.skip(), a KeyboardInterrupt
                if stop.ours(error):
                    raise
                return Observation(CallStatus.RAISED, raised=raised(error, self.path))
        seen = evidence.observations[probe.name]
        if seen.raised is not None and (seen.raised.type, seen.raised.message) == ("Exit", QUITTING):
            pytest.exit(QUITTING)  # an Exception as any other to the probe, and the user's wish
        return seen

    @contextlib.contextmanager
    def _guarded(self, limits: Limits) -> Iterator[Interrupts]:
        with (
            interrupts() as stop,
            bounded_output() if limits.output else contextlib.nullcontext(),
            time_limit(limits.seconds, str(self.path), limits.method),
        ):
            yield stop


def _ours(exercise: Exercise, function: Function, check: Check, why: str) -> CheckResult:
    return CheckResult(
        exercise.stem, function.name, check.name, check.claim, Outcome.ERROR, check.points, why, "a verdict"
    )
