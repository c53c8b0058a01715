"""Terminal output: failed checks, captured output, points, and what to do next."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from virtual_cuda.ledger import count_phrase

from gpudojo.grading.colours import style_of_label
from gpudojo.grading.feedback import (
    ALL_PASSED,
    BAR_WIDTH,
    MISSING,
    WIDTH,
    ExercisePoints,
    Part,
    describe_line,
    headline_and_parts,
    hint_parts,
    hints_about,
    lay_out_part,
    pages_about,
    progress_bar,
)
from gpudojo.model.exercise import Check, Exercise, LineRole
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.pytest_plugin import POINTS_NOTE

# Of a long output, so many lines at its beginning and at its end are shown, each shortened.
FIRST_LINES: Final = 40
LAST_LINES: Final = 10
LINE_CHARACTERS: Final = 400
LABEL_WIDTH: Final = 12
# Characters of a bar, by the columns that the terminal has at least.
BAR_WIDTHS: Final = {100: BAR_WIDTH, 72: BAR_WIDTH // 2}
SHORTEST_NAME: Final = 12


def markup_of(style: str) -> dict[str, bool]:
    """A style in the words of rich as keywords for pytest's terminal writer."""
    words = style.replace("magenta", "purple").split()
    return dict.fromkeys(words, True)


def move_output(report: Any, printed: list[tuple[str, str]]) -> None:
    """Move what a function printed from a report to `printed`, as titles and texts.

    If the check failed, put that, shortened, into the report again, and empty `printed`.
    """
    others = []
    for section in report.sections:
        title, _ = section
        if title.startswith("Captured"):
            printed.append(section)
        else:
            others.append(section)
    report.sections = others
    if report.failed:
        for title, content in printed:
            shortened = shorten_output(content)
            report.sections.append((title, shortened))
        printed.clear()


def shorten_output(text: str) -> str:
    """The first and last lines of a long text, and how many were left out.

    Long lines are cut, too.
    """
    lines = []
    for line in text.splitlines():
        shortened = line[:LINE_CHARACTERS]
        if shortened != line:
            shortened += " …"
        lines.append(shortened)
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 0:
        note = f"… {left_out:,} lines left out here; pytest -s shows all of them …"
        lines[FIRST_LINES:-LAST_LINES] = [note]
    return "\n".join(lines) + "\n"


class Feedback(TerminalRepr):
    """The text of one check that did not pass, coloured if the terminal has colours.

    `option` is the name of the option for hints, `blocks` are checks that wait for this one, and
    `first` is a check with the same cause, which says the rest.
    """

    def __init__(
        self,
        result: CheckResult,
        exercise: Exercise,
        path: Path,
        hints: int,
        option: str = "--hints",
        blocks: Sequence[str] = (),
        first: str | None = None,
    ) -> None:
        """Make headline and parts; `hints` is how many of them are shown.

        `option` is the name of the option for hints, `blocks` are checks that wait for this one,
        and `first` is a check with the same cause. Raises BadDay or OSError where hints or mistakes
        of the day cannot be read, and KeyError if the exercise lacks the function.
        """
        place = ""
        if result.line is not None:
            place = describe_line(path, result.line)
        self.headline, self.parts = headline_and_parts(result, place, path.name)
        if first is not None:
            labels = ("happened", "expected", result.line_role)
            self.parts = [part for part in self.parts if part.label in labels]
            text = f"fix {first}: the line that fails there is used here as well"
            self.parts.append(Part("first", text))
        elif result.outcome is Outcome.FAILED:
            function = exercise.function_named(result.function)
            every_hint = hints_about(result, function)
            one_more = min(hints, len(every_hint)) + 1
            pages = pages_about(result, exercise)
            self.parts += hint_parts(every_hint, pages, hints, f"{option} {one_more}")
        if blocks:
            names = ", ".join(blocks)
            self.parts.append(Part("blocks", f"{names}: checked as soon as this passes"))
        # What pytest shows in its short summary, and what a JUnit file says first.
        short = self.headline
        if result.outcome is Outcome.FAILED:
            short = result.happened
        self.reprcrash = ReprFileLocation(str(path), result.line or 1, short)

    def __str__(self) -> str:
        """The text without colours."""
        lines = [self.headline]
        for label, text in self.parts:
            lines += lay_out_part(label, text)
        return "\n".join(lines)

    def toterminal(self, tw: Any) -> None:
        """Write the text to pytest's terminal writer, in lines that fit.

        Labels are bold and in the colour of their part.
        """
        width = min(WIDTH, tw.fullwidth)
        for line in textwrap.wrap(self.headline, width):
            tw.line(line, bold=True)
        for label, text in self.parts:
            first, *rest = lay_out_part(label, text, width) or [""]
            style = style_of_label(label)
            tw.write(first[:LABEL_WIDTH], bold=True, **markup_of(style))
            is_bold = label in (*LineRole, "mistake")
            tw.line(first[LABEL_WIDTH:], bold=is_bold)
            for line in rest:
                tw.line(line, bold=is_bold)


