"""The grading engine: load a file, observe its functions, judge what was seen, explain the results.

    load → observe                  gpudojo.grading.observe   runs student code
              └─ evidence ─▶ judge → explain   gpudojo.grading.engine   never runs it, and imports no torch

`grade_function` and `FileGrader` do all four in this process: for pytest, notebooks, lint and release. For a class,
the sandbox's child does the first two, and the grader's process calls `judge_function` with the evidence it was sent.
What runs student code is imported where it is called, so that torch is not imported with this module.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpudojo.grading.checks import scenario_raised
from gpudojo.grading.limits import UNLIMITED, Limits
from gpudojo.grading.load import solved_names
from gpudojo.grading.references import CachedReference, Reference, reference_for
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.errors import DamagedEvidence, DojoError, author_line
from gpudojo.model.evidence import (
    AnyEvidence,
    AnyObservation,
    CallStatus,
    Evidence,
    Raised,
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
    Misconception,
    Seen,
    Todo,
    line_to_show,
    pattern_key,
)
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.model.time_outs import EXPECTED_TO_END, describe_time_out

if TYPE_CHECKING:
    from gpudojo.grading.load import Submission
    from gpudojo.grading.watching import Pair


UNJUDGED = "what it did or returned is so unlike the reference's that it cannot be judged"
NONE = re.compile(r"\b(returned|is|gave|chose) None\b")
RECURSION = "an end; a function that calls itself needs a case in which it does not"
_NOTHING: Final = Failed("", "")  # is said of a check that did not fail
# The reference's evidence of each function that was used last, with its facts converted once.
_references: dict[tuple[str, str], tuple[Evidence, Seen]] = {}


def judge_function(
    exercise: Exercise,
    function: Function,
    evidence: AnyEvidence,
    reference: Evidence,
    lines: Mapping[str, int] | Callable[[], Mapping[str, int]] | None = None,
    signature: str = "(…)",
) -> list[CheckResult]:
    """Judge and explain each check of a function, by its evidence and the reference's.

    `lines` are those of names and patterns in the student's source, or a function that returns
    them, which is called if a check failed. `signature` is the one the function should have.
    Raises DamagedEvidence where facts were spoiled after they were received.
    """
    results = judge(exercise, function, evidence, reference)
    if not any(result.outcome is Outcome.FAILED for result in results):
        return results
    found = lines() if callable(lines) else lines or {}
    return [
        explained(result, function, evidence.observations, found, signature) for result in results
    ]


class Judgement(NamedTuple):
    """What came of a check: why it failed, and which lines the calls executed that it is about."""

    outcome: Outcome
    failed: Failed | None = None
    ran: Lines | None = None


def judge(
    exercise: Exercise, function: Function, evidence: AnyEvidence, reference: Evidence
) -> list[CheckResult]:
    """Judge each check of a function; one that needs a check that did not pass is blocked."""
    if any(seen.status is CallStatus.TODO for seen in evidence.observations.values()):
        return [result_of(exercise, function, check, Outcome.TODO) for check in function.checks]
    seen = Seen(evidence.observations)
    wanted = _facts_of_reference(reference)
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


def _facts_of_reference(reference: Evidence) -> Seen:
    """The facts in the reference's evidence; it is the same for many submissions."""
    key = reference.exercise, reference.function
    known = _references.get(key)
    if known is None or known[0] is not reference:
        known = reference, Seen(reference.observations)
        _references[key] = known
    return known[1]


def judge_check(function: Function, check: Check, seen: Seen, wanted: Seen) -> Judgement:
    """Judge one check, by what was seen of the student's function and of the reference.

    A check that raises is an error of ours, which costs the student nothing, if it raises for the
    reference's evidence too; otherwise the check fails. Evidence is made where student code runs:
    if evidence that cannot be read were not held against the student, spoiling it would pay.
    Raises DamagedEvidence, which is no verdict on the student.
    """
    seen.begin()
    try:
        check.judge(seen, wanted)
    except Failed as failed:
        ran = seen.ran if failed.ran is None else None
        return Judgement(Outcome.FAILED, failed, ran)
    except Todo as todo:
        return Judgement(Outcome.TODO, Failed(str(todo), ""))
    except DamagedEvidence:
        raise
    except Exception as error:  # whatever a check raises for evidence that it did not expect
        return _judge_error(function, check, seen, wanted, error)
    return Judgement(Outcome.PASSED)


