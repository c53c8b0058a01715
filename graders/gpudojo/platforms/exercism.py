"""Exercism: `results.json` for each submission, as a test runner of version 3 writes it.

The format knows no points, so each test's name ends with its own: `(0.25 of 0.5 points)`. A submission that was not
graded has the status `error` and the reason as its message. A check that gpudojo could not judge is an `error` too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options
from gpudojo.platforms import _entries as common
from gpudojo.platforms._entries import Entry, entries, exercise_of, name_of, printable, save_json

OUTPUT: Final = 500


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    common.say_apart(rows, options)
    return [
        save_json(each.folder / "results.json", _result(each))
        for each in entries(rows, target, options)
    ]


def _result(entry: Entry) -> dict[str, Any]:
    order = list(dict.fromkeys(filter(None, map(exercise_of, entry.checks))))
    tests = [_test(check, order) for check in entry.checks]
    if text := printable("\n".join(filter(None, [common.apart(entry.row), entry.row.output]))):
        # What was printed belongs to the submission; the first test is where it is seen.
        tests[0]["output"] = text if len(text) <= OUTPUT else text[: OUTPUT - 1] + "…"
    status = (
        common.verdict(entry.row, entry.checks)
        if entry.row.status is SubmissionStatus.GRADED
        else "error"
    )
    message = printable(common.sentence(entry.row)) if status == "error" else None
    return {"version": 3, "status": status, "message": message, "tests": tests}


def _test(check: CheckRow, order: list[str]) -> dict[str, Any]:
    exercise = exercise_of(check)
    return {
        "name": f"{name_of(check)} ({format_points(check.points)} of {format_points(check.max_points)} points)",
        "status": {Outcome.ERROR: "error", Outcome.PASSED: "pass"}.get(check.outcome, "fail"),
        "message": common.text_of(check) or None,
        "output": None,
        "test_code": printable(check.claim),
        **({"task_id": order.index(exercise) + 1} if exercise else {}),
    }
