"""Gradescope: `results.json` for each submission, as its autograder harness reads it.

Everything is plain text: what a student printed or named is never read as HTML or Markdown. Hints for the teacher
stay out, because students see this file's texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpudojo.model.results import SubmissionRow
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
)


def export(results: Results, target: Path, options: Options) -> list[Path]:
    return [
        save_json(folder(target, name, options) / "results.json", _result(row, results, options))
        for name, row in named(results, options)
    ]


def _result(row: SubmissionRow, results: Results, options: Options) -> dict[str, Any]:
    entries = of_submission(row, options.exercises)
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
        "tests": [_test(entry, number) for number, entry in enumerate(entries, 1)],
    }


def _test(entry: Entry, number: int) -> dict[str, Any]:
    said = [entry.claim, entry.text]
    return {
        "score": points(entry.parts),
        "max_score": points(entry.max_parts),
        "status": "passed" if entry.good else "failed",
        "name": one_line(entry.name),
        "number": str(number),
        "output": printable("\n".join(text for text in said if text)),
        "output_format": "text",
        "tags": [tag for tag in (entry.exercise, entry.function) if tag],
        "visibility": "visible",
    }
