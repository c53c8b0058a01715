"""The grading engine: load a file, observe its functions, judge what was seen, explain the results.

    load → observe                  gpudojo.grading.observe   runs student code
              └─ evidence ─▶ judge → explain   gpudojo.grading.engine   never runs student code
                                                                        and imports no torch

`grade_function` and `FileGrader` do all four in this process: for pytest, notebooks, lint and
release. For a class, the sandbox's child does the first two, and the grader's process calls
`judge_function` with the evidence it was sent. What runs student code is imported where it is
called, so that torch is not imported with this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpudojo.grading.bindings import solved_names
from gpudojo.grading.checks import failure_of_scenario
from gpudojo.grading.explain import explain_result
from gpudojo.grading.limits import UNLIMITED, Limits
from gpudojo.grading.reference_solutions import CachedReference
from gpudojo.grading.references import Reference, reference_for
from gpudojo.model.errors import DojoError, author_line
from gpudojo.model.evidence import (
    CallStatus,
    Evidence,
    ScenarioRaised,
    decode_evidence,
    encode_evidence,
)
from gpudojo.model.exercise import (
    Check,
    Exercise,
    Failed,
    Function,
    Lines,
    Seen,
    Todo,
)
from gpudojo.model.results import CheckResult, Outcome

if TYPE_CHECKING:
    from gpudojo.grading.load import Submission
    from gpudojo.grading.watching import Pair


UNJUDGED = "what it did or returned is so unlike the reference's that it cannot be judged"
_NOTHING: Final = Failed("", "")  # is said of a check that did not fail


def judge_function(
    exercise: Exercise,
    function: Function,
    evidence: Evidence,
    reference: Evidence,
    lines: Mapping[str, int] | Callable[[], Mapping[str, int]] | None = None,
    signature: str = "(…)",
) -> list[CheckResult]:
    """Judge and explain each check of a function, by its evidence and the reference's.

    `lines` are those of names and patterns in the student's source, or a function that returns
    them, which is called if a check failed. `signature` is the one the function should have.
    """
    results = judge_checks(exercise, function, evidence, reference)
    if not any(result.outcome is Outcome.FAILED for result in results):
        return results
    if callable(lines):
        lines = lines()
    explained = []
    for result in results:
        explained.append(
            explain_result(result, function, evidence.observations, lines or {}, signature)
        )
    return explained


class Judgement(NamedTuple):
    """What came of a check: why it failed, and which lines the calls executed that it is about."""

    outcome: Outcome
    failed: Failed | None = None
    ran: Lines | None = None


def judge_checks(
    exercise: Exercise, function: Function, evidence: Evidence, reference: Evidence
) -> list[CheckResult]:
    """Judge each check of a function. A check that needs one that did not pass is blocked."""
    if any(seen.status is CallStatus.TODO for seen in evidence.observations.values()):
        return [result_of(exercise, function, check, Outcome.TODO) for check in function.checks]
    seen = Seen(evidence.observations)
    wanted = Seen(reference.observations)
    passed: set[str] = set()
    results = []
    for check in function.checks:
        missing = [need for need in check.needs if need not in passed]
        if missing:
            result = result_of(exercise, function, check, Outcome.BLOCKED, None, missing[0])
        else:
            judgement = judge_check(function, check, seen, wanted)
            result = result_of(exercise, function, check, judgement.outcome, judgement.failed)
            if judgement.ran is not None:
                result = msgspec.structs.replace(result, ran=judgement.ran)
        if result.outcome is Outcome.PASSED:
            passed.add(check.name)
        results.append(result)
    return results


def judge_check(function: Function, check: Check, seen: Seen, wanted: Seen) -> Judgement:
    """Judge one check, by what was seen of the student's function and of the reference.

    A check that raises is an error of ours, which costs the student nothing, if it raises for the
    reference's evidence too; otherwise the check fails. Evidence is made where student code runs:
    if evidence that cannot be read were not held against the student, spoiling it would pay.
    """
    seen.begin_check()
    try:
        check.judge(seen, wanted)
    except Failed as failed:
        ran = None
        if failed.ran is None:
            ran = seen.ran
        return Judgement(Outcome.FAILED, failed, ran)
    except Todo as todo:
        return Judgement(Outcome.TODO, Failed(str(todo), ""))
    except Exception as error:  # whatever a check raises for evidence that it did not expect
        return _judge_error(function, check, seen, wanted, error)
    return Judgement(Outcome.PASSED)


def _judge_error(
    function: Function, check: Check, seen: Seen, wanted: Seen, error: Exception
) -> Judgement:
    """Say whose error it is that a check raised: ours, or that of the student's function."""
    what = f"{type(error).__name__}: {error}, raised at {author_line(error)}"
    try:
        check.judge(wanted, wanted)
    except Exception:  # then the check cannot judge anybody
        return Judgement(Outcome.ERROR, Failed(f"the check itself failed: {what}", "a verdict"))
    if isinstance(error, ScenarioRaised):
        failed = failure_of_scenario(error.raised, function.diagnose(error.raised, seen))
        seen.about(None, error.raised.scenario)
        return Judgement(Outcome.FAILED, failed, seen.ran)
    return Judgement(Outcome.FAILED, Failed(f"{UNJUDGED} ({what})", "what the docstring promises"))


