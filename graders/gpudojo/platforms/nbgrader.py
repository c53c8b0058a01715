"""nbgrader: `grades.csv`, the table that `nbgrader export` writes.

Its student ids are names of folders, so ours are the submissions' names. A name cannot be split reliably: only where
it has a comma is it taken for `last, first`; otherwise it stands whole under `last_name`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.model.results_file import format_points, spreadsheet_safe
from gpudojo.platforms import Options
from gpudojo.platforms._entries import chosen, one_line, printable, save_csv

USES: Final = ("title",)
HEADINGS: Final = (
    "assignment,duedate,timestamp,student_id,last_name,first_name,email,"
    "raw_score,late_submission_penalty,score,max_score"
).split(",")


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    lines = [HEADINGS]
    for row in chosen(rows, options):
        who = row.roster
        grade = row.final
        last, _, first = one_line(row.student or (who.name if who else "")).partition(", ")
        penalty = row.timing.penalty if row.timing else 0.0
        submitted = row.timing.submitted if row.timing else ""
        about = [
            options.title or header.day,
            header.deadline,
            submitted,
            row.submission,
            last,
            first,
        ]
        cells = [
            *about,
            who.email if who else "",
            format_points(grade.points + penalty),
            format_points(penalty),
        ]
        cells += [format_points(grade.points), format_points(grade.max_points)]
        lines.append([spreadsheet_safe(printable(cell)) for cell in cells])
    return [save_csv(target / "grades.csv", lines)]