@dataclass
class ReportedCheck:
    """One collected check of a run, with its result once it has run."""

    path: Path
    exercise: Exercise
    check: Check
    result: CheckResult | None = None
    note: str = ""  # about the whole file

    @property
    def outcome(self) -> Outcome | None:
        """What came of it; None before it has run."""
        if self.result is None:
            return None
        return self.result.outcome

    @property
    def position(self) -> tuple[str, str, int]:
        """What checks are sorted by: path, exercise, and the place of the check in the course."""
        checks: list[Check] = []
        for function in self.exercise.functions:
            checks += function.checks
        place = checks.index(self.check)
        return os.path.relpath(self.path), self.exercise.stem, place


@dataclass
class MissingFile:
    """An exercise whose file is not where the others are."""

    folder: Path
    exercise: Exercise
    instead: str  # the name of a file that may be it

    @property
    def note(self) -> str:
        """A sentence that says which file is missing where, and which other one may be it."""
        folder = os.path.relpath(self.folder)
        sentence = f"{self.exercise.stem}.py is missing in {folder}"
        if self.instead:
            sentence += f". Is {self.instead} that file? Give it its name back"
        return sentence


class _RowKey(NamedTuple):
    """A row in the table of points: a notebook may hold several exercises."""

    path: str
    exercise: str


_Rows = dict[_RowKey, ExercisePoints]


def write_summary(
    reporter: pytest.TerminalReporter,
    checks: Sequence[ReportedCheck],
    missing: Sequence[MissingFile] = (),
) -> None:
    """Write the points of each exercise, what could not be judged, and what to do next.

    Nothing is written if no check has run.
    """
    if not any(check.result for check in checks):
        return
    checks = sorted(checks, key=lambda check: check.position)
    rows = _rows_of_points(checks, missing)
    # Else the first line written after a run without failures begins with an empty one.
    reporter.ensure_newline()
    reporter.section("points", sep="=")
    _write_points(reporter, rows)
    about_points = reporter.config.getini(POINTS_NOTE)
    if about_points:
        reporter.write_line(about_points)
    notes = [check.note for check in checks]
    notes += [file.note for file in missing]
    for note in dict.fromkeys(notes):  # each once
        if note:
            _write_in_lines(reporter, f"note: {note}", yellow=True)
    _write_errors(reporter, checks)
    _write_next(reporter, checks, missing)


def _rows_of_points(checks: Sequence[ReportedCheck], missing: Sequence[MissingFile]) -> _Rows:
    """The rows of the table, in the order of the checks; with missing files, by path."""
    rows: _Rows = {}
    for check in checks:
        path = os.path.relpath(check.path)
        stem = check.exercise.stem
        row = rows.setdefault(_RowKey(path, stem), ExercisePoints(stem))
        row.add_check(check.check.points, check.result)
    if not missing:
        return rows
    for file in missing:
        stem = file.exercise.stem
        path = os.path.relpath(file.folder / f"{stem}.py")
        empty = ExercisePoints(stem, max_points=float(file.exercise.points))
        row = rows.setdefault(_RowKey(path, stem), empty)
        row.outcomes[MISSING] += 1
    in_order = sorted(rows.items())
    return dict(in_order)


class _Widths(NamedTuple):
    """Columns of the table of points. A bar of 0 columns is left out."""

    name: int
    bar: int


