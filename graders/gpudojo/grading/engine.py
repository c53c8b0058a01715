"""The grading engine: load a file, observe its functions, judge what was seen, explain the results.

    load → observe                  gpudojo.grading.observe   runs student code
              └─ evidence ─▶ judge → explain   gpudojo.grading.judge   never runs it, and imports no torch

`grade_function` and `FileGrader` do all four in this process: for pytest, notebooks, lint and release. For a class,
the sandbox's child does the first two, and the grader's process calls `judge_function` with the evidence it was sent.
What runs student code is imported where it is called, so that torch is not imported with this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpudojo.grading.judge import judge_function, result_of
from gpudojo.grading.limits import UNLIMITED, Limits
from gpudojo.grading.load import solved
from gpudojo.grading.references import Kept, Reference, reference_for
from gpudojo.model.errors import DojoError
from gpudojo.model.evidence import CallStatus, decode_evidence, encode_evidence
from gpudojo.model.exercise import Exercise, Failed, Function
from gpudojo.model.results import CheckResult, Outcome

if TYPE_CHECKING:
    from gpudojo.grading.load import Submission
    from gpudojo.grading.watching import Pair


def grade_function(
    exercise: Exercise,
    function: Function,
    submission: Submission,
    reference: Reference | None,
    kind: str,
    seed: int,
    limits: Limits = UNLIMITED,
    pair: Pair | None = None,
) -> list[CheckResult]:
    """One result for each check of a function of a file that is loaded; without a reference, the file is its own.

    `pair` watches the calls of both. Evidence is encoded and decoded, as it is on the way out of a sandbox: a verdict
    must not depend on where it was reached. Raises DojoError where the reference cannot be used.
    """
    from gpudojo.grading.observe import observe

    yours, theirs = pair.functions if pair is not None else (function, function)
    seen = decode_evidence(encode_evidence(observe(exercise, yours, submission, kind, seed, limits)))
    if reference is None:
        return judge_function(exercise, function, seen, seen, submission.lines)
    wanted = seen
    if all(each.status in (CallStatus.RETURNED, CallStatus.RAISED) for each in seen.observations.values()):
        wanted = decode_evidence(encode_evidence(reference.evidence(exercise, theirs, kind, seed)))
    signature = reference.signature(exercise, function)
    return judge_function(exercise, function, seen, wanted, submission.lines, signature)


class FileGrader:
    """The results of one student file; each function is graded once, when its results are first asked for.

    A `submission` that is given is not loaded, as in a notebook. With `watching`, what functions do is kept in `pairs`.
    `references` are used where they have the exercise, by its stem.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        seed: int,
        submission: Submission | None = None,
        watching: bool = False,
        references: Mapping[str, Reference] | None = None,
    ) -> None:
        self.path, self.kind, self.seed, self.watching = path, kind, seed, watching
        self.submission = submission
        self.pairs: dict[str, Pair] = {}  # by the name of the function
        self._results: dict[str, list[CheckResult]] = {}
        self._references: dict[str, Reference] = dict(references or {})

    def results(self, exercise: Exercise, function: Function, limits: Limits = UNLIMITED) -> list[CheckResult]:
        """One result for each check. What is not the student's fault is an ERROR, which costs no points."""
        if function.name not in self._results:
            try:
                found = self._grade(exercise, function, limits)
            except DojoError as error:
                why = Failed(str(error), "a verdict")
                found = [result_of(exercise, function, check, Outcome.ERROR, why) for check in function.checks]
            if self.submission is not None and self.submission.broken and function.name not in self.submission.names:
                found = self._told_once(exercise, function, found)
            self._results[function.name] = found
        return self._results[function.name]

    @property
    def graded(self) -> list[CheckResult]:
        """The results of all functions that were graded so far, in this order."""
        return [result for results in self._results.values() for result in results]

    def prepare(self, exercise: Exercise, functions: Iterable[Function]) -> None:
        """Fills the cache of the reference's evidence for what is not still to do; before student code has run.

        What goes wrong is told when a function is graded.
        """
        with contextlib.suppress(DojoError, OSError):
            reference = self._reference(exercise)
            if isinstance(reference, Kept):
                missing = [each for each in functions if not reference.has(each, self.kind, self.seed)]
                written = solved(self.path) if missing else ()
                for function in missing:
                    if function.name in written:
                        reference.prepare(function, self.kind, self.seed)

    def _reference(self, exercise: Exercise) -> Reference:
        found = self._references.get(exercise.stem)
        if found is None:
            found = reference_for(self.path, exercise)
            if self.watching and isinstance(found, Kept):
                found = found.written
            self._references[exercise.stem] = found
        return found

    def _told_once(self, exercise: Exercise, function: Function, found: list[CheckResult]) -> list[CheckResult]:
        """The results; those of a function that the same error of the file keeps from being graded are blocked."""
        for other, told in self._results.items():
            if told[0].outcome is found[0].outcome is Outcome.FAILED and told[0].happened == found[0].happened:
                by = f"{other}::{told[0].check}"
                return [result_of(exercise, function, c, Outcome.BLOCKED, None, by) for c in function.checks]
        return found

    def _grade(self, exercise: Exercise, function: Function, limits: Limits) -> list[CheckResult]:
        from gpudojo.grading.observe import load_file
        from gpudojo.grading.watching import Pair

        # Before the student's file: that may spoil the process it is loaded into.
        reference = self._reference(exercise)
        if isinstance(reference, Kept) and not reference.has(function, self.kind, self.seed):
            reference.load()
        if self.submission is None:
            self.submission = load_file(self.path, limits)
        pair = None
        if self.watching:
            pair = self.pairs[function.name] = Pair.over(exercise, function, reference.timelines(exercise, function))
        return grade_function(exercise, function, self.submission, reference, self.kind, self.seed, limits, pair)
