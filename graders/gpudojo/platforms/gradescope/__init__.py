"""Gradescope: `results.json` for each submission, as its autograder harness reads it.

Everything is plain text: what a student printed or named is never read as HTML or Markdown. Hints for the teacher
stay out, because students see this file's texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import POINT_PLACES, CheckRow, ClassResults, SubmissionRow, When
from gpudojo.platforms import Options
from gpudojo.platforms import _entries as common
from gpudojo.platforms._entries import (
    Entry,
    entries,
    exercise_of,
    good,
    name_of,
    printable,
    save_json,
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    return [
        save_json(each.folder / "results.json", _result(each, header))
        for each in entries(rows, target, options)
    ]


SEEN: Final[dict[When, str]] = {
    "always": "visible",
    "after deadline": "after_due_date",
    "never": "hidden",
}


def _result(entry: Entry, header: ClassResults) -> dict[str, Any]:
    row = entry.row
    output = [
        common.sentence(row),
        common.lateness(row),
        f"What the code printed:\n{row.output}" if row.output else "",
    ]
    seen = SEEN[header.visibility.results]
    scale = row.final.max_points / row.max_score if row.max_score else 1.0
    return {
        "score": row.final.points,
        "execution_time": row.seconds,
        "output": printable("\n\n".join(filter(None, output))),
        "output_format": "text",
        "test_output_format": "text",
        "visibility": seen,
        "stdout_visibility": "hidden",
        "extra_data": {
            "gpudojo": header.gpudojo,
            "day": header.day,
            "bench": header.bench,
            "digest": row.digest,
        },
        "tests": [
            _test(check, number, scale, seen) for number, check in enumerate(entry.checks, 1)
        ],
    }


def _test(check: CheckRow, number: int, scale: float, seen: str) -> dict[str, Any]:
    return {
        "score": round(check.points * scale, POINT_PLACES),
        "max_score": round(check.max_points * scale, POINT_PLACES),
        "status": "passed" if good(check) else "failed",
        "name": name_of(check),
        "number": str(number),
        "output": printable("\n".join(filter(None, [check.claim, common.text_of(check)]))),
        "output_format": "text",
        "tags": [tag for tag in (exercise_of(check), check.function) if tag],
        "visibility": seen,
    }
