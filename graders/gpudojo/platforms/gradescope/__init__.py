"""Gradescope, inside its container: `results.json` for each submission.

Everything is plain text: what a student printed or named is never read as HTML or Markdown. Hints
for the teacher stay out, because students see this file's texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import POINT_PLACES, CheckRow, ClassResults, SubmissionRow, When
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_json
from gpudojo.platforms._rows import Entry, costs_nothing, entries_to_export, exercise_of
from gpudojo.platforms._texts import (
    describe_check,
    describe_lateness,
    describe_output,
    full_text,
    join_texts,
    points_and_reason,
    printable_lines,
)

VISIBILITY: Final[dict[When, str]] = {
    "always": "visible",
    "after deadline": "after_due_date",
    "never": "hidden",
}


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `results.json` for each submission, or the one asked for, and return the files.

    It is in a folder of its own below `target`, that of the one asked for in `target` itself.
    Raises OSError.
    """
    written = []
    for entry in entries_to_export(rows, target, options):
        result = _result_of(entry, header)
        written.append(save_json(entry.folder / "results.json", result))
    return written


def _result_of(entry: Entry, header: ClassResults) -> dict[str, Any]:
    """Return the content of `results.json`: published points, tests and who may see them."""
    row = entry.row
    visibility = VISIBILITY[header.visibility.results]
    scale = 1.0
    if row.max_score:
        scale = row.final.max_points / row.max_score
    points = points_and_reason(row)
    output = join_texts("\n\n", points, describe_lateness(row), describe_output(row))
    # Every check is a test.
    tests = []
    for position, check in enumerate(entry.checks, 1):
        tests.append(_test_of(check, position, scale, visibility))
    return {
        "score": row.final.points,
        "execution_time": row.seconds,
        "output": printable_lines(output),
        "output_format": "text",
        "test_output_format": "text",
        "visibility": visibility,
        "stdout_visibility": "hidden",
        "extra_data": {
            "gpudojo": header.gpudojo,
            "day": header.day,
            "bench": header.bench,
            "digest": row.digest,
        },
        "tests": tests,
    }


def _test_of(check: CheckRow, position: int, scale: float, visibility: str) -> dict[str, Any]:
    """Return a check as a test, with its points on the scale of the course.

    `position` is its number from 1; points are multiplied by `scale`.
    """
    return {
        "score": round(check.points * scale, POINT_PLACES),
        "max_score": round(check.max_points * scale, POINT_PLACES),
        "status": "passed" if costs_nothing(check) else "failed",
        "name": describe_check(check),
        "number": str(position),
        "output": printable_lines(join_texts("\n", check.claim, full_text(check))),
        "output_format": "text",
        "tags": [tag for tag in (exercise_of(check), check.function) if tag],
        "visibility": visibility,
    }
