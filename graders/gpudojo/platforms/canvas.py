"""Canvas: `gradebook.csv` to import, made from a downloaded gradebook (--gradebook) or from
the submissions' names.

From a gradebook only the columns that identify a student and the assignment's own are kept, so
that the import changes nothing else; a student without a submission keeps the grade that is
there. A message names an assignment that the gradebook does not have, because Canvas would create
it. Without a gradebook, students are identified by the ids in the names of files that were
downloaded from Canvas, and by those of the roster where these are the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_csv
from gpudojo.platforms._rows import chosen_rows, published_maximum
from gpudojo.platforms._tables import (
    ListedPerson,
    PlatformIds,
    Table,
    match_lines,
    number_in,
    read_table,
)
from gpudojo.platforms._texts import one_line

USES: Final = ("gradebook", "title")
STUDENT_COLUMNS: Final = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
MORE_IDS: Final = ("SIS User ID", "SIS Login ID", "Integration ID")
MORE_STUDENT_COLUMNS: Final = ("Integration ID", "Root Account")
POINTS_POSSIBLE: Final = "    Points Possible"  # Canvas writes the spaces, too


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `gradebook.csv` with the grades of all, or of the one asked for, and return it.

    What does not match, and how many are absent, is told by `options.say`. Raises CannotExport
    where a gradebook does not fit, and OSError where it cannot be written.
    """
    title = options.title or header.title or f"gpudojo {header.day}"
    maximum = published_maximum(header)
    if options.gradebook:
        lines = _fill_gradebook(options.gradebook, rows, title, maximum, options)
    else:
        lines = _make_gradebook(rows, title, maximum, options)
    return [save_csv(target / "gradebook.csv", lines)]


def _make_gradebook(
    rows: Iterable[SubmissionRow], title: str, maximum: float, options: Options
) -> list[list[str]]:
    """Return the lines of a gradebook that has this assignment alone.

    How many are absent, and who cannot be told apart, is told by `options.say`.
    """
    lines = [
        [*STUDENT_COLUMNS, title],
        [POINTS_POSSIBLE, "", "", "", "", format_points(maximum)],
    ]
    ids = PlatformIds("canvas", rows)
    absent = 0
    names_without_id: Counter[str] = Counter()
    for row in chosen_rows(rows, options):
        points = format_points(row.final.points)
        if row.is_empty and not row.score:
            absent += 1
            points = ""
        # Who it is: by the roster, else by the names of files.
        name = row.student or row.submission
        login = ""
        if row.roster:
            name = row.student or row.roster.name or row.submission
            login = row.roster.login
        student = [one_line(name), ids.id_of(row), "", login, row.section]
        cells = [spreadsheet_safe(cell) for cell in student]
        lines.append([*cells, points])
        if not any(student[1:4]):
            names_without_id[student[0]] += 1
    for name, count in names_without_id.items():
        if count > 1:
            options.say(
                f"{count} students are called {name!r}, and nothing in their lines tells Canvas "
                "which is which; download the gradebook and give --gradebook FILE."
            )
    if absent:
        options.say(
            f"{absent} on the roster handed in nothing; "
            "their cell is empty, and Canvas keeps what it has."
        )
    return lines


def _fill_gradebook(
    path: Path, rows: Iterable[SubmissionRow], title: str, maximum: float, options: Options
) -> list[list[str]]:
    """Return the lines of a downloaded gradebook, cut to this assignment, with its grades.

    What does not match is told by `options.say`. Raises CannotExport where the gradebook does not
    fit.
    """
    table = _read_gradebook(path)
    possible = _row_of_points_possible(table)
    column = _column_of(table.headings, title)
    if column is None:
        _say_that_canvas_creates(title, table.headings, options)
    elif possible is not None:
        _require_same_maximum(title, possible[column], maximum)

    # Who stands in which line, and the grades of those who handed in.
    students = _students_by_line(table)
    grades = {}
    for position, row in match_lines(students, rows, "canvas", options):
        grades[position] = format_points(row.final.points)

    # The columns that say who it is, and one of grades.
    columns = _columns_of_student(table)
    if column is None:
        heading = title
    else:
        heading = table.headings[column]
    if possible is None:
        possible = [POINTS_POSSIBLE] + [""] * (len(table.headings) - 1)
    lines = [
        [*_cells_in(table.headings, columns), heading],
        [*_cells_in(possible, columns), format_points(maximum)],
    ]
    for position in students:
        line = table.rows[position]
        grade_there = ""
        if column is not None:
            grade_there = line[column]
        grade = grades.get(position, grade_there)
        lines.append([*_cells_in(line, columns), grade])
    return lines


