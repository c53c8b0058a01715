"""The sheet of what people mark by hand: a line for each student, item and line of its rubric."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpudojo.classes.store import write_file
from gpudojo.model.results import ExerciseRow, Override, SubmissionRow
from gpudojo.model.results_csv import TABLE_ENCODING, spreadsheet_safe
from gpudojo.model.results_file import exact_points, format_points

# `dojo marks --from` reads student, item, points and comment; the others are for people.
HEADINGS: Final = (
    "student",
    "name",
    "id",
    "section",
    "group",
    "status",
    "item",
    "rubric",
    "out_of",
    "points",
    "comment",
)


def write_sheet(path: Path, rows: Iterable[SubmissionRow]) -> int:
    """Write the sheet for these students; returns how many of its lines have no points yet.

    It has what was given already. Raises OSError, and FileExistsError for a file that is there:
    it may hold points that nobody has read yet.
    """
    if path.exists():
        raise FileExistsError(
            17,
            f"it exists already; to read it: dojo marks --from {path}; else name another file",
            str(path),
        )
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(HEADINGS)
    open_lines = 0
    for row in rows:
        for exercise in row.exercises:
            if exercise.by_hand:
                for cells in _lines_of_item(row, exercise):
                    writer.writerow([spreadsheet_safe(cell) for cell in cells])
                    open_lines += not cells[HEADINGS.index("points")]
    write_file(path, text.getvalue().encode(TABLE_ENCODING, "backslashreplace"))
    return open_lines


def _lines_of_item(row: SubmissionRow, exercise: ExerciseRow) -> Iterator[list[str]]:
    """Yield the lines of one item of a student: one for each line of its rubric, or one."""
    has_lines = bool(exercise.rubric_lines) and exercise.override is None
    if not has_lines:
        rubric = "; ".join(line.text for line in exercise.rubric) or exercise.title
        yield _cells(row, exercise.exercise, rubric, exercise.max_score, exercise.override)
        return
    for number, name in exercise.rubric_numbers.items():
        line = exercise.rubric_lines[name]
        yield _cells(row, number, line.text, line.max_points, line.override)


def _cells(
    row: SubmissionRow, item: str, rubric: str, most: float, given: Override | None
) -> list[str]:
    """The cells of a line, as HEADINGS names them.

    `most` are the points that can be had for the item, `given` what a person gave for it.
    """
    points = ""
    comment = ""
    if given is not None:
        points = exact_points(given.points)
        comment = given.comment
    return [
        row.submission,
        row.student or row.submission,
        row.id,
        row.section,
        row.group,
        row.status.value,
        item,
        rubric,
        format_points(most),
        points,
        comment,
    ]