def _judge_error(
    function: Function, check: Check, seen: Seen, wanted: Seen, error: Exception
) -> Judgement:
    """Say whose error it is that a check raised: ours, or that of the student's function."""
    said = f"{type(error).__name__}: {error}, raised at {author_line(error)}"
    try:
        check.judge(wanted, wanted)
    except Exception:  # then the check cannot judge anybody
        return Judgement(Outcome.ERROR, Failed(f"the check itself failed: {said}", "a verdict"))
    if isinstance(error, ScenarioRaised):
        failed = scenario_raised(error.raised, function.diagnose(error.raised, seen))
        seen.about(None, error.raised.scenario)
        return Judgement(Outcome.FAILED, failed, seen.ran)
    return Judgement(Outcome.FAILED, Failed(f"{UNJUDGED} ({said})", "what the docstring promises"))


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


def explained(
    result: CheckResult,
    function: Function,
    found: Mapping[str, AnyObservation],
    lines: Mapping[str, int],
    signature: str,
) -> CheckResult:
    """The result with what the check does not know: the line to show, and what a time-out or a missing name means."""
    if result.outcome is not Outcome.FAILED:
        return result
    result = msgspec.structs.replace(result, misconception=_rather(result, function, lines))
    line = shown(result, function, lines)
    happened = result.happened
    expected = result.expected
    ended = ((n, o) for n, o in found.items() if o.status is not CallStatus.RETURNED)
    # An edge case that ended with an error explains the check that asked for it, and no other.
    about = ((n, o) for n, o in ended if o.raised is None or o.raised.short in happened)
    scenario, first = next(about, ("", None))
    if first is None:  # no probe ended with an error, but scenarios of it may have
        if "raised: RecursionError" in happened:
            expected = RECURSION
        elif result.line is None and f"raised: TypeError: {function.name}() " in happened:
            return _other_signature(result, function, lines, signature)
        return msgspec.structs.replace(result, line=line, expected=expected)
    raised = first.raised or Raised("", "", None)
    if first.status is CallStatus.MISSING:
        names = [name for name in lines if name.isidentifier() and name != function.name]
        near = difflib.get_close_matches(function.name, names, 1, 0.75)
        if near:
            line = lines[near[0]]
            happened += f"; is `{near[0]}` meant to be it?"
    elif first.timed_out:
        in_function = first.status is CallStatus.RAISED
        happened = describe_time_out(
            function.name if in_function else None,
            raised.message,
            scenario if in_function else "",
            line_is_shown=raised.line is not None,
        )
        expected = EXPECTED_TO_END
    elif raised.type == "Unusable":
        happened = f"{raised.message} (scenario `{scenario}`)"
        expected = "what the docstring promises"
    elif raised.type == "RecursionError":
        expected = RECURSION
    elif raised.type == "TypeError" and raised.line is None and first.status is CallStatus.RAISED:
        return _other_signature(result, function, lines, signature)
    return msgspec.structs.replace(result, line=line, happened=happened, expected=expected)


def _other_signature(
    result: CheckResult, function: Function, lines: Mapping[str, int], signature: str
) -> CheckResult:
    expected = f"a function that can be called as `{function.name}{signature}`"
    line = lines.get(function.name)
    key = result.misconception or "wrong-signature"
    return msgspec.structs.replace(result, line=line, expected=expected, misconception=key)


def _rather(result: CheckResult, function: Function, lines: Mapping[str, int]) -> str | None:
    """The misconception, where the source tells another one than what happened."""

    def executes(patterns: Iterable[str]) -> bool:
        return line_to_show(patterns, function.name, lines, result.ran) is not None

    if result.misconception is None:
        lost = executes(["unused itself("]) or (executes(["end"]) and not executes(["return"]))
        forgotten = lost or pattern_key(function.name, "no return") in lines
        return "return-forgotten" if forgotten and NONE.search(result.happened) else None
    known = misconceptions()
    mistake = known.get(result.misconception)
    if mistake is not None and executes(mistake.unless):
        return None
    if mistake is None or executes(mistake.cause):
        return result.misconception
    other = known.get(mistake.rather)
    if other is not None and executes(other.cause) and not executes(other.unless):
        return mistake.rather
    return None if mistake.from_source and lines and not function.is_value else result.misconception


