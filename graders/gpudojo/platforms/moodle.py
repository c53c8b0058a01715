"""Moodle: the grading worksheet that was downloaded there (--worksheet), with grades and
feedback filled in; several, as of sections, with --worksheet for each.

A worksheet cannot be made here: its ids are Moodle's. Its headings are in the language of the
course, so columns are found by known headings, and otherwise by their content: the maximum is the
same number in every line, and the grade is left of it. Numbers get a decimal comma where the
worksheet has it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import ClassResults, SubmissionRow, round_half_up
from gpudojo.model.results_file import exact_points, format_points
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_csv
from gpudojo.platforms._tables import Table, letters_of, match_lines, number_in, read_worksheet
from gpudojo.platforms._texts import lines_for_student, one_line

USES: Final = ("worksheet",)
HEADINGS_OF_MAXIMUM: Final = (
    "Maximum Grade",
    "Maximum mark",
    "Bestwertung",
    "Note maximale",
    "Calificación máxima",
    "Valutazione massima",
    "Nota máxima",
    "Maximumcijfer",
)
WORDS_FOR_FEEDBACK: Final = (
    "feedback",
    "kommentar",
    "comment",
    "retroaliment",
    "comentari",
    "commenti",
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write the worksheets with grades and feedback of all, or of the one asked for.

    Returns them. What does not match is told by `options.say`. Raises CannotExport without a
    worksheet, and where one does not fit or would be overwritten, and OSError where it cannot be
    written.
    """
    if not options.worksheet:
        raise CannotExport(
            "moodle",
            "give the assignment's grading worksheet with --worksheet; Moodle offers it under "
            '"Download grading worksheet" when offline grading is switched on for the assignment',
        )
    # What the worksheets have.
    sheets = [_Sheet(path) for path in options.worksheet]
    filled = [target / sheet.path.name for sheet in sheets]
    _refuse_to_overwrite(filled, sheets)
    people = {}
    for number, sheet in enumerate(sheets):
        for position, person in sheet.people.items():
            people[number, position] = person

    # Fill in their lines.
    above_maximum = 0
    for (number, position), row in match_lines(people, rows, "moodle", options):
        above_maximum += row.final.points > row.final.max_points
        sheets[number].fill_in(position, row, options)

    # Say what the teacher should know, and write them.
    if above_maximum:
        options.say(
            f"students with more points than the maximum, for extra credit: {above_maximum}; "
            "they get the maximum, because Moodle refuses more."
        )
    for sheet in sheets:
        if sheet.feedback_column is None:
            options.say(f"{sheet.path} has no column for feedback; only grades are filled in.")
    written = []
    for file, sheet in zip(filled, sheets, strict=True):
        table = sheet.table
        lines = [table.headings, *table.rows]
        written.append(save_csv(file, lines, table.delimiter, table.mark))
    return written


class _Sheet:
    """A worksheet that is filled in."""

    def __init__(self, path: Path) -> None:
        """Read it, and find its columns. Raises CannotExport where that is not possible."""
        self.path = path
        self.table, self.people = read_worksheet(path)
        self.maximum_column = _column_of_maximum(self.table, path)
        self.feedback_column = _column_of_feedback(self.table, self.maximum_column)

    def fill_in(self, position: int, row: SubmissionRow, options: Options) -> None:
        """Put the grade and feedback of a row into a line, from 0.

        Raises CannotExport where the assignment is worth something else in Moodle.
        """
        line = self.table.rows[position]
        _require_same_maximum(line[self.maximum_column], row, self.path)
        line[self.maximum_column - 1] = _grade_in_words(row, like=line[self.maximum_column])
        if self.feedback_column is not None:
            line[self.feedback_column] = _feedback_in_html(row, options)


def _refuse_to_overwrite(filled: Sequence[Path], sheets: Sequence[_Sheet]) -> None:
    """Raise CannotExport where a worksheet would be written over, or two have one name."""
    for number, (file, sheet) in enumerate(zip(filled, sheets, strict=True)):
        if file.resolve() == sheet.path.resolve():
            raise CannotExport(
                "moodle", f"{sheet.path} would be overwritten; give another folder with --out"
            )
        if file in filled[:number]:
            raise CannotExport(
                "moodle", f"two worksheets are called {file.name}; give one of them another name"
            )


def _require_same_maximum(maximum_there: str, row: SubmissionRow, path: Path) -> None:
    """Raise CannotExport where the assignment is worth something else in Moodle."""
    maximum = row.final.max_points
    if number_in(maximum_there) == maximum:
        return
    raise CannotExport(
        "moodle",
        f"the maximum is {maximum_there} in {path} and {format_points(maximum)} here; "
        "change the assignment's maximum grade in Moodle and download the worksheet again",
    )


def _grade_in_words(row: SubmissionRow, like: str) -> str:
    """Return the grade, at most the maximum, with the decimal sign of another number."""
    grade = exact_points(min(round_half_up(row.final.points), row.final.max_points))
    if "," in like:
        return grade.replace(".", ",")
    return grade


def _feedback_in_html(row: SubmissionRow, options: Options) -> str:
    """Return the feedback as HTML: what a student wrote is text in it, never markup."""
    lines = lines_for_student(row, options.exercises)
    return "<br>".join(html.escape(one_line(line)) for line in lines)


def _column_of_feedback(table: Table, maximum_column: int) -> int | None:
    """Return the first column right of the maximum whose heading speaks of feedback; else None."""
    for column in range(maximum_column + 1, len(table.headings)):
        heading = letters_of(table.headings[column])
        if any(word in heading for word in WORDS_FOR_FEEDBACK):
            return column
    return None


def _column_of_maximum(table: Table, path: Path) -> int:
    """Return the column of the maximum grade; the grade is left of it.

    Raises CannotExport where no column, or more than one, can be it.
    """
    known_headings = {letters_of(heading) for heading in HEADINGS_OF_MAXIMUM}
    columns = range(2, len(table.headings))
    known = [column for column in columns if letters_of(table.headings[column]) in known_headings]
    fitting = [column for column in known or columns if _may_be_maximum(table, column)]
    if len(fitting) != 1:
        raise CannotExport(
            "moodle",
            f"the column of grades was not found in {path}; "
            "download the worksheet of an assignment graded in points",
        )
    return fitting[0]


def _may_be_maximum(table: Table, column: int) -> bool:
    """True if a column has one positive number, and left of it are grades up to that number."""
    numbers = {number_in(row[column]) for row in table.rows}
    if len(numbers) != 1:
        return False
    maximum = numbers.pop()
    if maximum is None or maximum <= 0:
        return False
    return all(_is_grade(row[column - 1], maximum) for row in table.rows)


def _is_grade(cell: str, maximum: float) -> bool:
    """True for an empty cell, and for a number from 0 to the maximum."""
    if cell.strip() in ("", "-"):
        return True
    grade = number_in(cell)
    return grade is not None and 0 <= grade <= maximum
