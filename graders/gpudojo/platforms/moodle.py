"""Moodle: the grading worksheet that was downloaded there (--worksheet), with grades and feedback filled in.

A worksheet cannot be made here: its ids are Moodle's. Its headings are in the language of the course, so columns are
found by known headings, and otherwise by their content: the maximum is the same number in every line, and the grade is
left of it. Numbers get a decimal comma where the worksheet has it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options
from gpudojo.platforms import _entries as entries
from gpudojo.platforms._entries import Table, one_line, plain, value

USES: Final = ("worksheet",)
KNOWN: Final = (
    "Maximum Grade,Maximum mark,Bestwertung,Note maximale,Calificación máxima,Valutazione massima,Nota máxima,"
    "Maximumcijfer"
)
MAXIMUM: Final = set(map(plain, KNOWN.split(",")))
FEEDBACK: Final = ("feedback", "kommentar", "comment", "retroaliment", "comentari", "commenti")


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    path = options.worksheet
    if path is None:
        raise CannotExport(
            "moodle",
            "give the assignment's grading worksheet with --worksheet; Moodle offers it under "
            '"Download grading worksheet" when offline grading is switched on for the assignment',
        )
    table, listed = entries.worksheet(path)
    maximum = _maximum(table, path)
    # Feedback is written below a known heading right of the maximum.
    right = enumerate(map(plain, table.headings[maximum + 1 :]), maximum + 1)
    comment = next(
        (place for place, heading in right if any(word in heading for word in FEEDBACK)), None
    )
    above = 0
    for place, row in entries.people(listed, entries.chosen(rows, options), "moodle", options.say):
        line = table.rows[place]
        if value(line[maximum]) != row.final.max_points:
            raise CannotExport(
                "moodle",
                f"the maximum is {line[maximum]} in {path} and {format_points(row.final.max_points)} here; "
                "change the assignment's maximum grade in Moodle and download the worksheet again",
            )
        above += row.final.points > row.final.max_points
        grade = format_points(min(row.final.points, row.final.max_points))
        line[maximum - 1] = grade.replace(".", ",") if "," in line[maximum] else grade
        if comment is not None:
            # Moodle keeps HTML: what a student wrote is text in it, never markup.
            said = entries.told(row, options.exercises)
            line[comment] = "<br>".join(html.escape(one_line(text)) for text in said)
    if above:
        options.say(
            f"students with more points than the maximum, for extra credit: {above}; they get the maximum, "
            "because Moodle refuses more."
        )
    if comment is None:
        options.say("the worksheet has no column for feedback; only grades are filled in.")
    filled = target / path.name
    if filled.resolve() == path.resolve():
        raise CannotExport("moodle", f"{path} would be overwritten; give another folder with --out")
    return [entries.save_csv(filled, [table.headings, *table.rows], table.delimiter, table.mark)]


def _maximum(table: Table, path: Path) -> int:
    """Where the maximum grade stands; the grade is left of it."""
    columns = range(2, len(table.headings))
    known = [place for place in columns if plain(table.headings[place]) in MAXIMUM]
    numbers = {place: {value(line[place]) for line in table.rows} for place in known or columns}
    numeric = [
        place for place, found in numbers.items() if len(found) == 1 and (found.pop() or 0) > 0
    ]
    fitting = [
        place
        for place in numeric
        if all(_is_grade(line[place - 1], line[place]) for line in table.rows)
    ]
    if len(fitting) != 1:
        said = f"the column of grades was not found in {path}; download the worksheet of an assignment graded in points"
        raise CannotExport("moodle", said)
    return fitting[0]


def _is_grade(cell: str, maximum: str) -> bool:
    grade = value(cell)
    largest = value(maximum)
    return cell.strip() in ("", "-") or (
        grade is not None and largest is not None and 0 <= grade <= largest
    )
