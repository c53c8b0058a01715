"""What students read about a failed check: its texts, and their layout for terminal, notebook and watch.

`headline_and_parts` makes a headline and labelled parts of a result; `hint_parts` makes the parts of its hints; `lay_out_part` puts a
part into lines for a terminal.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpudojo.grading import load
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.exercise import Exercise, Function, was_executed
from gpudojo.model.results import (
    NOT_YOUR_ERROR,
    CheckResult,
    Outcome,
    describe_blocked,
    hints_for_result,
)

WIDTH: Final = 100
BAR_WIDTH: Final = 20
DOCS: Final = "https://pytorch.org/docs/stable/"
NOT_RUN: Final = "not run"
MISSING: Final = "missing"
ALL_PASSED: Final = "Everything passes. Well done!"
Part = tuple[str, str]  # a label and its text


def headline_and_parts(
    result: CheckResult, place: str = "", file: str = ""
) -> tuple[str, list[Part]]:
    """A headline, and the parts below it; `place` is the line to show, `file` the student's file."""
    if result.outcome is Outcome.TODO:
        stub = f"`{result.function}` is still a stub" + (f" in {file}" if file else "")
        return f"to do: {result.happened or stub}.", []
    if result.outcome is Outcome.BLOCKED:
        return describe_blocked(result), []
    if result.outcome is Outcome.ERROR:
        return NOT_YOUR_ERROR, [("claim", result.claim), ("happened", result.happened)]
    parts: list[Part] = [
        ("happened", result.happened),
        ("expected", result.expected),
        ("line", place),
    ]
    if known := misconceptions().get(result.misconception or ""):
        parts += [("mistake", known.name), ("why", " ".join(known.why.split()))]
    if result.max_points:
        parts.append(
            ("worth", f"{result.max_points:g} {'point' if result.max_points == 1 else 'points'}")
        )
    parts = [part for part in parts if part[1]]
    raised = re.match(r"scenario `(\w+)` raised: ", result.happened)
    if raised and result.check != "runs":  # the claim itself has not been looked at
        parts.insert(0, ("claim", result.claim))
        return f"`{result.function}` runs in scenario `{raised[1]}` without an error.", parts
    return result.claim, parts


def check_to_mend_first(
    result: CheckResult, results: Sequence[CheckResult], exercise: Exercise
) -> str | None:
    """An earlier check that fails by the same mistake, and is to be mended first.

    It fails at the same line, and the mistake, the error or the hints are the same; or, if it is one of another
    function, at a line that the failing call has executed, by the same mistake or as the line shown.
    """
    hints = next((f.hints_for for f in exercise.functions if f.name == result.function), None)
    for other in results[: results.index(result)]:
        if (
            other.outcome is not Outcome.FAILED
            or len({other.misconception, result.misconception} - {None}) > 1
        ):
            continue
        same = other.misconception == result.misconception is not None
        there = other.line == result.line is not None
        if other.function == result.function and there:
            keys = (each.about or each.check for each in (other, result))
            if (
                same
                or " raised" in result.happened
                or hints is None
                or len(set(map(hints, keys))) == 1
            ):
                return other.check
        elif (
            other.function != result.function
            and was_executed(other.line or 0, result.ran or ())
            and (same or there)
        ):
            return f"{other.function}::{other.check}"
    return None


def hints_about(result: CheckResult, function: Function) -> tuple[str, ...]:
    """The hints about one failure, and no others."""
    return hints_for_result(result, function, misconceptions().get(result.misconception or ""))


def hint_parts(every: Sequence[str], exercise: Exercise, count: int, more: str) -> list[Part]:
    """The first `count` hints. `more` says how to see one more; after the last one comes what to read."""
    shown = every[: max(count, 0)]
    parts = [
        (f"hint {number}" if len(shown) > 1 else "hint", hint)
        for number, hint in enumerate(shown, 1)
    ]
    if 0 < len(shown) < len(every):
        parts.append(("", f"(hint {len(shown)} of {len(every)}; one more with {more})"))
    elif shown and exercise.reading:
        parts.append(
            ("read", "\n".join(DOCS + page.removeprefix(DOCS) for page in exercise.reading))
        )
    return parts


def describe_line(path: Path, line: int) -> str:
    """A line of the student's file and its text; in a notebook by cell."""
    name = os.path.relpath(path)
    try:
        if path.suffix == load.NOTEBOOK_SUFFIX:
            notebook = load.read_notebook(path)
            lines = notebook.source.split("\n")
            cell, number = notebook.place(line)
            name = f"{name}, code cell {cell}, line {number}"
        else:
            lines = (
                path.read_bytes()
                .decode("utf-8", errors="replace")
                .replace("\r\n", "\n")
                .split("\n")
            )
            name = f"{name}:{line}"
            number = line
        text = lines[line - 1].strip().replace("\0", "\N{SYMBOL FOR NULL}")
    except (OSError, IndexError, load.NotANotebook):
        return name if path.suffix == load.NOTEBOOK_SUFFIX else f"{os.path.relpath(path)}:{line}"
    return f"{name}\n{number:>4} | {text}" if text else name


def lay_out_part(name: str, text: str, width: int = WIDTH) -> list[str]:
    """A label, and its text beside it, at most `width` characters wide; the lines of the text stay lines."""
    first = f"  {name:9} "
    lines: list[str] = []
    for line in text.splitlines():
        # Code and drawings are aligned, and a web address is of no use when it is broken.
        after = " " * len(first)
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=first,
            subsequent_indent=after,
            break_long_words=False,
            break_on_hyphens=False,
        )
        first = after
    return lines


def progress_bar(points: float, most: float, width: int = BAR_WIDTH) -> str:
    """A bar of so many characters: full only with all points, and empty only with none."""
    share = points / most if most else 0.0
    filled = width if share >= 1 else min(max(round(width * share), int(share > 0)), width - 1)
    return "█" * filled + "░" * (width - filled)


@dataclass
class ExercisePoints:
    """One exercise in the table of points."""

    exercise: str
    points: float = 0.0
    max_points: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, max_points: float, result: CheckResult | None) -> None:
        """Counts one check; None: it has not run."""
        self.max_points += max_points
        self.points += result.points if result is not None else 0.0
        self.outcomes[result.outcome if result is not None else NOT_RUN] += 1

    @property
    def state(self) -> str:
        if set(self.outcomes) <= {Outcome.PASSED}:
            return "done"
        if set(self.outcomes) == {Outcome.TODO}:
            return "to do"
        if MISSING in self.outcomes:
            return MISSING
        names = (Outcome.FAILED, Outcome.ERROR, Outcome.BLOCKED, Outcome.TODO, NOT_RUN)
        return ", ".join(f"{self.outcomes[name]} {name}" for name in names if self.outcomes[name])
