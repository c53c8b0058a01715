"""PrairieLearn: `results.json` for each submission, as an external grader leaves it.

The score is a share from 0 to 1. A file may have a megabyte, so texts are cut. A submission that could not be read is
not gradable there: it costs no attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import ClassResults, SubmissionRow, SubmissionStatus
from gpudojo.platforms import Options
from gpudojo.platforms._entries import (
    Entry,
    chosen,
    entries,
    lateness,
    name_of,
    printable,
    save_json,
    sentence,
    text_of,
)

LONGEST: Final = 1_500  # characters of a text
OUTPUT: Final = 50_000  # characters of what a student printed


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    above = sum(row.final.points > row.final.max_points for row in chosen(rows, options))
    if above:
        options.say(
            f"students with more points than the maximum, for extra credit: {above}; they get the maximum, "
            "because PrairieLearn's scores end at 1."
        )
    return [
        save_json(each.folder / "results.json", _result(each))
        for each in entries(rows, target, options)
    ]


def _result(entry: Entry) -> dict[str, Any]:
    row = entry.row
    grade = entry.row.final
    said = printable("\n".join(filter(None, [sentence(row), lateness(row)])))
    if row.status is SubmissionStatus.UNREADABLE:
        return {"gradable": False, "format_errors": [said]}
    tests = [
        {
            "name": name_of(check),
            "points": check.points,
            "max_points": check.max_points,
            "message": text_of(check)[:LONGEST],
        }
        for check in entry.checks
    ]
    share = min(grade.points / grade.max_points, 1.0) if grade.max_points else 0.0
    return {
        "gradable": True,
        "score": share,
        "message": said,
        "output": printable(row.output)[:OUTPUT],
        "tests": tests,
    }
