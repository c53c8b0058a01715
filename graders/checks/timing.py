"""Is it fast enough? The fastest times of student, loop and reference, judged with a generous bar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from graders.curriculum.verdicts import Failed
from graders.probes.speed import BAR

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
