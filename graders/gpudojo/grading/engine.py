"""The grading engine: load a file, observe its functions, judge what was seen, explain the results.

    load → observe                 runs student code; `gpudojo.grading.observe`
                 └─ evidence ─▶ judge → explain      never runs it; `judge_function`

`grade_function` and `FileGrader` do all four in this process: for pytest, notebooks, lint and release. For a class,
the sandbox's child does the first two, and the grader's process calls `judge_function` with the evidence it was sent.
So this module imports no torch: what runs student code is imported where it is called.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpudojo.grading.judge import judge
from gpudojo.grading.limits import UNLIMITED, Limits, timed_out
from gpudojo.grading.references import Reference, reference_for
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.errors import DojoError
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised, decode_evidence, encode_evidence
from gpudojo.model.exercise import Check, Exercise, Function, Misconception, sign
from gpudojo.model.results import CheckResult, Outcome

if TYPE_CHECKING:
    from gpudojo.grading.load import Submission
    from gpudojo.grading.watching import Pair


def judge_function(
    exercise: Exercise,
    function: Function,
    evidence: Evidence,
    reference: Evidence,
    lines: Mapping[str, int] | None = None,
    signature: str = "(…)",
) -> list[CheckResult]:
    """One result for each check of a function, by its evidence and the reference's.

    `lines` are those of names and signs in the student's source, `signature` the one the function should have.
    """
    results = judge(exercise, function, evidence, reference)
    return [explained(result, function, evidence.observations, lines or {}, signature) for result in results]


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
    """

    def __init__(
        self, path: Path, kind: str, seed: int, submission: Submission | None = None, watching: bool = False
    ) -> None:
        self.path, self.kind, self.seed, self.watching = path, kind, seed, watching
        self.submission = submission
        self.pairs: dict[str, Pair] = {}  # by the name of the function
        self._results: dict[str, list[CheckResult]] = {}
        self._references: dict[str, Reference] = {}

    def results(self, exercise: Exercise, function: Function, limits: Limits = UNLIMITED) -> list[CheckResult]:
        """One result for each check. What is not the student's fault is an ERROR, which costs no points."""
        if function.name not in self._results:
            try:
                found = self._grade(exercise, function, limits)
            except DojoError as error:
                found = [could_not_judge(exercise, function, check, str(error)) for check in function.checks]
            self._results[function.name] = found
        return self._results[function.name]

    def _grade(self, exercise: Exercise, function: Function, limits: Limits) -> list[CheckResult]:
        from gpudojo.grading.observe import load_file
        from gpudojo.grading.watching import Pair

        # Before the student's file: that may spoil the process it is loaded into.
        reference = self._references.get(exercise.stem)
        if reference is None:
            reference = self._references[exercise.stem] = reference_for(self.path, exercise)
        if self.submission is None:
            self.submission = load_file(self.path, limits)
        pair = None
        if self.watching:
            pair = self.pairs[function.name] = Pair.over(exercise, function, reference.timelines(exercise, function))
        return grade_function(exercise, function, self.submission, reference, self.kind, self.seed, limits, pair)


def could_not_judge(exercise: Exercise, function: Function, check: Check, why: str) -> CheckResult:
    """The result of a check that an error in the exercise, or in gpudojo, kept from being judged."""
    return CheckResult(
        exercise.stem, function.name, check.name, check.claim, Outcome.ERROR, check.points, why, "a verdict"
    )


def explained(
    result: CheckResult,
    function: Function,
    found: Mapping[str, Observation],
    lines: Mapping[str, int],
    signature: str,
) -> CheckResult:
    """The result with what the check does not know: the line to show, and what a time-out or a missing name means."""
    if result.outcome is not Outcome.FAILED:
        return result
    line = shown(result, function, lines)
    happened, expected = result.happened, result.expected
    scenario, first = next(((n, o) for n, o in found.items() if o.status is not CallStatus.RETURNED), ("", None))
    if first is None:
        return msgspec.structs.replace(result, line=line)
    raised = first.raised or Raised("", "", None)
    if first.status is CallStatus.MISSING:
        names = [name for name in lines if name.isidentifier() and name != function.name]
        near = difflib.get_close_matches(function.name, names, 1, 0.75)
        if near:
            line = lines[near[0]]
            happened += f"; is `{near[0]}` meant to be it?"
    elif timed_out(first):
        what = f"`{function.name}`" if first.status is CallStatus.RAISED else "the file itself"
        where = f" (scenario `{scenario}`)" if first.status is CallStatus.RAISED else ""
        at = "; this is the line it was at" if raised.line is not None else ""
        happened = f"time-out: {what} was {raised.message}{where}{at}"
        expected = "an end; look for a loop that never ends, or for something it waits for that never comes"
    elif raised.type == "Unusable":
        happened = f"{raised.message} (scenario `{scenario}`)"
        expected = "what the docstring promises"
    elif raised.type == "RecursionError":
        expected = "an end; a function that calls itself needs a case in which it does not"
    elif raised.type == "TypeError" and raised.line is None and first.status is CallStatus.RAISED:
        expected = f"a function that can be called as `{function.name}{signature}`"
    return msgspec.structs.replace(result, line=line, happened=happened, expected=expected)


def shown(result: CheckResult, function: Function, lines: Mapping[str, int]) -> int | None:
    """The line to change: of the mistake itself, the recorded one, that of a sign of it, or where the function is."""
    known = misconceptions().get(result.misconception or "", Misconception("", ""))
    cause = _first(known.cause, function, lines)
    if cause is not None:
        return cause
    if result.line is not None:
        return result.line
    signs = (*result.at, *function.signs_for(result.misconception), *known.at, *function.signs_for(result.check))
    return _first((*signs, ""), function, lines)


def _first(signs: Iterable[str], function: Function, lines: Mapping[str, int]) -> int | None:
    """The line of the first of these signs that the function's source shows; the empty one is its beginning."""
    keys = (sign(function.name, what) if what else function.name for what in signs)
    return next((lines[key] for key in keys if key in lines), None)