def result_of(
    exercise: Exercise,
    function: Function,
    check: Check,
    outcome: Outcome,
    failed: Failed | None = None,
    blocked_by: str | None = None,
) -> CheckResult:
    """The result of one check."""
    failed = failed or _NOTHING
    return CheckResult(
        exercise=exercise.stem,
        function=function.name,
        check=check.name,
        claim=check.claim,
        outcome=outcome,
        max_points=check.points,
        happened=failed.happened,
        expected=failed.expected,
        line=failed.line,
        misconception=failed.misconception,
        blocked_by=blocked_by,
        at=failed.at,
        ran=failed.ran,
        about=failed.about,
    )


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
    """One result for each check of a function of a loaded file.

    Without a reference, the file is its own. `pair` watches the calls of both. Evidence is encoded
    and decoded, as on the way out of a sandbox: a verdict must not depend on where it was reached.
    Raises DojoError where the reference cannot be used.
    """
    from gpudojo.grading.observe import observe_function

    yours, theirs = pair.functions if pair is not None else (function, function)
    seen = _decoded_again(observe_function(exercise, yours, submission, kind, seed, limits))
    if reference is None:
        return judge_function(exercise, function, seen, seen, submission.lines)
    # The reference is run, or read, only if a check may need it.
    wanted = seen
    if _needs_reference(seen):
        wanted = _decoded_again(reference.evidence_of(exercise, theirs, kind, seed))
    signature = reference.signature_of(exercise, function)
    return judge_function(exercise, function, seen, wanted, submission.lines, signature)


def _decoded_again(evidence: Evidence) -> Evidence:
    return decode_evidence(encode_evidence(evidence))


def _needs_reference(evidence: Evidence) -> bool:
    """True if all probes called the function. Otherwise no check needs the reference."""
    statuses = {observation.status for observation in evidence.observations.values()}
    return statuses <= {CallStatus.RETURNED, CallStatus.RAISED}


class FileGrader:
    """The results of one student file.

    Each function is graded once, when its results are first asked for. A `submission` that is
    given is not loaded, as in a notebook. With `watching`, what functions do is kept in `pairs`.
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
        """Load and run nothing yet; `kind` is that of the device."""
        self.path = path
        self.kind = kind
        self.seed = seed
        self.watching = watching
        self.submission = submission
        self.pairs: dict[str, Pair] = {}  # by the name of the function
        self._results: dict[str, list[CheckResult]] = {}  # by the name of the function
        self._references: dict[str, Reference] = dict(references or {})

    def results_of(
        self, exercise: Exercise, function: Function, limits: Limits = UNLIMITED
    ) -> list[CheckResult]:
        """One result for each check of a function. Grades it if that has not been done.

        What is not the student's fault is an ERROR, which costs no points.
        """
        if function.name not in self._results:
            self._results[function.name] = self._grade_or_error(exercise, function, limits)
        return self._results[function.name]

    @property
    def graded(self) -> list[CheckResult]:
        """The results of all functions that were graded so far, in this order."""
        return [result for results in self._results.values() for result in results]

    def fill_cache(self, exercise: Exercise, functions: Iterable[Function]) -> None:
        """Fill the cache with the reference's evidence for the functions that are written.

        For a process that has not run student code. What goes wrong is told when a function is
        graded.
        """
        with contextlib.suppress(DojoError, OSError):
            reference = self._reference_of(exercise)
            if not isinstance(reference, CachedReference):
                return
            missing = []
            for function in functions:
                if not reference.has_evidence(function, self.kind, self.seed):
                    missing.append(function)
            written = solved_names(self.path) if missing else ()
            for function in missing:
                if function.name in written:
                    reference.fill_cache(function, self.kind, self.seed)

    def _reference_of(self, exercise: Exercise) -> Reference:
        """The reference of an exercise, found once. Raises NoReference, BadEvidence."""
        found = self._references.get(exercise.stem)
        if found is None:
            found = reference_for(self.path, exercise)
            if self.watching and isinstance(found, CachedReference):
                found = found.solution  # a solution that runs here can be watched
            self._references[exercise.stem] = found
        return found

    def _grade_or_error(
        self, exercise: Exercise, function: Function, limits: Limits
    ) -> list[CheckResult]:
        """The results of a function.

        They are ERROR where gpudojo or the exercise could not grade it, and BLOCKED where an
        earlier function failed because of the same error in the file.
        """
        try:
            found = self._load_and_grade(exercise, function, limits)
        except DojoError as error:
            why = Failed(str(error), "a verdict")
            found = []
            for check in function.checks:
                found.append(result_of(exercise, function, check, Outcome.ERROR, why))
        submission = self.submission
        if submission is None or submission.broken is None or function.name in submission.names:
            return found
        return self._blocked_by_earlier(exercise, function, found)

    def _blocked_by_earlier(
        self, exercise: Exercise, function: Function, found: list[CheckResult]
    ) -> list[CheckResult]:
        """The results `found`, or blocked ones if an earlier function was told the same error."""
        for earlier_name, earlier_results in self._results.items():
            earlier = earlier_results[0]
            both_failed = earlier.outcome is found[0].outcome is Outcome.FAILED
            if both_failed and earlier.happened == found[0].happened:
                by = f"{earlier_name}::{earlier.check}"
                return [
                    result_of(exercise, function, check, Outcome.BLOCKED, None, by)
                    for check in function.checks
                ]
        return found

    def _load_and_grade(
        self, exercise: Exercise, function: Function, limits: Limits
    ) -> list[CheckResult]:
        """Load the file if that has not been done, and grade one function of it."""
        from gpudojo.grading.observe import load_file
        from gpudojo.grading.watching import Pair

        # The reference comes before the student's file, which may spoil the process it runs in.
        reference = self._reference_of(exercise)
        if isinstance(reference, CachedReference):
            reference.load_early(function, self.kind, self.seed)
        if self.submission is None:
            self.submission = load_file(self.path, limits)
        pair = None
        if self.watching:
            timelines = reference.timelines_of(exercise, function)
            pair = Pair.of_function(exercise, function, timelines)
            self.pairs[function.name] = pair
        return grade_function(
            exercise, function, self.submission, reference, self.kind, self.seed, limits, pair
        )
