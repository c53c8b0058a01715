"""Terminal output: failed checks, captured output, points, what to do next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from gpudojo.grading.wording import ALL_PASSED, BAR_WIDTH, ExercisePoints, bar, compose, hint_parts, laid_out, where
from gpudojo.model.exercise import Check, Exercise
from gpudojo.model.results import CheckResult, Outcome

HEAD: Final = 40
TAIL: Final = 10
LONGEST: Final = 400
INDENT: Final = 12
COLOURS: Final[dict[str, dict[str, bool]]] = {
    "happened": {"red": True},
    "expected": {"green": True},
    "mistake": {"yellow": True},
    "hint": {"cyan": True},
}


def move_output(report: Any, printed: list[tuple[str, str]]) -> None:
    """Collects in `printed` what a function printed, and puts it, shortened, into the report of its failed check."""
    printed += [(title, content) for title, content in report.sections if title.startswith("Captured")]
    report.sections = [each for each in report.sections if not each[0].startswith("Captured")]
    if report.failed and printed:
        report.sections += [(title, shortened(content)) for title, content in printed]
        printed.clear()


def shortened(text: str) -> str:
    """The first and last lines of a long text."""
    lines = [line if len(line) <= LONGEST else f"{line[:LONGEST]} …" for line in text.splitlines()]
    if len(lines) > HEAD + TAIL:
        left_out = len(lines) - HEAD - TAIL
        lines[HEAD:-TAIL] = [f"… {left_out:,} lines left out here; pytest -s shows all of them …"]
    return "\n".join(lines) + "\n"


class Feedback(TerminalRepr):
    """The text of one check that did not pass, coloured where the terminal has colours."""

    def __init__(
        self, result: CheckResult, exercise: Exercise, path: Path, hints: int, option: str = "--hints"
    ) -> None:
        place = where(path, result.line) if result.line is not None else ""
        self.headline, self.parts = compose(result, place, path.name)
        if result.outcome is Outcome.FAILED:
            function = next(f for f in exercise.functions if f.name == result.function)
            every = function.hints_for(result.misconception, result.check)
            self.parts += hint_parts(every, exercise, hints, f"{option} {min(hints, len(every)) + 1}")
        # What pytest shows in its short summary, and what a JUnit file says first.
        short = result.happened if result.outcome is Outcome.FAILED else self.headline
        self.reprcrash = ReprFileLocation(str(path), result.line or 1, short)

    def __str__(self) -> str:
        return "\n".join([self.headline, *(line for name, text in self.parts for line in laid_out(name, text))])

    def toterminal(self, tw: Any) -> None:
        tw.line(self.headline, bold=True)
        for name, text in self.parts:
            first, *rest = laid_out(name, text) or [""]
            tw.write(first[:INDENT], bold=True, **COLOURS.get(name.partition(" ")[0], {}))
            emphasis = {"bold": True} if name in ("line", "mistake") else {}
            for line in (first[INDENT:], *rest):
                tw.line(line, **emphasis)


@dataclass
class ReportedCheck:
    """One collected check of a run, with its result once it has run."""

    path: Path
    exercise: Exercise
    check: Check
    result: CheckResult | None = None
    note: str = ""  # about the whole file

    @property
    def position(self) -> tuple[str, str, int]:
        """The order of the course, whatever order the checks ran in."""
        every = [check for function in self.exercise.functions for check in function.checks]
        return os.path.relpath(self.path), self.exercise.stem, every.index(self.check)


def write_summary(reporter: pytest.TerminalReporter, checks: Sequence[ReportedCheck]) -> None:
    """The points of each exercise, what could not be judged, what to do next; nothing where no check has run."""
    if not any(check.result for check in checks):
        return
    checks = sorted(checks, key=lambda check: check.position)
    rows: dict[tuple[str, str], ExercisePoints] = {}
    for check in checks:
        key = os.path.relpath(check.path), check.exercise.stem
        rows.setdefault(key, ExercisePoints(key[1])).add(check.check.points, check.result)
    reporter.section("points", sep="=")
    wide = max(len(row.exercise) for row in rows.values())
    several = len({exercise for _, exercise in rows}) < len(rows)
    file = None
    for (path, _), row in rows.items():
        if several and path != file:
            file = path
            reporter.write_line(path, bold=True)
        colour = {"done": {"green": True}, "to do": {"light": True}}.get(row.state, {"yellow": True})
        reporter.write(f"{row.exercise:{wide}}  ")
        reporter.write(bar(row.points, row.max_points), **colour)
        reporter.write(f"  {row.points:5.4g} of {row.max_points:<4g}  ")
        reporter.write(f"{row.state}\n", **colour)  # write_line would begin a new line after a run without failures
    points, most = sum(row.points for row in rows.values()), sum(row.max_points for row in rows.values())
    reporter.write_line(f"{'total':{wide}}  {'':{BAR_WIDTH}}  {points:5.4g} of {most:g}", bold=True)
    for note in dict.fromkeys(check.note for check in checks if check.note):
        reporter.write_line(f"note: {note}", yellow=True)
    _write_errors(
        reporter, [check.result for check in checks if check.result and check.result.outcome is Outcome.ERROR]
    )
    _write_next(reporter, checks)


def _write_errors(reporter: pytest.TerminalReporter, errors: Sequence[CheckResult]) -> None:
    """What could not be judged because of an error in the exercise; its place is for the course's author."""
    if not errors:
        return
    count = "1 check" if len(errors) == 1 else f"{len(errors)} checks"
    said = f"{count} could not be judged: an error in the exercise, not in your code. Please report it:"
    reporter.write_line(said, red=True, bold=True)
    for happened in dict.fromkeys(result.happened for result in errors):
        reporter.write_line(f"  {happened}", red=True)


def _write_next(reporter: pytest.TerminalReporter, checks: Sequence[ReportedCheck]) -> None:
    """First what is begun, then what is to do; never what another check blocks."""
    for outcome in (Outcome.FAILED, Outcome.TODO):
        for check in checks:
            if check.result is None or check.result.outcome is not outcome:
                continue
            name = f"`{check.result.function}`"
            what = f"write {name}" if outcome is Outcome.TODO else check.result.claim
            reporter.write_line(f"next: {what if name in what else f'{name}: {what}'}", bold=True)
            node = f"{os.path.relpath(check.path)}::{check.result.function}"
            reporter.write_line(f"      pytest {shlex.quote(node)}", cyan=True)
            return
    if all(check.result is not None and check.result.outcome is Outcome.PASSED for check in checks):
        reporter.write_line(ALL_PASSED, green=True, bold=True)