def _widths_for(rows: Iterable[ExercisePoints], columns: int) -> _Widths:
    """The widths for a terminal of so many columns.

    That of the bars does not depend on what is run.
    """
    longest_state = 0
    longest_name = 0
    for row in rows:
        longest_state = max(longest_state, len(row.state))
        longest_name = max(longest_name, len(row.exercise))
    bar = 0
    for at_least, width in BAR_WIDTHS.items():
        if columns >= at_least:
            bar = width
            break
    # What a row has besides the name.
    others = len("    0 of 14      ") + longest_state
    if bar:
        others += bar + 2
    room = max(columns - others, SHORTEST_NAME)
    return _Widths(min(longest_name, room), bar)


def _write_points(reporter: pytest.TerminalReporter, rows: _Rows) -> None:
    """Write a row for each exercise, and the total.

    Where an exercise is in several files, the rows stand below the names of their files.
    """
    widths = _widths_for(rows.values(), reporter._tw.fullwidth)
    exercises = {key.exercise for key in rows}
    several_files = len(exercises) < len(rows)
    path = None
    points = 0.0
    most = 0.0
    for key, row in rows.items():
        points += row.points
        most += row.max_points
        if several_files and key.path != path:
            path = key.path
            reporter.write_line(path, bold=True)
        _write_row(reporter, row, widths)
    total = "total".ljust(widths.name + 2)
    if widths.bar:
        total += " " * (widths.bar + 2)
    reporter.write_line(f"{total}{points:5.4g} of {most:g}", bold=True)


def _write_row(reporter: pytest.TerminalReporter, row: ExercisePoints, widths: _Widths) -> None:
    """Write name, bar, points and state of one exercise, in columns of these widths."""
    name = row.exercise
    if len(name) > widths.name:
        name = name[: widths.name - 1] + "…"
    if row.state == "done":
        colour = "green"
    elif row.state == "to do":
        colour = "light"
    else:
        colour = "yellow"
    markup = {colour: True}
    reporter.write(f"{name:{widths.name}}  ")
    if widths.bar:
        bar = progress_bar(row.points, row.max_points, widths.bar)
        reporter.write(f"{bar}  ", **markup)
    reporter.write(f"{row.points:5.4g} of {row.max_points:<4g}  ")
    reporter.write_line(row.state, **markup)


def _write_errors(reporter: pytest.TerminalReporter, checks: Sequence[ReportedCheck]) -> None:
    """Write which checks could not be judged, if any."""
    errors = []
    for check in checks:
        if check.outcome is Outcome.ERROR and check.result is not None:
            errors.append(check.result.happened)  # its place is for the course's author
    if not errors:
        return
    count = count_phrase(len(errors), "check")
    reporter.write_line(
        f"{count} could not be judged: an error in the exercise, not in your code. "
        "Please report it:",
        red=True,
        bold=True,
    )
    for happened in dict.fromkeys(errors):
        reporter.write_line(f"  {happened}", red=True)


def _write_in_lines(reporter: pytest.TerminalReporter, text: str, **markup: bool) -> None:
    """Write a text in lines that fit the terminal."""
    lines = textwrap.wrap(
        text, reporter._tw.fullwidth, subsequent_indent="      ", break_on_hyphens=False
    )
    for line in lines:
        reporter.write_line(line, **markup)


def _write_next(
    reporter: pytest.TerminalReporter,
    checks: Sequence[ReportedCheck],
    missing: Sequence[MissingFile],
) -> None:
    """Write what to do next: first what is begun, then what is to do.

    A check that another one blocks is never next.
    """
    for outcome in (Outcome.FAILED, Outcome.TODO):
        for check in checks:
            if check.outcome is outcome and check.result is not None:
                _write_next_check(reporter, check.path, check.result)
                return
    if missing:
        return
    for check in checks:
        if check.outcome is not Outcome.PASSED:
            return
    reporter.write_line(ALL_PASSED, green=True, bold=True)


def _write_next_check(reporter: pytest.TerminalReporter, path: Path, result: CheckResult) -> None:
    """Write which check is next, and the command that runs its function."""
    name = f"`{result.function}`"
    what = result.claim
    if result.outcome is Outcome.TODO:
        what = f"write {name}"
    if name not in what:
        what = f"{name}: {what}"
    _write_in_lines(reporter, f"next: {what}", bold=True)
    file = os.path.relpath(path)
    node = shlex.quote(f"{file}::{result.function}")
    reporter.write_line(f"      pytest {node}", cyan=True)
