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
from gpudojo.grading.checks import DiagnosisFailed, failure_of_scenario
from gpudojo.grading.explain import blame_helpers, explain_result
from gpudojo.grading.limits import UNLIMITED, Limits
from gpudojo.grading.reference_solutions import CachedReference
from gpudojo.grading.references import Reference, reference_for
from gpudojo.model.errors import (
    BadEvidence,
    DojoError,
    NoReference,
    author_line,
    without_addresses,
)
from gpudojo.model.evidence import (
    CallStatus,
    Evidence,
    MissingEvidence,
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
    them, which is called if a check failed. `signature` is the one the function should have. The
    results are in the order of the checks. Raises BadDay or OSError if the texts of the day cannot
    be read, and what the function's `diagnose` raises.
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
    unpaid: bool = False  # of an ERROR: it earns no points before a person has looked


def judge_checks(
    exercise: Exercise, function: Function, evidence: Evidence, reference: Evidence
) -> list[CheckResult]:
    """Judge each check of a function; the results are in the order of the checks.

    A check that needs one that did not pass is BLOCKED. All are TODO if the function is not
    written. A check that raises fails or is an ERROR. Raises only what the function's `diagnose`
    raises.
    """
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
            if judgement.unpaid:
                result = msgspec.structs.replace(result, unpaid=True)
        if result.outcome is Outcome.PASSED:
            passed.add(check.name)
        results.append(result)
    return results


def judge_check(function: Function, check: Check, seen: Seen, wanted: Seen) -> Judgement:
    """Judge one check, by what was seen of the student's function and of the reference.

    A check that raises is an error of ours. It costs the student nothing if it raises for the
    reference's evidence too; otherwise it earns nothing before a person has looked. Evidence is
    made where student code runs: if it paid to make a check raise, spoiling it would pay. So
    evidence that is missing or cannot be read fails the check. `seen` forgets what earlier checks
    asked for. No Exception of a check comes out of here.
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
    """Say whose error it is that a check raised: ours, or that of the student's function.

    The check judges the reference's evidence by itself. If that raises too, the outcome is ERROR.
    It is FAILED where the student's own error ended a scenario, which then explains it, and where
    evidence is missing or cannot be read. Any other error is one of the exercise, whatever the
    student's function did: an ERROR that earns no points before a person has looked.
    """
    source = author_line(error, declared=check.place)
    problem = str(error)
    if not isinstance(error, DiagnosisFailed):
        problem = f"{type(error).__name__}: {error}"
    broken = Failed(f"the check itself failed: {problem}, raised at {source}", "a verdict")
    broken.source = source
    try:
        check.judge(wanted, wanted)
    except Exception:  # then the check cannot judge anybody
        return Judgement(Outcome.ERROR, broken)
    if isinstance(error, ScenarioRaised):
        try:
            failed = failure_of_scenario(error.raised, function.diagnose(error.raised, seen))
        except DiagnosisFailed as failed_diagnosis:
            return _judge_error(function, check, seen, wanted, failed_diagnosis)
        seen.about(None, error.raised.scenario)  # after the diagnosis, which may ask, too
        return Judgement(Outcome.FAILED, failed, seen.ran)
    if isinstance(error, (MissingEvidence, BadEvidence)):
        happened = f"{UNJUDGED} ({problem}, raised at {source})"
        return Judgement(Outcome.FAILED, Failed(happened, "what the docstring promises"))
    if isinstance(error, DiagnosisFailed):
        # The student's function raised, and that is what the student can mend.
        broken.happened += (
            f"; it was to explain what `{function.name}` raised: {error.raised.short}"
        )
        broken.line = error.raised.line
    return Judgement(Outcome.ERROR, broken, unpaid=True)


def result_of(
    exercise: Exercise,
    function: Function,
    check: Check,
    outcome: Outcome,
    failed: Failed | None = None,
    blocked_by: str | None = None,
) -> CheckResult:
    """The result of one check: its names, claim and points, and what `failed` tells.

    Objects that it describes stand by their type, without an address.
    `blocked_by` is the check that did not pass and is needed. Without `failed`, nothing is told of
    a failure.
    """
    failed = failed or _NOTHING
    return CheckResult(
        exercise=exercise.stem,
        function=function.name,
        check=check.name,
        claim=check.claim,
        outcome=outcome,
        max_points=check.points,
        happened=without_addresses(failed.happened),
        expected=without_addresses(failed.expected),
        line=failed.line,
        misconception=failed.misconception,
        blocked_by=blocked_by,
        at=failed.at,
        ran=failed.ran,
        about=failed.about,
        source=failed.source,
        called_at=failed.called_at,
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

    `kind` is that of the device. Without a reference, the file is its own. `pair` watches the calls
    of both. Evidence is encoded and decoded, as on the way out of a sandbox: a verdict must not
    depend on where it was reached. Raises DojoError where the device, the reference or the day's
    texts cannot be used, OSError for a file of these that cannot be read, KeyboardInterrupt for a
    Ctrl-C, and LeftDebugger.
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
    """Evidence after a way out of a sandbox and back. Raises BadEvidence if it does not survive."""
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
        """Load and run nothing yet; `kind` is that of the device.

        A `submission` that is given is not loaded from the path. With `watching`, what functions do
        will be kept in `pairs`. `references` are by the stem of an exercise.
        """
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

        The results are remembered, and so are the loaded file, in `submission`, and the reference.
        With `watching`, what watched the calls is kept in `pairs`. What is not the student's fault
        is an ERROR, which costs no points. Raises OSError for a file that cannot be read,
        KeyboardInterrupt for a Ctrl-C, and LeftDebugger.
        """
        if function.name not in self._results:
            found = self._grade_or_error(exercise, function, limits)
            self._results[function.name] = blame_helpers(found, function, self.graded)
        return self._results[function.name]

    @property
    def graded(self) -> list[CheckResult]:
        """The results of all functions that were graded so far, in this order."""
        return [result for results in self._results.values() for result in results]

    def fill_cache(self, exercise: Exercise, functions: Iterable[Function]) -> None:
        """Fill the cache of evidence with the reference's, for the functions that the student has
        written.

        For a process that has not run student code. Does nothing for a reference without a cache. A
        DojoError or OSError is dropped here: it is told when a function is graded.
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
        """The reference of an exercise, found once and then remembered.

        Raises NoReference, BadEvidence.
        """
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
        """The results of a function, one for each check.

        They are ERROR where a DojoError says that it could not be graded, and BLOCKED where there
        is nothing to judge by, or an earlier function failed because of the same error in the file.
        An ERROR earns the points of its check, BLOCKED earns none.

        Loads the file if that has not been done, and keeps it in `submission`, and what watched the
        calls in `pairs`. Raises OSError for a file that cannot be read, KeyboardInterrupt for a
        Ctrl-C, and LeftDebugger.
        """
        try:
            found = self._load_and_grade(exercise, function, limits)
        except DojoError as error:
            outcome = Outcome.ERROR
            if isinstance(error, NoReference):
                outcome = Outcome.BLOCKED
            why = Failed(str(error), "a verdict")
            found = [
                result_of(exercise, function, check, outcome, why) for check in function.checks
            ]
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
        """Load the file if that has not been done, and grade one function of it.

        The loaded file is kept in `submission`, and with `watching` what watches both calls in
        `pairs`. Raises DojoError where the device, the reference or the day's texts cannot be used,
        OSError for a file of these that cannot be read, KeyboardInterrupt, and LeftDebugger.
        """
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
