"""Gradescope: `results.json` for each submission, as its autograder harness reads it.

Everything is plain text: what a student printed or named is never read as HTML or Markdown. Hints for the teacher
stay out, because students see this file's texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpudojo.model.results import CheckRow, SubmissionRow
from gpudojo.platforms import Options, Results
from gpudojo.platforms._entries import (
    exercise_of,
    folder,
    good,
    named,
    of_submission,
    one_line,
    printable,
    save_json,
    sentence,
    text_of,
)


def export(results: Results, target: Path, options: Options) -> list[Path]:
    return [
        save_json(folder(target, name, options) / "results.json", _result(row, results, options))
        for name, row in named(results, options)
    ]


def _result(row: SubmissionRow, results: Results, options: Options) -> dict[str, Any]:
    checks = of_submission(row, options.exercises)
    output = [sentence(row)]
    if row.output:
        output.append(f"What the code printed:\n{row.output}")
    return {
        "score": row.score,
        "execution_time": row.seconds,
        "output": printable("\n\n".join(output)),
        "output_format": "text",
        "test_output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"gpudojo": results.gpudojo, "day": results.day, "bench": results.bench, "digest": row.digest},
        "tests": [_test(check, number) for number, check in enumerate(checks, 1)],
    }


def _test(check: CheckRow, number: int) -> dict[str, Any]:
    said = [check.claim, text_of(check)]
    return {
        "score": check.points,
        "max_score": check.max_points,
        "status": "passed" if good(check) else "failed",
        "name": one_line(check.id),
        "number": str(number),
        "output": printable("\n".join(text for text in said if text)),
        "output_format": "text",
        "tags": [tag for tag in (exercise_of(check), check.function) if tag],
        "visibility": "visible",
    }
