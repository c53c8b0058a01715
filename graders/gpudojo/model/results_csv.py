"""Writes results.csv: one line for each submission. A column is one line of a table here."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.model.errors import printable_text
from gpudojo.model.results import SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import (
    RowWriter,
    format_points,
    replacing_file,
    without_surrogates,
)

# With a byte order mark, by which Excel knows that a table is UTF-8.
TABLE_ENCODING: Final = "utf-8-sig"

# A cell that begins so would be run as a formula. Some programs drop tab and carriage return and
# run what follows; the last four are full-width signs.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def spreadsheet_safe(cell: str) -> str:
    """The text, with an apostrophe before what a spreadsheet would take for a formula.

    Numbers stay numbers.
    """
    if not cell.startswith(_FORMULA_STARTS):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell


# ---- columns -----------------------------------------------------------------------------------


class CsvColumn(NamedTuple):
    """A column: its heading, and how its cell is made of a row."""

    heading: str
    cell: Callable[[SubmissionRow], str]


def _on_one_line(name: str) -> str:
    """A name from a file system, without what cannot be printed."""
    return printable_text(without_surrogates(name))


def _submission_date(row: SubmissionRow) -> str:
    """When it was handed in; empty where that is not known."""
    if row.timing:
        return row.timing.submitted
    return ""


def _lateness_text(row: SubmissionRow) -> str:
    """Hours where they are known, below one hour minutes or seconds. Empty where it was in time."""
    if row.timing is None or not row.timing.late:
        return ""
    seconds = row.timing.late_seconds
    if seconds is None:
        return "late"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 60:
        return f"{seconds // 60} min"
    return f"{seconds} s"


def _penalty_points(row: SubmissionRow) -> str:
    """The points that being late costs; empty for none."""
    if row.timing is None or not row.timing.penalty:
        return ""
    return format_points(row.timing.penalty)


def _extended_deadline(row: SubmissionRow) -> str:
    """The deadline of a student who has an extension; else empty."""
    if row.timing is None or not row.timing.extended:
        return ""
    return row.timing.deadline


def _attempt_count(row: SubmissionRow) -> str:
    """How many submissions there are; `row.attempts` is empty where there is one or none."""
    if row.attempts:
        return str(len(row.attempts))
    if row.status is SubmissionStatus.ABSENT:
        return "0"
    return "1"


def _override_texts(row: SubmissionRow) -> str:
    """What people decided, such as "04_x::f::runs: 2 (It runs.); late: in time"."""
    texts = []
    for name, given in row.overrides:
        texts.append(_with_comment(f"{name}: {format_points(given.points)}", given.comment))
    if row.timing is not None and row.timing.decided_by_hand:
        delay = _lateness_text(row) or "in time"
        texts.append(_with_comment(f"late: {delay}", row.timing.comment))
    return "; ".join(texts)


def _with_comment(text: str, comment: str) -> str:
    """The text, with the comment of a person behind it where there is one."""
    if not comment:
        return text
    return f"{text} ({comment})"


def _review_text(row: SubmissionRow) -> str:
    """Who reviewed it, when, and the comment; empty where nobody did."""
    if row.reviewed is None:
        return ""
    text = f"reviewed by {row.reviewed.by}, {row.reviewed.at[:10]}"
    if row.reviewed.comment:
        text += f": {row.reviewed.comment}"
    return text


# Before the exercises, whose columns have their points.
FIRST_COLUMNS: Final = (
    CsvColumn("submission", lambda row: _on_one_line(row.submission)),
    CsvColumn("student", lambda row: _on_one_line(row.student or "")),
    CsvColumn("id", lambda row: row.id),
    CsvColumn("email", lambda row: row.email),
    CsvColumn("section", lambda row: row.section),
    CsvColumn("status", lambda row: row.status.value),
    CsvColumn("score", lambda row: format_points(row.score)),
    CsvColumn("max_score", lambda row: format_points(row.max_score)),
)
# After the exercises.
LAST_COLUMNS: Final = (
    CsvColumn("group", lambda row: row.group),
    CsvColumn("points", lambda row: format_points(row.final.points)),
    CsvColumn("out_of", lambda row: format_points(row.final.max_points)),
    CsvColumn("submitted", _submission_date),
    CsvColumn("late", _lateness_text),
    CsvColumn("penalty", _penalty_points),
    CsvColumn("extended_to", _extended_deadline),
    CsvColumn("attempts", _attempt_count),
    CsvColumn("overrides", _override_texts),
    CsvColumn("to_grade", lambda row: "; ".join(row.to_grade)),
    CsvColumn("reason", lambda row: row.reason),
    CsvColumn("notes", lambda row: "; ".join(row.notes)),
    CsvColumn("needs_human", lambda row: "; ".join(row.review)),
    CsvColumn("review", _review_text),
)
# No exercise may have one of these names.
HEADINGS: Final = frozenset(column.heading for column in (*FIRST_COLUMNS, *LAST_COLUMNS))


def _exercise_column(exercise: str) -> CsvColumn:
    """The column of an exercise (`04_…`): its points, empty where it was not graded."""

    def points(row: SubmissionRow) -> str:
        """The points in the exercise; empty where it was not graded."""
        for each in row.exercises:
            if each.exercise == exercise:
                return format_points(each.score)
        return ""

    return CsvColumn(exercise, points)


# ---- the file ----------------------------------------------------------------------------------


@contextlib.contextmanager
def open_table(path: Path, exercises: Iterable[str]) -> Iterator[RowWriter]:
    """A CSV file to write to: gives a function that writes the line of one submission.

    `exercises` are stems, a column each. The file takes the place of `path` at the end of the
    block, and leaves no trace after an error. Raises OSError where it cannot be written.
    """
    columns = [*FIRST_COLUMNS, *map(_exercise_column, exercises), *LAST_COLUMNS]
    with replacing_file(path) as file:
        # A name from a file system may hold halves of characters that UTF-8 cannot write.
        text = io.TextIOWrapper(
            file, encoding=TABLE_ENCODING, errors="backslashreplace", newline="", write_through=True
        )
        writer = csv.writer(text)

        def write_row(row: SubmissionRow) -> None:
            """Write the line of a submission. Raises OSError."""
            cells = []
            for column in columns:
                cell = printable_text(without_surrogates(column.cell(row)), keep="\n")
                cells.append(spreadsheet_safe(cell))
            writer.writerow(cells)

        writer.writerow([column.heading for column in columns])
        yield write_row
        text.detach()
