"""nbgrader: `grades.csv`, the table that `nbgrader export` writes.

Its student ids are names of folders, so ours are the submissions' names. A name cannot be split reliably: only where
it has a comma is it taken for `last, first`; otherwise it stands whole under `last_name`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import number, safe
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import chosen, one_line, printable, save_csv

HEADINGS: Final = (
    "assignment,duedate,timestamp,student_id,last_name,first_name,email,"
    "raw_score,late_submission_penalty,score,max_score"
).split(",")


def export(results: Results, target: Path, options: Options) -> list[Path]:
    assignment = options.title or results.day
    rows = [_line(row, assignment) for row in chosen(results, options)]
    return [save_csv(target / "grades.csv", [HEADINGS, *rows])]


def _line(row: SubmissionRow, assignment: str) -> list[str]:
    last, _, first = one_line(row.student or "").partition(", ")
    score = number(row.score)
    cells = [assignment, "", "", row.submission, last, first, "", score, "0", score, number(row.max_score)]
    return [safe(printable(cell)) for cell in cells]
