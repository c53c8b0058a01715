"""How is one file graded in the student's own run? In one process, so that print and breakpoint work."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from graders.checks.explaining import explained, timed_out
from graders.curriculum.exercise import Check, Exercise, Function, Probe
from graders.errors import DojoError
from graders.evidence import Evidence, Observation, Status
from graders.plugin.limits import QUITTING, Interrupts, bounded_output, interrupts, time_limit
from graders.plugin.references import Reference, reference_for
from graders.plugin.timelines import Pair
from graders.results import CheckResult, Outcome

if TYPE_CHECKING:
    from graders.probes.loading import Submission


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
        from graders.checks import judge
        from graders.probes.loading import load

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
        if all(each.status in (Status.RETURNED, Status.RAISED) for each in found.values()):
            wanted = reference.evidence(exercise, theirs, self.kind, self.seed)
        results = judge(exercise, function, seen, wanted)
        lines, signature = self.student.lines, reference.signature(exercise, function)
        return [explained(result, function, found, lines, signature) for result in results]

    def _observe(self, exercise: Exercise, function: Function, probe: Probe, limits: Limits) -> Observation:
        from graders.probes.loading import raised
        from graders.probes.observing import observe

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
                return Observation(Status.RAISED, raised=raised(error, self.path))
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
