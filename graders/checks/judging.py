"""What is the verdict on one function? Each check's claim, judged in order, with what blocks what."""

from __future__ import annotations

from graders.curriculum.exercise import Check, Exercise, Function, Seen
from graders.curriculum.verdicts import Failed, Todo
from graders.evidence import Evidence, Status
from graders.results import CheckResult, Outcome

UNJUDGED = "what it did or returned is so unlike the reference's that it cannot be judged"


def judge(exercise: Exercise, function: Function, evidence: Evidence, reference: Evidence) -> list[CheckResult]:
    """One result for each check of a function."""
    seen, wanted = evidence.observations, reference.observations
    statuses = {observation.status for observation in seen.values()}
    passed: set[str] = set()
    results = []
    for check in function.checks:
        if Status.TODO in statuses:
            result = _result(exercise, function, check, Outcome.TODO)
        else:
            result = _judge_one(exercise, function, check, seen, wanted, passed)
        if result.outcome is Outcome.PASSED:
            passed.add(check.name)
        results.append(result)
    return results


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
        return _stumbled(exercise, function, check, wanted, error)
    return _result(exercise, function, check, Outcome.PASSED)


def _stumbled(exercise: Exercise, function: Function, check: Check, wanted: Seen, error: Exception) -> CheckResult:
    """A check that cannot judge is our fault, and costs nothing, unless it is the student's evidence it stumbles over.

    It was made where student code ran: with credit for evidence that no check can read, spoiling it would pay.
    """
    said = f"{type(error).__name__}: {error}"
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
