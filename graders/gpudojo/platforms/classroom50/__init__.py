"""Classroom 50: `result.json` for each submission, with whole numbers for points.

Scores there are integers, and ours have fractions, so points are written in hundredths: 65.85 of 100 is 6585 of 10000.
Points finer than that make all of a submission's numbers ten times larger, until they are whole. Dividing by
`max-score` gives the exact share again, and the tests add up to the total. Who was graded comes from the environment.
"""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import CheckRow, SubmissionRow
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import (
    MILLION,
    folder,
    good,
    kind,
    named,
    of_submission,
    one_line,
    parts,
    printable,
    safe_name,
    save_json,
    text_of,
)

SCHEMA: Final = "classroom50/result/v1"
VARIABLES: Final = {"commit": "COMMIT_URL", "release": "RELEASE_URL", "review": "REVIEW_URL"}


def export(results: Results, target: Path, options: Options) -> list[Path]:
    written = []
    for name, row in named(results, options):
        result = _result(row, name, results.day, options)
        written.append(save_json(folder(target, name, options) / "result.json", result))
    return written


def _result(row: SubmissionRow, name: str, day: str, options: Options) -> dict[str, Any]:
    checks = of_submission(row, options.exercises)
    scale = _scale(checks)
    environment = options.environment
    tag = environment.get("SUBMISSION_TAG", "")
    return {
        "schema": SCHEMA,
        "classroom": environment.get("CLASSROOM", ""),
        "assignment": environment.get("ASSIGNMENT") or options.title or day,
        "assignment_type": "individual",
        "owner": one_line(_owner(row)),
        "submission": tag if tag.startswith("submit/") else f"submit/{safe_name(tag) if tag else name}",
        **{key: environment.get(variable, "") for key, variable in VARIABLES.items()},
        "datetime": options.when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(parts(check.points) for check in checks) * scale // MILLION,
        "max-score": sum(parts(check.max_points) for check in checks) * scale // MILLION,
        "tests": [_test(check, row, scale) for check in checks],
    }


def _scale(checks: list[CheckRow]) -> int:
    """100, or the next power of ten that leaves no fraction."""
    scale = 100
    while any(parts(number) * scale % MILLION for check in checks for number in (check.points, check.max_points)):
        scale *= 10
    return scale


def _test(check: CheckRow, row: SubmissionRow, scale: int) -> dict[str, Any]:
    return {
        "test-name": one_line(check.id),
        "passed": good(check),
        "score": parts(check.points) * scale // MILLION,
        "max-score": parts(check.max_points) * scale // MILLION,
        "outcome": kind(check, row),
        "message": printable(text_of(check)),
    }


def _owner(row: SubmissionRow) -> str:
    """The account if the repository's name has it, otherwise the best name there is."""
    account = row.identifier if row.naming == "classroom" else None
    return account or row.student or row.submission
