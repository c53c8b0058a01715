"""Classroom 50, inside its runner: `result.json` for each submission, points in whole numbers.

Scores there are integers, and ours have fractions, so points are written in hundredths: 65.85 of
100 is 6585 of 10000. Points finer than that make all of a submission's numbers ten times larger,
until they are whole. Dividing by `max-score` gives the exact share again, and the tests add up to
the total. Who was graded comes from the environment of the runner; without it, the export is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import CheckRow, ClassResults, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms._files import safe_name, save_json
from gpudojo.platforms._rows import (
    MILLION,
    Entry,
    costs_nothing,
    entries_to_export,
    in_millionths,
    outcome_or_status,
)
from gpudojo.platforms._texts import (
    describe_check,
    full_text,
    join_texts,
    one_line,
    points_left_out,
    say_how_many_have_other_points,
)

# Variables of the runner, none of which may be empty.
REQUIRED: Final = ("CLASSROOM", "ASSIGNMENT", "SUBMISSION_TAG", "COMMIT_URL", "RELEASE_URL")


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `result.json` for each submission, or the one asked for, and return the files.

    It is in a folder of its own below `target`, that of the one asked for in `target` itself. How
    many have other points in the course is told by `options.say`. Raises CannotExport where the
    runner has not set its variables, and OSError.
    """
    missing = [name for name in REQUIRED if not options.environment.get(name)]
    if missing:
        verb = "are"
        if len(missing) == 1:
            verb = "is"
        raise CannotExport(
            "classroom50",
            f"{', '.join(missing)} {verb} not set; "
            "its runner sets them where it grades a submission",
        )
    say_how_many_have_other_points(rows, options)
    written = []
    for entry in entries_to_export(rows, target, options):
        result = _result_of(entry, options)
        written.append(save_json(entry.folder / "result.json", result))
    return written


def _result_of(entry: Entry, options: Options) -> dict[str, Any]:
    """Return the content of `result.json`: who and what was graded, and the tests.

    Raises KeyError where a variable of the runner is missing in `options.environment`.
    """
    row = entry.row
    checks = entry.checks
    environment = options.environment
    commit = environment["COMMIT_URL"]
    scale = _scale_without_fractions(checks)
    tests = [_test_of(check, row, scale) for check in checks]
    tests[0]["message"] = join_texts("\n", points_left_out(row), tests[0]["message"])
    return {
        "schema": "classroom50/result/v1",
        "classroom": environment["CLASSROOM"],
        "assignment": environment["ASSIGNMENT"],
        "assignment_type": "group" if environment.get("MODE") == "group" else "individual",
        "owner": one_line(_owner_of(row)),
        "submission": _submission_tag(environment["SUBMISSION_TAG"]),
        "commit": commit,
        "release": environment["RELEASE_URL"],
        "review": environment.get("REVIEW_URL") or commit,
        "datetime": options.when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(in_millionths(check.points) for check in checks) * scale // MILLION,
        "max-score": sum(_maximum_of(check) for check in checks) * scale // MILLION,
        "tests": tests,
    }


def _scale_without_fractions(checks: Iterable[CheckRow]) -> int:
    """Return 100, or the next power of ten that makes all points whole numbers."""
    points = []
    for check in checks:
        points += [in_millionths(check.points), in_millionths(check.max_points)]
    scale = 100
    while any(number * scale % MILLION for number in points):
        scale *= 10
    return scale


def _owner_of(row: SubmissionRow) -> str:
    """Return the account if the repository's name has it, otherwise the best name there is."""
    if row.naming == "classroom" and row.identifier:
        return row.identifier
    return row.student or row.submission


def _submission_tag(tag: str) -> str:
    """Return the tag with the prefix that Classroom 50 expects."""
    if tag.startswith("submit/"):
        return tag
    return f"submit/{safe_name(tag)}"


def _test_of(check: CheckRow, row: SubmissionRow, scale: int) -> dict[str, Any]:
    """Return a check as a test, with its points in whole numbers."""
    return {
        "test-name": describe_check(check),
        "passed": costs_nothing(check),
        "score": in_millionths(check.points) * scale // MILLION,
        "max-score": _maximum_of(check) * scale // MILLION,
        "outcome": outcome_or_status(check, row),
        "message": full_text(check),
    }


def _maximum_of(check: CheckRow) -> int:
    """Return a maximum that no score exceeds: that of extra credit is its score."""
    return max(in_millionths(check.max_points), in_millionths(check.points))
