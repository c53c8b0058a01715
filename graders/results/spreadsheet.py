"""What does a teacher open in a spreadsheet? One line per submission, and no cell that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from graders.results.rows import SubmissionRow
from graders.results.storing import replacing


def safe(cell: str) -> str:
    """The text with an apostrophe before what a spreadsheet would take for a formula; numbers stay numbers."""
    # Tab and carriage return count too: some programs drop them and run what follows.
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell


def number(points: float) -> str:
    """Points without a needless `.0` or exponent: 14, 0.25, 0.000001."""
    return f"{points:.6f}".rstrip("0").rstrip(".")


def write_csv(path: Path, rows: Iterable[SubmissionRow], exercises: Iterable[str]) -> None:
    """One line per submission, with a column for each of the exercises (`04_…`), empty where it was not graded."""
    columns = list(exercises)
    with replacing(path) as file:
        # A name from a file system may hold halves of characters that UTF-8 cannot write.
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)
        writer = csv.writer(text)
        writer.writerow(["submission", "student", "status", "score", "max_score", *columns, "needs_human"])
        for row in rows:
            scores = {exercise.exercise: number(exercise.score) for exercise in row.exercises}
            cells = [row.submission, row.student or "", row.status.value, number(row.score), number(row.max_score)]
            cells += [scores.get(column, "") for column in columns]
            cells.append("; ".join(row.needs_human))
            writer.writerow([safe(cell) for cell in cells])
        text.detach()
