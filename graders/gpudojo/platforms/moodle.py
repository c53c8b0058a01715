"""Moodle: the grading worksheet that was downloaded there (--worksheet), with grades and feedback filled in.

A worksheet cannot be made here: its ids are Moodle's. Its headings are in the language of the course, so columns are
found by known headings, and otherwise by their content: the maximum is the same number in every line, and the grade is
left of it. Numbers get a decimal comma where the worksheet has it.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Final

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import number
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import (
    Table,
    chosen,
    digits,
    of_submission,
    people,
    plain,
    printable,
    read_table,
    save_csv,
    sentence,
    value,
)

MAXIMUM: Final = {
    plain(heading)
    for heading in (
        "Maximum Grade",
        "Maximum mark",
        "Bestwertung",
        "Note maximale",
        "Calificación máxima",
        "Valutazione massima",
        "Nota máxima",
        "Maximumcijfer",
    )
}
FEEDBACK: Final = ("feedback", "kommentar", "comment", "retroaliment", "comentari", "commenti")


def export(results: Results, target: Path, options: Options) -> list[Path]:
    if options.worksheet is None:
        raise CannotExport(
            "moodle",
            "give the assignment's grading worksheet with --worksheet; Moodle offers it under "
            '"Download grading worksheet" when offline grading is switched on for the assignment',
        )
    table = read_table(options.worksheet, "moodle")
    identifiers = {place: digits(line[0]) for place, line in enumerate(table.rows)}
    if not identifiers or not all(identifiers.values()):
        raise CannotExport("moodle", f"the first column of {options.worksheet} does not hold Moodle's identifiers")
    maximum = _maximum(table, options.worksheet)
    comment = _feedback(table, maximum)
    rows = {place: (identifiers[place], line[1]) for place, line in enumerate(table.rows)}
    for place, row in people(rows, chosen(results, options), _identified, options.say):
        line = table.rows[place]
        if value(line[maximum]) != row.max_score:
            raise CannotExport(
                "moodle",
                f"the maximum is {line[maximum]} in {options.worksheet} and {number(row.max_score)} here; "
                "change the assignment's maximum grade in Moodle and download the worksheet again",
            )
        grade = number(row.score)
        line[maximum - 1] = grade.replace(".", ",") if "," in line[maximum] else grade
        if comment is not None:
            line[comment] = _comment(row, options)
    if comment is None:
        options.say("the worksheet has no column for feedback; only grades are filled in.")
    filled = target / options.worksheet.name
    if filled.resolve() == options.worksheet.resolve():
        raise CannotExport("moodle", f"{options.worksheet} would be overwritten; give another folder with --out")
    lines = [table.headings, *table.rows]
    return [save_csv(filled, lines, table.delimiter, table.mark)]


def _maximum(table: Table, path: Path) -> int:
    """Where the maximum grade stands; the grade is left of it."""
    columns = range(2, len(table.headings))
    known = [place for place in columns if plain(table.headings[place]) in MAXIMUM]
    numeric = [place for place in known or columns if _is_maximum([line[place] for line in table.rows])]
    fitting = [place for place in numeric if all(_is_grade(line[place - 1], line[place]) for line in table.rows)]
    if len(fitting) != 1:
        raise CannotExport(
            "moodle",
            f"the column of grades was not found in {path}; download the worksheet of an assignment graded in points",
        )
    return fitting[0]


def _is_maximum(cells: list[str]) -> bool:
    numbers = {value(cell) for cell in cells}
    return len(numbers) == 1 and all(number is not None and number > 0 for number in numbers)


def _is_grade(cell: str, maximum: str) -> bool:
    if cell.strip() in ("", "-"):
        return True
    grade, largest = value(cell), value(maximum)
    return grade is not None and largest is not None and 0 <= grade <= largest


def _feedback(table: Table, maximum: int) -> int | None:
    """Where feedback is written: a known heading right of the maximum."""
    columns = range(maximum + 1, len(table.headings))
    known = [p for p in columns if any(word in plain(table.headings[p]) for word in FEEDBACK)]
    return known[0] if known else None


def _comment(row: SubmissionRow, options: Options) -> str:
    """Feedback as Moodle keeps it, in HTML: what a student wrote is text in it, never markup."""
    lines = [sentence(row)]
    lines += [f"{check.id}: {check.message}" for check in of_submission(row, options.exercises) if check.message]
    return "<br>".join(html.escape(" ".join(printable(line).split())) for line in lines)


def _identified(row: SubmissionRow) -> str | None:
    """Moodle's id of the participant; another platform's number would be somebody else here."""
    return row.identifier if row.identifier and "moodle" in (row.naming or "").lower() else None
