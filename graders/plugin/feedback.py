"""What does a student read when a check does not pass? What happened, what was expected, where, why, and a hint."""

from __future__ import annotations

import textwrap
from pathlib import Path

from graders.curriculum import MISCONCEPTIONS, Exercise
from graders.results import CheckResult, Outcome

WIDTH = 100


def feedback(result: CheckResult, exercise: Exercise, path: Path, hints: int) -> str:
    """The text of one check that did not pass."""
    function = next(f for f in exercise.functions if f.name == result.function)
    if result.outcome is Outcome.TODO:
        return f"to do: `{result.function}` is still a stub in {path.name}."
    if result.outcome is Outcome.BLOCKED:
        return f"blocked: the check `{result.blocked_by}` of `{result.function}` has to pass first."
    lines = [result.claim, *_part("happened", result.happened), *_part("expected", result.expected)]
    if result.line is not None:
        lines += _part("line", f"{path.name}:{result.line}  {_source(path, result.line)}")
    if result.misconception in MISCONCEPTIONS:
        known = MISCONCEPTIONS[result.misconception]
        lines += _part("mistake", known.name) + _part("why", known.why)
    for hint in function.hints[: max(hints, 1)]:
        lines += _part("hint", hint)
    return "\n".join(lines)


def _part(name: str, text: str) -> list[str]:
    first = f"  {name:9} "
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)) if text else []


def _source(path: Path, line: int) -> str:
    try:
        return path.read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
