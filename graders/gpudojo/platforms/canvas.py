"""Canvas: `gradebook.csv` to import, made from a downloaded gradebook (--gradebook) or from the submissions' names.

From a gradebook only the columns that identify a student and the assignment's own are kept, so that the import changes
nothing else; a student without a submission keeps the grade that is there. A message names an assignment that the
gradebook does not have, because Canvas would create it. Without a gradebook, students are identified by the ids in the
names of files that were downloaded from Canvas, and by those of the roster where these are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import ClassResults, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import format_points, spreadsheet_safe
from gpudojo.platforms import Options
from gpudojo.platforms._entries import (
    chosen,
    ids_on,
    one_line,
    people,
    published,
    read_table,
    save_csv,
    value,
)

USES: Final = ("gradebook", "title")
WHO: Final = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
ALSO_WHO: Final = (*WHO, "Integration ID", "Root Account")
POSSIBLE: Final = "    Points Possible"


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    title = options.title or header.title or f"gpudojo {header.day}"
    worth = published(header)
    if options.gradebook:
        lines = _filled(options.gradebook, chosen(rows, options), title, worth, options)
    else:
        lines = [[*WHO, title], [POSSIBLE, "", "", "", "", format_points(worth)]]
        absent = 0
        id_of = ids_on("canvas", rows)
        for row in chosen(rows, options):
            nothing = row.status is SubmissionStatus.ABSENT and not row.overrides and not row.score
            absent += nothing
            who = (
                one_line(row.student or (row.roster.name if row.roster else "") or row.submission),
                id_of(row),
            )
            login = row.roster.login if row.roster else ""
            lines.append(
                [
                    *map(spreadsheet_safe, (*who, "", login, row.section)),
                    "" if nothing else format_points(row.final.points),
                ]
            )
        if absent:
            options.say(
                f"{absent} on the roster handed in nothing; their cell is empty, and Canvas keeps what it has."
            )
    return [save_csv(target / "gradebook.csv", lines)]


def _filled(
    path: Path, rows: Iterable[SubmissionRow], title: str, max_score: float, options: Options
) -> list[list[str]]:
    table = read_table(path, "canvas")
    missing = [heading for heading in WHO[:2] if heading not in table.headings]
    if missing:
        said = f"{path} has no column {missing[0]!r}; download the gradebook from Canvas in English, as CSV"
        raise CannotExport("canvas", said)
    column = _column(table.headings, title)
    possible = next((line for line in table.rows if line[0].strip() == POSSIBLE.strip()), None)
    if column is None:
        others = [
            one.rpartition(" (")[0] for one in table.headings if re.search(r" \([0-9]+\)$", one)
        ]
        meant = f" For one that is there, give --title: {', '.join(map(repr, others[:6]))}." * bool(
            others
        )
        options.say(
            f"the gradebook has no assignment {title!r}: Canvas will offer to create it.{meant}"
        )
    elif possible is not None and value(possible[column]) != max_score:
        raise CannotExport(
            "canvas",
            f"the assignment {title!r} has {possible[column] or 'no'} points there and {format_points(max_score)} here; "
            "change its points in Canvas and download the gradebook again",
        )
    name = table.headings.index("Student")
    id_ = table.headings.index("ID")
    students = {
        place: (line[id_].strip(), line[name])
        for place, line in enumerate(table.rows)
        if line[id_].strip()
    }
    grades = {
        line: format_points(row.final.points)
        for line, row in people(students, rows, "canvas", options.say)
    }
    keep = [place for place, heading in enumerate(table.headings) if heading in ALSO_WHO]
    lines = [
        [
            *(table.headings[place] for place in keep),
            title if column is None else table.headings[column],
        ]
    ]
    own = possible or ([POSSIBLE] + [""] * (len(table.headings) - 1))
    lines.append([*(own[place] for place in keep), format_points(max_score)])
    for place in students:
        line = table.rows[place]
        there = line[column] if column is not None else ""
        lines.append([*(line[each] for each in keep), grades.get(place, there)])
    return lines


def _column(headings: list[str], title: str) -> int | None:
    """Where the assignment is: by its whole heading, or by the title before the id that Canvas adds in brackets."""
    exact = [place for place, heading in enumerate(headings) if heading == title]
    named = [
        place for place, heading in enumerate(headings) if heading.rpartition(" (")[0] == title
    ]
    if len(exact or named) > 1:
        raise CannotExport(
            "canvas", f"the gradebook has several assignments {title!r}; give --title with its id"
        )
    return next(iter(exact or named), None)
