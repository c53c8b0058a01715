"""Exercism, inside its test runner: `results.json` for each submission, of version 3.

The format knows no points, so each test's name ends with its own: `(0.25 of 0.5 points)`. A
submission that was not graded has the status `error` and the reason as its message. A check that
gpudojo could not judge is an `error` too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import exact_points
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_json
from gpudojo.platforms._rows import Entry, entries_to_export, exercise_of, overall_outcome
from gpudojo.platforms._texts import (
    describe_check,
    full_text,
    join_texts,
    points_and_reason,
    points_left_out,
    printable_lines,
    say_how_many_have_other_points,
)

LONGEST_OUTPUT: Final = 500
STATUS_OF: Final = {Outcome.ERROR: "error", Outcome.PASSED: "pass"}  # of all others: "fail"


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `results.json` for each submission, or the one asked for, and return the files.

    It is in a folder of its own below `target`, that of the one asked for in `target` itself. How
    many have other points in the course is told by `options.say`. Raises OSError.
    """
    say_how_many_have_other_points(rows, options)
    written = []
    for entry in entries_to_export(rows, target, options):
        written.append(save_json(entry.folder / "results.json", _result_of(entry)))
    return written


def _result_of(entry: Entry) -> dict[str, Any]:
    """Return the content of `results.json`."""
    row = entry.row
    names = [exercise_of(check) for check in entry.checks]
    exercises = list(dict.fromkeys(name for name in names if name))
    tests = [_test_of(check, exercises) for check in entry.checks]
    output = printable_lines(join_texts("\n", points_left_out(row), row.output_for_student))
    if output:
        # What was printed belongs to the submission; the first test is where it is seen.
        tests[0]["output"] = _cut_text(output)
    status = "error"
    if row.status is SubmissionStatus.GRADED:
        status = overall_outcome(row, entry.checks)
    message = None
    if status == "error":
        message = printable_lines(points_and_reason(row))
    return {"version": 3, "status": status, "message": message, "tests": tests}


def _cut_text(text: str) -> str:
    """Return a text that is no longer than the format allows."""
    if len(text) <= LONGEST_OUTPUT:
        return text
    return text[: LONGEST_OUTPUT - 1] + "…"


def _test_of(check: CheckRow, exercises: list[str]) -> dict[str, Any]:
    """Return a check as a test, whose name ends with its points.

    `exercises` are all names of exercises, by whose places tasks are numbered.
    """
    points = f"{exact_points(check.points)} of {exact_points(check.max_points)} points"
    test: dict[str, Any] = {
        "name": f"{describe_check(check)} ({points})",
        "status": STATUS_OF.get(check.outcome, "fail"),
        "message": full_text(check) or None,
        "output": None,
        "test_code": printable_lines(check.claim),
    }
    exercise = exercise_of(check)
    if exercise:
        test["task_id"] = exercises.index(exercise) + 1
    return test
