"""nbgrader: `grades.csv`, the table that `nbgrader export` writes.

Its student ids are names of folders, so ours are the submissions' names. A name cannot be split
reliably: where the roster does not tell the family name and it has no comma, as in `last, first`,
it stands whole under `last_name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_csv
from gpudojo.platforms._rows import chosen_rows
from gpudojo.platforms._texts import one_line, printable_lines

USES: Final = ("title",)
HEADINGS: Final = (
    "assignment",
    "duedate",
    "timestamp",
    "student_id",
    "last_name",
    "first_name",
    "email",
    "raw_score",
    "late_submission_penalty",
    "score",
    "max_score",
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `grades.csv` with all submissions, or the one asked for, and return it.

    Raises OSError.
    """
    lines: list[Sequence[str]] = [HEADINGS]
    for row in chosen_rows(rows, options):
        cells = _cells_of(header, row, options.title or header.day)
        lines.append([spreadsheet_safe(printable_lines(cell)) for cell in cells])
    return [save_csv(target / "grades.csv", lines)]


def _cells_of(header: ClassResults, row: SubmissionRow, title: str) -> list[str]:
    """Return the cells of a submission's line, as HEADINGS names them."""
    name = row.student or ""
    if row.roster:
        name = row.roster.sorted_as or name
    last_name, _, first_name = one_line(name).partition(", ")
    penalty = 0.0
    if row.timing:
        penalty = row.timing.penalty
    return [
        title,
        header.deadline,
        row.timing.submitted if row.timing else "",
        row.submission,
        last_name,
        first_name,
        row.email,
        format_points(row.final.points + penalty),
        format_points(penalty),
        format_points(row.final.points),
        format_points(row.final.max_points),
    ]
