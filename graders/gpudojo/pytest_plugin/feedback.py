"""What a student reads: failures, printed output, points, what to do next."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from gpudojo.grading import load
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.exercise import Check, Exercise
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.pytest_plugin.collection import FunctionChecks
from gpudojo.pytest_plugin.xdist import RunResults

HEAD: Final = 40
TAIL: Final = 10
LONGEST: Final = 400


def arrange(report: Any, checks: FunctionChecks) -> None:
    """Put what the function printed into the report of a failed check, shortened."""
    checks.printed += [(title, content) for title, content in report.sections if title.startswith("Captured")]
    report.sections = [each for each in report.sections if not each[0].startswith("Captured")]
    if report.failed and checks.printed:
        report.sections += [(title, shortened(content)) for title, content in checks.printed]
        checks.printed = []


def shortened(text: str) -> str:
    lines = [line if len(line) <= LONGEST else f"{line[:LONGEST]} …" for line in text.splitlines()]
    if len(lines) > HEAD + TAIL:
        left_out = len(lines) - HEAD - TAIL
        lines[HEAD:-TAIL] = [f"… {left_out:,} lines left out here; pytest -s shows all of them …"]
    return "\n".join(lines) + "\n"


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
    known = misconceptions().get(result.misconception or "")
    if known is not None:
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
    if path.suffix != load.SUFFIX:
        return f"{name}:{line}" + (f"\n{line:>4} | {text}" if text else "")
    try:
        cell, line = load.read(path).place(line)
    except (load.NotANotebook, OSError):
        return name
    return f"{name}, code cell {cell}, line {line}" + (f"\n{line:>4} | {text}" if text else "")


def _source(path: Path, line: int) -> str:
    try:
        if path.suffix == load.SUFFIX:
            lines = load.read(path).source.split("\n")
        else:
            lines = path.read_bytes().decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")
        return lines[line - 1].strip().replace("\0", "\N{SYMBOL FOR NULL}")
    except (OSError, IndexError, load.NotANotebook):
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


BAR_WIDTH = 20
NOT_RUN: Final = "not run"
# What is worth doing first: what is begun before what is not, and never what waits for something else.
ORDER = (Outcome.FAILED, Outcome.TODO)


@dataclass
class Row:
    """One exercise in one file."""

    exercise: str
    got: float = 0.0
    most: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, check: Check, result: CheckResult | None) -> None:
        self.most += check.points
        self.got += result.points if result is not None else 0.0
        self.outcomes[result.outcome if result is not None else NOT_RUN] += 1

    @property
    def state(self) -> str:
        if set(self.outcomes) == {Outcome.PASSED}:
            return "done"
        if set(self.outcomes) == {Outcome.TODO}:
            return "to do"
        names = (Outcome.FAILED, Outcome.ERROR, Outcome.BLOCKED, Outcome.TODO, NOT_RUN)
        return ", ".join(f"{self.outcomes[name]} {name}" for name in names if self.outcomes[name])


def write_summary(reporter: pytest.TerminalReporter, run: RunResults) -> None:
    """Points of every exercise, what could not be judged, and what to do next."""
    if not run.results:
        return
    rows: dict[tuple[str, str], Row] = {}
    for node, (path, exercise, _, check) in run.planned.items():
        key = os.path.relpath(path), exercise.stem
        rows.setdefault(key, Row(key[1])).add(check, run.results.get(node))
    reporter.section("points", sep="=")
    wide = max(len(row.exercise) for row in rows.values())
    several = len({exercise for _, exercise in rows}) < len(rows)
    file = None
    for (shown, _), row in rows.items():
        if several and shown != file:
            file = shown
            reporter.write_line(shown, bold=True)
        _write_row(reporter, row, wide)
    got, most = sum(row.got for row in rows.values()), sum(row.most for row in rows.values())
    reporter.write_line(f"{'in all':{wide}}  {'':{BAR_WIDTH}}  {got:5.4g} of {most:g}", bold=True)
    for note in run.notes:  # files that stopped half-way although what was graded had been defined before
        reporter.write_line(f"note: {note}", yellow=True)
    _write_errors(reporter, [result for result in run.results.values() if result.outcome is Outcome.ERROR])
    _write_next(reporter, run)


def _write_errors(reporter: pytest.TerminalReporter, errors: Sequence[CheckResult]) -> None:
    """What could not be judged, by a mistake in the exercise; where it was made is for the course's author."""
    if not errors:
        return
    count = "1 check" if len(errors) == 1 else f"{len(errors)} checks"
    reporter.write_line(
        f"{count} could not be judged: an error in the exercise, not in your code. Please report it:",
        red=True,
        bold=True,
    )
    for happened in dict.fromkeys(result.happened for result in errors):
        reporter.write_line(f"  {happened}", red=True)


def bar(got: float, most: float) -> str:
    """Full only when everything is there, and empty only when nothing is."""
    share = got / most if most else 0.0
    filled = BAR_WIDTH if share >= 1 else min(max(round(BAR_WIDTH * share), int(share > 0)), BAR_WIDTH - 1)
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def _write_row(reporter: pytest.TerminalReporter, row: Row, wide: int) -> None:
    colour = {"done": {"green": True}, "to do": {"light": True}}.get(row.state, {"yellow": True})
    reporter.write(f"{row.exercise:{wide}}  ")
    reporter.write(bar(row.got, row.most), **colour)
    reporter.write(f"  {row.got:5.4g} of {row.most:<4g}  ")
    reporter.write(f"{row.state}\n", **colour)  # write_line would begin a new line after a run without failures


def _write_next(reporter: pytest.TerminalReporter, run: RunResults) -> None:
    for outcome in ORDER:
        for node, result in ((node, run.results.get(node)) for node in run.planned):
            if result is None or result.outcome is not outcome:
                continue
            name = f"`{result.function}`"
            what = f"write {name}" if outcome is Outcome.TODO else result.claim
            if name not in what:
                what = f"{name}: {what}"
            reporter.write_line(f"next: {what}", bold=True)
            target = f"{os.path.relpath(run.planned[node][0])}::{result.function}"
            reporter.write_line(f"      pytest {shlex.quote(target)}", cyan=True)
            return
    if all(node in run.results and run.results[node].outcome is Outcome.PASSED for node in run.planned):
        reporter.write_line("Everything passes. Well done!", green=True, bold=True)
