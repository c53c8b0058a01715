"""Exercism: `results.json` for each submission, as a test runner of version 3 writes it.

The format knows no points, so each test's name ends with its own: `(0.25 of 0.5 points)`. A submission that was not
graded has the status `error` and the reason as its message. A check that gpudojo could not judge is an `error` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from gpudojo.model.results import Outcome, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import number
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import (
    Entry,
    folder,
    named,
    of_submission,
    one_line,
    points,
    printable,
    save_json,
    sentence,
    verdict,
)

OUTPUT: Final = 500


def export(results: Results, target: Path, options: Options) -> list[Path]:
    return [
        save_json(folder(target, name, options) / "results.json", _result(row, options))
        for name, row in named(results, options)
    ]


def _result(row: SubmissionRow, options: Options) -> dict[str, Any]:
    entries = of_submission(row, options.exercises)
    order = list(dict.fromkeys(entry.exercise for entry in entries if entry.exercise))
    tests = [_test(entry, order) for entry in entries]
    if row.output:
        # What was printed belongs to the submission; the first test is where it is seen.
        text = printable(row.output)
        tests[0]["output"] = text if len(text) <= OUTPUT else text[: OUTPUT - 1] + "…"
    graded = row.status is SubmissionStatus.GRADED
    return {
        "version": 3,
        "status": verdict(row, entries) if graded else "error",
        "message": None if graded and verdict(row, entries) != "error" else printable(sentence(row)),
        "tests": tests,
    }


def _test(entry: Entry, order: list[str]) -> dict[str, Any]:
    test: dict[str, Any] = {
        "name": f"{one_line(entry.name)} ({number(points(entry.parts))} of {number(points(entry.max_parts))} points)",
        "status": "error" if entry.ours else "pass" if entry.kind == Outcome.PASSED else "fail",
        "message": printable(entry.text) or None,
        "output": None,
        "test_code": printable(entry.claim),
    }
    if entry.exercise:
        test["task_id"] = order.index(entry.exercise) + 1
    return test
