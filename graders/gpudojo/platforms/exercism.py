"""Exercism: `results.json` for each submission, as a test runner of version 3 writes it.

The format knows no points, so each test's name ends with its own: `(0.25 of 0.5 points)`. A submission that was not
graded has the status `error` and the reason as its message. A check that gpudojo could not judge is an `error` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import CheckRow, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import number
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import (
    exercise_of,
    folder,
    named,
    of_submission,
    one_line,
    printable,
    save_json,
    sentence,
    text_of,
    verdict,
)

OUTPUT: Final = 500


def export(results: Results, target: Path, options: Options) -> list[Path]:
    return [
        save_json(folder(target, name, options) / "results.json", _result(row, options))
        for name, row in named(results, options)
    ]


def _result(row: SubmissionRow, options: Options) -> dict[str, Any]:
    checks = of_submission(row, options.exercises)
    order = list(dict.fromkeys(filter(None, map(exercise_of, checks))))
    tests = [_test(check, order) for check in checks]
    if row.output:
        # What was printed belongs to the submission; the first test is where it is seen.
        text = printable(row.output)
        tests[0]["output"] = text if len(text) <= OUTPUT else text[: OUTPUT - 1] + "…"
    graded = row.status is SubmissionStatus.GRADED
    return {
        "version": 3,
        "status": verdict(row, checks) if graded else "error",
        "message": None if graded and verdict(row, checks) != "error" else printable(sentence(row)),
        "tests": tests,
    }


def _test(check: CheckRow, order: list[str]) -> dict[str, Any]:
    test: dict[str, Any] = {
        "name": f"{one_line(check.id)} ({number(check.points)} of {number(check.max_points)} points)",
        "status": {Outcome.ERROR: "error", Outcome.PASSED: "pass"}.get(check.outcome, "fail"),
        "message": printable(text_of(check)) or None,
        "output": None,
        "test_code": printable(check.claim),
    }
    if exercise := exercise_of(check):
        test["task_id"] = order.index(exercise) + 1
    return test
