"""Classroom 50: `result.json` for each submission, with whole numbers for points.

Scores there are integers, and ours have fractions, so points are written in hundredths: 65.85 of 100 is 6585 of 10000.
Points finer than that make all of a submission's numbers ten times larger, until they are whole. Dividing by
`max-score` gives the exact share again, and the tests add up to the total. Who was graded comes from the environment
of the runner; without it, the export is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import CheckRow, ClassResults, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms import _entries as common
from gpudojo.platforms._entries import MILLION, Entry, entries, good, one_line, parts, save_json

REQUIRED: Final = (
    "CLASSROOM",
    "ASSIGNMENT",
    "SUBMISSION_TAG",
    "COMMIT_URL",
    "RELEASE_URL",
)  # none may be empty
VARIABLES: Final = {"commit": "COMMIT_URL", "release": "RELEASE_URL", "review": "REVIEW_URL"}


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    if missing := [name for name in REQUIRED if not options.environment.get(name)]:
        said = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        raise CannotExport(
            "classroom50", f"{said}; its runner sets them where it grades a submission"
        )
    common.say_apart(rows, options)
    return [
        save_json(each.folder / "result.json", _result(each, options))
        for each in entries(rows, target, options)
    ]


def _result(entry: Entry, options: Options) -> dict[str, Any]:
    row = entry.row
    checks = entry.checks
    environment = options.environment
    tag = environment["SUBMISSION_TAG"]
    scale = 100  # or the next power of ten that leaves no fraction
    while any(
        parts(number) * scale % MILLION
        for check in checks
        for number in (check.points, check.max_points)
    ):
        scale *= 10
    tests = [_test(check, row, scale) for check in checks]
    tests[0]["message"] = "\n".join(filter(None, [common.apart(row), tests[0]["message"]]))
    # The account if the repository's name has it, otherwise the best name there is.
    owner = (row.identifier if row.naming == "classroom" else None) or row.student or row.submission
    return {
        "schema": "classroom50/result/v1",
        "classroom": environment["CLASSROOM"],
        "assignment": environment["ASSIGNMENT"],
        "assignment_type": "group" if environment.get("MODE") == "group" else "individual",
        "owner": one_line(owner),
        "submission": tag if tag.startswith("submit/") else f"submit/{common.safe_name(tag)}",
        **{
            key: environment.get(variable) or environment["COMMIT_URL"]
            for key, variable in VARIABLES.items()
        },
        "datetime": options.when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(parts(check.points) for check in checks) * scale // MILLION,
        "max-score": sum(_worth(check) for check in checks) * scale // MILLION,
        "tests": tests,
    }


def _test(check: CheckRow, row: SubmissionRow, scale: int) -> dict[str, Any]:
    return {
        "test-name": common.name_of(check),
        "passed": good(check),
        "score": parts(check.points) * scale // MILLION,
        "max-score": _worth(check) * scale // MILLION,
        "outcome": common.kind(check, row),
        "message": common.text_of(check),
    }


def _worth(check: CheckRow) -> int:
    """A maximum, which no score may exceed: extra credit is its own."""
    return max(parts(check.max_points), parts(check.points))