def _students_by_line(table: Table) -> dict[int, ListedPerson]:
    """Return who stands in which line, from 0; lines without an id are no students.

    Raises ValueError for a table without the columns of students.
    """
    name_column = table.headings.index("Student")
    id_column = table.headings.index("ID")
    more_id_columns = [
        column for column, heading in enumerate(table.headings) if heading in MORE_IDS
    ]
    students = {}
    for position, line in enumerate(table.rows):
        id_ = line[id_column].strip()
        if id_:
            more_ids = [line[column].strip() for column in more_id_columns]
            known_ids = tuple(filter(None, more_ids))
            students[position] = ListedPerson(id_, line[name_column], known_ids)
    return students


def _columns_of_student(table: Table) -> list[int]:
    """Return the columns that say who somebody is."""
    headings = (*STUDENT_COLUMNS, *MORE_STUDENT_COLUMNS)
    return [place for place, heading in enumerate(table.headings) if heading in headings]


def _cells_in(line: list[str], columns: list[int]) -> list[str]:
    """Return the cells of a line that are in these columns."""
    return [line[column] for column in columns]


def _read_gradebook(path: Path) -> Table:
    """Return the table of a gradebook; raises CannotExport where it has no students."""
    table = read_table(path, "canvas")
    for heading in ("Student", "ID"):
        if heading not in table.headings:
            advice = "download the gradebook from Canvas in English, as CSV"
            raise CannotExport("canvas", f"{path} has no column {heading!r}; {advice}")
    return table


def _row_of_points_possible(table: Table) -> list[str] | None:
    """Return the line with the maximum of each assignment; None where there is none."""
    for row in table.rows:
        if row[0].strip() == POINTS_POSSIBLE.strip():
            return row
    return None


def _say_that_canvas_creates(title: str, headings: list[str], options: Options) -> None:
    """Tell the teacher that the title is new, and which assignments there are."""
    text = f"the gradebook has no assignment {title!r}: Canvas will offer to create it."
    assignments = [heading for heading in headings if re.search(r" \([0-9]+\)$", heading)]
    if assignments:
        titles = [repr(heading.rpartition(" (")[0]) for heading in assignments[:6]]
        text += f" For one that is there, give --title: {', '.join(titles)}."
    options.say(text)


def _require_same_maximum(title: str, maximum_there: str, maximum: float) -> None:
    """Raise CannotExport where the assignment is worth something else in Canvas."""
    if number_in(maximum_there) == maximum:
        return
    here = format_points(maximum)
    raise CannotExport(
        "canvas",
        f"the assignment {title!r} has {maximum_there or 'no'} points there and {here} here; "
        "change its points in Canvas and download the gradebook again",
    )


def _column_of(headings: list[str], title: str) -> int | None:
    """Return where the assignment is; None where it is not there.

    It is found by its whole heading, or by the title before the id that Canvas adds in brackets.
    Raises CannotExport where several have the title.
    """
    columns = [place for place, heading in enumerate(headings) if heading == title]
    if not columns:
        for place, heading in enumerate(headings):
            if heading.rpartition(" (")[0] == title:
                columns.append(place)
    if len(columns) > 1:
        advice = "give --title with its id"
        raise CannotExport("canvas", f"the gradebook has several assignments {title!r}; {advice}")
    if columns:
        return columns[0]
    return None
