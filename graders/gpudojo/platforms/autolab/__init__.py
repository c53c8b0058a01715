"""Autolab: `feedback.txt` for each submission, as its autograder prints it: the last line has the scores as JSON.

There is one problem for each exercise, called by its file's name, as the assessment's own problems have to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms._entries import (
    Entry,
    entries,
    one_line,
    printable,
    save,
    say_apart,
    told,
    whole,
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    say_apart(rows, options)
    return [
        save(each.folder / "feedback.txt", _feedback(each, options))
        for each in entries(rows, target, options)
    ]


def _feedback(entry: Entry, options: Options) -> str:
    row = entry.row
    printed = [f"What the code printed:\n{printable(row.output)}"] if row.output else []
    exercises = whole(row, options.exercises)
    scores = {one_line(each.exercise): each.score for each in exercises}
    lines = [*printed, *(one_line(line) for line in told(row, options.exercises))]
    return "\n".join([*lines, msgspec.json.encode({"scores": scores}).decode(), ""])
