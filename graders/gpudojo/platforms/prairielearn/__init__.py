"""PrairieLearn, inside its container: `results.json` for each submission.

The score is a share from 0 to 1. A file may have a megabyte, so texts are cut. A submission that
could not be read is not gradable there: it costs no attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import CheckRow, ClassResults, Grade, SubmissionRow, SubmissionStatus
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_json
from gpudojo.platforms._rows import Entry, chosen_rows, entries_to_export
from gpudojo.platforms._texts import (
    describe_check,
    describe_lateness,
    full_text,
    join_texts,
    points_and_reason,
    printable_lines,
)

LONGEST_MESSAGE: Final = 1_500  # characters
LONGEST_OUTPUT: Final = 50_000  # characters of what a student printed


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `results.json` for each submission, or the one asked for, and return the files.

    It is in a folder of its own below `target`, that of the one asked for in `target` itself. How
    many have more than the maximum is told by `options.say`. Raises OSError.
    """
    above = sum(row.final.points > row.final.max_points for row in chosen_rows(rows, options))
    if above:
        options.say(
            f"students with more points than the maximum, for extra credit: {above}; "
            "they get the maximum, because PrairieLearn's scores end at 1."
        )
    written = []
    for entry in entries_to_export(rows, target, options):
        written.append(save_json(entry.folder / "results.json", _result_of(entry)))
    return written


def _result_of(entry: Entry) -> dict[str, Any]:
    """Return the content of `results.json`; a submission that cannot be read is not gradable."""
    row = entry.row
    message = printable_lines(join_texts("\n", points_and_reason(row), describe_lateness(row)))
    if row.status is SubmissionStatus.UNREADABLE:
        return {"gradable": False, "format_errors": [message]}
    return {
        "gradable": True,
        "score": _share_of(row.final),
        "message": message,
        "output": printable_lines(row.output_for_student)[:LONGEST_OUTPUT],
        "tests": [_test_of(check) for check in entry.checks],
    }


def _test_of(check: CheckRow) -> dict[str, Any]:
    """Return a check as a test."""
    return {
        "name": describe_check(check),
        "points": check.points,
        "max_points": check.max_points,
        "message": full_text(check)[:LONGEST_MESSAGE],
    }


def _share_of(grade: Grade) -> float:
    """Return the points as a share of the maximum, at most 1."""
    if not grade.max_points:
        return 0.0
    return min(grade.points / grade.max_points, 1.0)
