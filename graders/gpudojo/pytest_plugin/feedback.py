"""What a student reads: failures, printed output, points, what to do next."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from gpudojo.grading.explain import BAR_WIDTH, bar, compose, laid_out
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


INDENT: Final = 12
COLOURS: Final[dict[str, dict[str, bool]]] = {
    "happened": {"red": True},
    "expected": {"green": True},
    "mistake": {"yellow": True},
    "hint": {"cyan": True},
}


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


def _short(result: CheckResult, headline: str) -> str:
    return result.happened if result.outcome is Outcome.FAILED else headline


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
