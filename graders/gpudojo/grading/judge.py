"""Judges evidence against the reference's: one result for each check of a function."""

from __future__ import annotations

from gpudojo.model.errors import author_line
from gpudojo.model.evidence import CallStatus, Evidence
from gpudojo.model.exercise import Check, Exercise, Failed, Function, Seen, Todo
from gpudojo.model.results import CheckResult, Outcome

UNJUDGED = "what it did or returned is so unlike the reference's that it cannot be judged"
_references: dict[tuple[str, str], tuple[Evidence, Seen]] = {}  # the last one of each function, converted once


def judge(exercise: Exercise, function: Function, evidence: Evidence, reference: Evidence) -> list[CheckResult]:
    """One result for each check of a function."""
    seen = Seen(evidence.observations)
    wanted = _converted(reference)
    statuses = {observation.status for observation in evidence.observations.values()}
    passed: set[str] = set()
    results = []
    for check in function.checks:
        if CallStatus.TODO in statuses:
            result = _result(exercise, function, check, Outcome.TODO)
        else:
            result = _judge_one(exercise, function, check, seen, wanted, passed)
        if result.outcome is Outcome.PASSED:
            passed.add(check.name)
        results.append(result)
    return results


def _converted(reference: Evidence) -> Seen:
    key = reference.exercise, reference.function
    known = _references.get(key)
    if known is None or known[0] is not reference:
        known = _references[key] = reference, Seen(reference.observations)
    return known[1]


def _judge_one(
    exercise: Exercise, function: Function, check: Check, seen: Seen, wanted: Seen, passed: set[str]
) -> CheckResult:
    blocked = next((need for need in check.needs if need not in passed), None)
    if blocked is not None:
        return _result(exercise, function, check, Outcome.BLOCKED, blocked_by=blocked)
    try:
        check.judge(seen, wanted)
    except Failed as error:
        return _result(exercise, function, check, Outcome.FAILED, error)
    except Todo as error:
        return _result(exercise, function, check, Outcome.TODO, Failed(str(error), ""))
    except Exception as error:
        return _cannot_judge(exercise, function, check, wanted, error)
    return _result(exercise, function, check, Outcome.PASSED)


def _cannot_judge(exercise: Exercise, function: Function, check: Check, wanted: Seen, error: Exception) -> CheckResult:
    """The result of a check that raised. It is an error of ours, which costs the student nothing, if the check raises
    for the reference's evidence too; otherwise the check fails. Evidence is made where student code runs: if evidence
    that cannot be read were not held against the student, spoiling it would pay.
    """
    said = f"{type(error).__name__}: {error}, raised at {author_line(error)}"
    try:
        check.judge(wanted, wanted)
    except Exception:
        ours = Failed(f"the check itself failed: {said}", "a verdict")
        return _result(exercise, function, check, Outcome.ERROR, ours)
    theirs = Failed(f"{UNJUDGED} ({said})", "what the docstring promises")
    return _result(exercise, function, check, Outcome.FAILED, theirs)


def _result(
    exercise: Exercise,
    function: Function,
    check: Check,
    outcome: Outcome,
    failed: Failed | None = None,
    blocked_by: str | None = None,
) -> CheckResult:
    return CheckResult(
        exercise=exercise.stem,
        function=function.name,
        check=check.name,
        claim=check.claim,
        outcome=outcome,
        max_points=check.points,
        happened=failed.happened if failed else "",
        expected=failed.expected if failed else "",
        line=failed.line if failed else None,
        misconception=failed.misconception if failed else None,
        blocked_by=blocked_by,
        at=failed.at if failed else (),
    )
