"""What does a student read when a check does not pass? What happened, what was expected, where, why, and a hint."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any, Final

from _pytest._code.code import ReprFileLocation, TerminalRepr

from graders.curriculum import MISCONCEPTIONS, Exercise
from graders.probes import notebooks
from graders.results import CheckResult, Outcome

WIDTH: Final = 100
DOCS: Final = "https://pytorch.org/docs/stable/"
INDENT: Final = 12
COLOURS: Final[dict[str, dict[str, bool]]] = {
    "happened": {"red": True},
    "expected": {"green": True},
    "mistake": {"yellow": True},
    "hint": {"cyan": True},
}
Part = tuple[str, str]  # a label and its text


class Feedback(TerminalRepr):
    """The text of one check that did not pass, in colour where there is some."""

    def __init__(self, result: CheckResult, exercise: Exercise, path: Path, hints: int) -> None:
        self.result = result
        self.headline, self.parts = compose(result, exercise, path, hints)
        # What pytest shows in its short summary, and what a JUnit file says first.
        self.reprcrash = ReprFileLocation(str(path), result.line or 1, _short(result, self.headline))

    def __str__(self) -> str:
        return "\n".join([self.headline, *(line for name, text in self.parts for line in laid_out(name, text))])

    def toterminal(self, tw: Any) -> None:
        tw.line(self.headline, bold=True)
        for name, text in self.parts:
            first, *rest = laid_out(name, text) or [""]
            tw.write(
                first[:INDENT],
                bold=True,
                **{k: v for k, v in COLOURS.get(name.partition(" ")[0], {}).items() if k != "bold"},
            )
            emphasis = {"bold": True} if name in ("line", "mistake") else {}
            tw.line(first[INDENT:], **emphasis)
            for line in rest:
                tw.line(line, **emphasis)


def feedback(result: CheckResult, exercise: Exercise, path: Path, hints: int) -> str:
    """The same as plain text."""
    return str(Feedback(result, exercise, path, hints))


def compose(result: CheckResult, exercise: Exercise, path: Path, hints: int) -> tuple[str, list[Part]]:
    """A headline, and what is said below it."""
    if result.outcome is Outcome.TODO:
        return f"to do: {result.happened or f'`{result.function}` is still a stub in {path.name}'}.", []
    if result.outcome is Outcome.BLOCKED:
        return f"blocked: the check `{result.blocked_by}` of `{result.function}` has to pass first.", []
    if result.outcome is Outcome.ERROR:
        return "This is gpudojo's fault, not yours; it costs you no points. Please report it.", [
            ("claim", result.claim),
            ("happened", result.happened),
        ]
    parts: list[Part] = [("happened", result.happened), ("expected", result.expected)]
    if result.line is not None:
        parts.append(("line", where(path, result.line)))
    if result.misconception in MISCONCEPTIONS:
        known = MISCONCEPTIONS[result.misconception]
        parts += [("mistake", known.name), ("why", " ".join(known.why.split()))]
    parts += _hints(result, exercise, hints)
    return result.claim, [(name, text) for name, text in parts if text]


def _hints(result: CheckResult, exercise: Exercise, hints: int) -> list[Part]:
    function = next(f for f in exercise.functions if f.name == result.function)
    every = function.hints_for(result.misconception, result.check)
    shown = every[: max(hints, 0)]
    parts = [(f"hint {number}" if len(shown) > 1 else "hint", hint) for number, hint in enumerate(shown, 1)]
    if 0 < len(shown) < len(every):
        parts.append(("", f"(hint {len(shown)} of {len(every)}; one more with --hints {len(shown) + 1})"))
    elif shown and exercise.reading:
        parts.append(("read", "\n".join(DOCS + page.removeprefix(DOCS) for page in exercise.reading)))
    return parts


def where(path: Path, line: int) -> str:
    """A place in the student's file and the text there; in a notebook by cell."""
    name, text = os.path.relpath(path), _source(path, line)
    if path.suffix != notebooks.SUFFIX:
        return f"{name}:{line}" + (f"\n{line:>4} | {text}" if text else "")
    try:
        cell, line = notebooks.read(path).place(line)
    except (notebooks.NotANotebook, OSError):
        return name
    return f"{name}, code cell {cell}, line {line}" + (f"\n{line:>4} | {text}" if text else "")


def _source(path: Path, line: int) -> str:
    try:
        if path.suffix == notebooks.SUFFIX:
            lines = notebooks.read(path).source.split("\n")
        else:
            lines = path.read_bytes().decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")
        return lines[line - 1].strip().replace("\0", "\N{SYMBOL FOR NULL}")
    except (OSError, IndexError, notebooks.NotANotebook):
        return ""


def laid_out(name: str, text: str) -> list[str]:
    """A label, and its text beside it; the lines of the text stay lines."""
    first = f"  {name:9} "
    lines: list[str] = []
    for line in text.splitlines():
        # Code and drawings are aligned, and a web address is of no use when it is broken.
        lines += textwrap.wrap(
            line,
            WIDTH,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        )
        first = " " * len(first)
    return lines


def _short(result: CheckResult, headline: str) -> str:
    return result.happened if result.outcome is Outcome.FAILED else headline
