"""Judges evidence against the reference's, and the checks that many exercises share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from gpudojo.days.day8.pixel_race import BAR
from gpudojo.grading.explain import author_line
from gpudojo.model.evidence import CallStatus, Evidence, Observation
from gpudojo.model.exercise import Check, Exercise, Failed, Function, Seen, Todo
from gpudojo.model.results import CheckResult, Outcome

# What a probe calls the tensor that each of these is about.
_LEFT_BEHIND = {"inputs-on-cpu": "inputs", "targets-on-cpu": "targets", "numpy-on-device-tensor": "tensor"}


def runs(function: Function, points: float = 0, diagnose: Callable[[str, str], str | None] | None = None) -> None:
    """Declare the check that all others of the function need; `diagnose` knows more from scenario and message."""

    def judge(seen: Seen, wanted: Seen) -> None:
        for name, observation in seen.items():
            if observation.status is CallStatus.RETURNED:
                continue
            name = observation.facts.get("scenario", name)
            failure = _failure(function.name, name, observation)
            if diagnose is not None and observation.raised is not None:
                failure.misconception = diagnose(name, observation.raised.message)
            copied = observation.facts.get("copied", {})
            if (key := failure.misconception) in _LEFT_BEHIND and _LEFT_BEHIND[key] in copied:
                # It is on the device, copied by this line just before; what was used is the original.
                failure.line, failure.misconception = copied[_LEFT_BEHIND[key]], "result-thrown-away"
            raise failure

    judge.__name__ = "runs"
    judge.__doc__ = f"`{function.name}` runs in every scenario without an error."
    function.check(points, needs=())(judge)


def _failure(function: str, scenario: str, observation: Observation) -> Failed:
    if observation.status is CallStatus.MISSING:
        return Failed(f"the file defines no function `{function}`", f"a function named `{function}`")
    raised = observation.raised
    assert raised is not None
    where = "the file could not be run" if observation.status is CallStatus.BROKEN else f"scenario `{scenario}` raised"
    return Failed(
        f"{where}: {raised.type}" + (f": {raised.message.splitlines()[0]}" if raised.message else ""),
        "no error",
        raised.line,
        diagnosis(raised.message),
    )


def between_gpus(message: str) -> bool:
    """Whether torch complains of tensors on two GPUs: one that was asked for by its index, and the first."""
    return "cuda:0" in message and "cuda:1" in message


def diagnosis(message: str) -> str | None:
    """The misconception behind one of torch's own complaints about devices."""
    if "same device" not in message and "Input type" not in message and "to numpy" not in message:
        return None
    if "device type tensor to numpy" in message:
        return "numpy-on-device-tensor"
    if re.search(r"got target is on cpu|nll_loss|cross_entropy", message):
        return "targets-on-cpu"
    if re.search(
        r"got (mat1|input|self|index) is on cpu|got (weight|bias) is on cuda|Input type \(torch\.FloatTensor\)", message
    ):
        return "inputs-on-cpu"
    if re.search(r"is on cuda:\d+, different from other tensors on cpu|weight type \(torch\.FloatTensor\)", message):
        return "model-not-moved"
    return None


Case = dict[str, Any]
Diagnose = Callable[[str, dict[str, Case]], tuple[str | None, int | None]]


def cases(seen: Seen) -> dict[str, Case]:
    """What was seen in each scenario, whichever probe looked."""
    return {name: case for observation in seen.values() for name, case in observation.facts.items()}


def said(raised: Case) -> str:
    """An error in one line."""
    return f"{raised['type']}: {raised['message'].splitlines()[0][:200]}" if raised["message"] else str(raised["type"])


def runs_in_all(
    function: Function, points: float, scenarios: Iterable[str] | None = None, diagnose: Diagnose | None = None
) -> None:
    """Declare the check that all others need: no error in these scenarios, or in any.

    `diagnose` gets the scenario that raised beside all others, and may name a misconception and a better line.
    """
    plain = Function(function.name, ())
    runs(plain)  # a function that is missing, a file that cannot be run, a probe that stumbled
    chosen = None if scenarios is None else tuple(scenarios)

    def judge(seen: Seen, wanted: Seen) -> None:
        plain.checks[0].judge(seen, wanted)
        found, all_of_them = cases(seen), cases(wanted)
        for name in all_of_them:
            if name not in found:  # evidence comes from where student code ran: what is not there was not passed
                raise Failed(f"nothing was seen of scenario `{name}`", "what the function did there")
        for name in all_of_them if chosen is None else chosen:
            raised = found[name].get("raised")
            if raised is None:
                continue
            key, line = (None, None) if diagnose is None else diagnose(name, found)
            raise Failed(f"scenario `{name}` raised: {said(raised)}", "no error", line or raised["line"], key)

    judge.__name__ = "runs"
    judge.__doc__ = plain.checks[0].claim
    function.check(points, needs=())(judge)


TOO_GOOD: Final = 50.0  # times the reference's own speedup: no kernel is that much better, but a slowed loop is
WIDTH: Final = 24


def judge_speed(facts: dict[str, Any], wanted: dict[str, Any], same: Callable[[Any, Any], bool]) -> None:
    """Fails where a timed output is wrong, the student is not `BAR` times as fast as the loop, or is impossibly so."""
    outputs, right = facts["outputs"], facts["loop_outputs"]
    for number, found in enumerate(outputs):
        # The loop ran beside student code; where it can be, its answer is compared with one that did not, as well.
        answers = [right[number], *wanted["loop_outputs"][number : number + 1]]
        if not all(same(found, answer) for answer in answers):
            raise Failed(f"the result of timed call {number + 1} of {len(outputs)} is wrong", "the loop's values")
    best = _speedup(wanted, "student")  # the reference, when it was the one looked at
    speedup = _speedup(facts, "student")
    needed = min(BAR, best / 3)  # a device on which the reference itself gains little asks for less
    if speedup < needed:
        raise Failed(
            f"{speedup:.1f} times as fast as the loop\n{bars(facts, best)}",
            f"at least {needed:.1f} times as fast; the reference is {best:.0f} times as fast",
        )
    if min(facts["student"], facts["loop"]) <= 0 or speedup > TOO_GOOD * best:
        raise Failed(
            f"{speedup:.0f} times as fast as the loop, which is too good to be true\n{bars(facts, best)}",
            f"about as fast as the reference, {best:.0f} times as fast as the loop",
        )


def bars(facts: dict[str, Any], best: float) -> str:
    """Three numbers with a bar each; where the reference did not run beside the student, its speedup is used."""
    loop, student = facts["loop"], facts["student"]
    reference = facts["reference"] or loop / best
    lines = []
    for name, seconds in (("the loop", loop), ("yours", student), ("reference", reference)):
        filled = "█" * round(WIDTH * min(seconds / max(loop, student, 1e-9), 1.0)) or "▏"
        times = loop / seconds if seconds > 0 else float("inf")
        lines.append(f"{name:9}  {filled:{WIDTH}}  {seconds * 1000:8.2f} ms  {times:6.1f} ×")
    return "\n".join(lines)


def _speedup(facts: dict[str, Any], name: str) -> float:
    return float(facts["loop"] / facts[name]) if facts[name] > 0 else float("inf")


UNJUDGED = "what it did or returned is so unlike the reference's that it cannot be judged"


def judge(exercise: Exercise, function: Function, evidence: Evidence, reference: Evidence) -> list[CheckResult]:
    """One result for each check of a function."""
    seen, wanted = evidence.observations, reference.observations
    statuses = {observation.status for observation in seen.values()}
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
