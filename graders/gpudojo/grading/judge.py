"""Judges evidence against the reference's, and explains the results: the line to show, what a time-out means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

import msgspec

from gpudojo.grading.checks import scenario_raised
from gpudojo.grading.source_locator import line_to_show
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.errors import author_line
from gpudojo.model.evidence import CallStatus, Evidence, Observation, Raised, ScenarioRaised
from gpudojo.model.exercise import Check, Exercise, Failed, Function, Misconception, Seen, Todo, pattern_key
from gpudojo.model.results import CheckResult, Outcome

UNJUDGED = "what it did or returned is so unlike the reference's that it cannot be judged"
NONE = re.compile(r"\b(returned|is|gave) None\b")
RECURSION = "an end; a function that calls itself needs a case in which it does not"
_references: dict[tuple[str, str], tuple[Evidence, Seen]] = {}  # the last one of each function, converted once


def judge_function(
    exercise: Exercise,
    function: Function,
    evidence: Evidence,
    reference: Evidence,
    lines: Mapping[str, int] | None = None,
    signature: str = "(…)",
) -> list[CheckResult]:
    """One result for each check of a function, by its evidence and the reference's.

    `lines` are those of names and patterns in the student's source, `signature` the one the function should have.
    """
    results = judge(exercise, function, evidence, reference)
    return [explained(result, function, evidence.observations, lines or {}, signature) for result in results]


def judge(exercise: Exercise, function: Function, evidence: Evidence, reference: Evidence) -> list[CheckResult]:
    """One result for each check of a function."""
    seen = Seen(evidence.observations)
    wanted = _converted(reference)
    todo = any(observation.status is CallStatus.TODO for observation in evidence.observations.values())
    passed: set[str] = set()
    results = []
    for check in function.checks:
        failed, blocked = None, None if todo else next((need for need in check.needs if need not in passed), None)
        if todo or blocked is not None:
            outcome = Outcome.TODO if todo else Outcome.BLOCKED
        else:
            outcome, failed = _outcome(function, check, seen, wanted)
        if outcome is Outcome.PASSED:
            passed.add(check.name)
        results.append(result_of(exercise, function, check, outcome, failed, blocked))
    return results


def _converted(reference: Evidence) -> Seen:
    key = reference.exercise, reference.function
    known = _references.get(key)
    if known is None or known[0] is not reference:
        known = _references[key] = reference, Seen(reference.observations)
    return known[1]


def _outcome(function: Function, check: Check, seen: Seen, wanted: Seen) -> tuple[Outcome, Failed | None]:
    """What came of a check, and why.

    One that raises is an error of ours, which costs the student nothing, if it raises for the reference's evidence
    too; otherwise the check fails. Evidence is made where student code runs: if evidence that cannot be read were not
    held against the student, spoiling it would pay.
    """
    seen.ran = None
    try:
        check.judge(seen, wanted)
    except Failed as error:
        error.ran = seen.ran if error.ran is None else error.ran
        return Outcome.FAILED, error
    except Todo as error:
        return Outcome.TODO, Failed(str(error), "")
    except Exception as error:
        said = f"{type(error).__name__}: {error}, raised at {author_line(error)}"
        try:
            check.judge(wanted, wanted)
        except Exception:
            return Outcome.ERROR, Failed(f"the check itself failed: {said}", "a verdict")
        if isinstance(error, ScenarioRaised):
            failed = scenario_raised(error.raised, function.diagnose(error.raised, seen))
            seen.about(None, error.raised.scenario)
            failed.ran = seen.ran
            return Outcome.FAILED, failed
        return Outcome.FAILED, Failed(f"{UNJUDGED} ({said})", "what the docstring promises")
    return Outcome.PASSED, None


def result_of(
    exercise: Exercise,
    function: Function,
    check: Check,
    outcome: Outcome,
    failed: Failed | None = None,
    blocked_by: str | None = None,
) -> CheckResult:
    """The result of one check."""
    failed = failed or Failed("", "")
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
    result = msgspec.structs.replace(result, misconception=_rather(result, function, lines))
    line = shown(result, function, lines)
    happened, expected = result.happened, result.expected
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
        what = f"`{function.name}`" if first.status is CallStatus.RAISED else "the file itself"
        where = f" (scenario `{scenario}`)" if first.status is CallStatus.RAISED else ""
        at = "; this is the line it was at" if raised.line is not None else ""
        happened = f"time-out: {what} was {raised.message}{where}{at}"
        expected = "an end; look for a loop that never ends, or for something it waits for that never comes"
    elif raised.type == "Unusable":
        happened = f"{raised.message} (scenario `{scenario}`)"
        expected = "what the docstring promises"
    elif raised.type == "RecursionError":
        expected = RECURSION
    elif raised.type == "TypeError" and raised.line is None and first.status is CallStatus.RAISED:
        return _other_signature(result, function, lines, signature)
    return msgspec.structs.replace(result, line=line, happened=happened, expected=expected)


def _other_signature(result: CheckResult, function: Function, lines: Mapping[str, int], signature: str) -> CheckResult:
    expected, line = f"a function that can be called as `{function.name}{signature}`", lines.get(function.name)
    key = result.misconception or "wrong-signature"
    return msgspec.structs.replace(result, line=line, expected=expected, misconception=key)


def _rather(result: CheckResult, function: Function, lines: Mapping[str, int]) -> str | None:
    """The misconception, where the source tells another one than what happened."""
    if result.misconception is None:
        forgotten = NONE.search(result.happened) and pattern_key(function.name, "no return") in lines
        return "return-forgotten" if forgotten else None
    known = misconceptions()
    mistake = known.get(result.misconception)
    other = known.get(mistake.rather) if mistake is not None else None
    if mistake is None or other is None or line_to_show(mistake.cause, function.name, lines, result.ran) is not None:
        return result.misconception
    found = line_to_show(other.cause, function.name, lines, result.ran)
    return result.misconception if found is None else mistake.rather


def shown(result: CheckResult, function: Function, lines: Mapping[str, int]) -> int | None:
    """The line to change: of the mistake itself, the recorded one, or that of a pattern; one that was executed."""
    known = misconceptions().get(result.misconception or "", Misconception("", ""))
    cause = line_to_show((*known.cause, *result.at), function.name, lines, result.ran)
    if cause is not None or result.line is not None:
        return result.line if cause is None else cause
    patterns = (*function.signs_for(result.misconception), *known.at, *function.signs_for(result.check))
    patterns = (*patterns, "" if function.is_value else "return")  # what came of the call, if nothing else is known
    return line_to_show(patterns, function.name, lines, result.ran)