def shown(result: CheckResult, function: Function, lines: Mapping[str, int]) -> int | None:
    """The line to change: of the mistake itself, the recorded one, or that of a pattern; one that was executed."""
    known = misconceptions().get(result.misconception or "", Misconception("", ""))
    cause = line_to_show((*known.cause, *result.at), function.name, lines, result.ran)
    if cause is not None or result.line is not None:
        return result.line if cause is None else cause
    patterns = (
        *function.signs_for(result.misconception),
        *known.at,
        *function.signs_for(result.check),
    )
    patterns = (
        *patterns,
        "" if function.is_value else "return",
    )  # what came of the call, if nothing else is known
    return line_to_show(patterns, function.name, lines, result.ran)


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
    seen = decode_evidence(
        encode_evidence(observe(exercise, yours, submission, kind, seed, limits))
    )
    if reference is None:
        return judge_function(exercise, function, seen, seen, submission.lines)
    wanted = seen
    if all(
        each.status in (CallStatus.RETURNED, CallStatus.RAISED)
        for each in seen.observations.values()
    ):
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
        self.path = path
        self.kind = kind
        self.seed = seed
        self.watching = watching
        self.submission = submission
        self.pairs: dict[str, Pair] = {}  # by the name of the function
        self._results: dict[str, list[CheckResult]] = {}
        self._references: dict[str, Reference] = dict(references or {})

    def results(
        self, exercise: Exercise, function: Function, limits: Limits = UNLIMITED
    ) -> list[CheckResult]:
        """One result for each check. What is not the student's fault is an ERROR, which costs no points."""
        if function.name not in self._results:
            try:
                found = self._grade(exercise, function, limits)
            except DojoError as error:
                why = Failed(str(error), "a verdict")
                found = [
                    result_of(exercise, function, check, Outcome.ERROR, why)
                    for check in function.checks
                ]
            if (
                self.submission is not None
                and self.submission.broken
                and function.name not in self.submission.names
            ):
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
            if isinstance(reference, CachedReference):
                missing = [
                    each for each in functions if not reference.has(each, self.kind, self.seed)
                ]
                written = solved_names(self.path) if missing else ()
                for function in missing:
                    if function.name in written:
                        reference.prepare(function, self.kind, self.seed)

    def _reference(self, exercise: Exercise) -> Reference:
        found = self._references.get(exercise.stem)
        if found is None:
            found = reference_for(self.path, exercise)
            if self.watching and isinstance(found, CachedReference):
                found = found.written
            self._references[exercise.stem] = found
        return found

    def _told_once(
        self, exercise: Exercise, function: Function, found: list[CheckResult]
    ) -> list[CheckResult]:
        """The results; those of a function that the same error of the file keeps from being graded are blocked."""
        for other, told in self._results.items():
            if (
                told[0].outcome is found[0].outcome is Outcome.FAILED
                and told[0].happened == found[0].happened
            ):
                by = f"{other}::{told[0].check}"
                return [
                    result_of(exercise, function, c, Outcome.BLOCKED, None, by)
                    for c in function.checks
                ]
        return found

    def _grade(self, exercise: Exercise, function: Function, limits: Limits) -> list[CheckResult]:
        from gpudojo.grading.observe import load_file
        from gpudojo.grading.watching import Pair

        # Before the student's file: that may spoil the process it is loaded into.
        reference = self._reference(exercise)
        if isinstance(reference, CachedReference) and not reference.has(
            function, self.kind, self.seed
        ):
            reference.load()
        if self.submission is None:
            self.submission = load_file(self.path, limits)
        pair = None
        if self.watching:
            pair = self.pairs[function.name] = Pair.over(
                exercise, function, reference.timelines(exercise, function)
            )
        return grade_function(
            exercise, function, self.submission, reference, self.kind, self.seed, limits, pair
        )
