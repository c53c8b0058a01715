"""Autolab, inside its container: `feedback.txt` for each submission, whose last line has the
scores as JSON.

There is one problem for each exercise, called by its file's name, as the assessment's own
problems have to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpudojo.model.results import ClassResults, SubmissionRow
from gpudojo.platforms import Options
from gpudojo.platforms._files import save_text
from gpudojo.platforms._rows import entries_to_export, exercises_with_missing
from gpudojo.platforms._texts import (
    describe_output,
    lines_for_student,
    one_line,
    printable_lines,
    say_how_many_have_other_points,
)


def export(
    header: ClassResults, rows: Iterable[SubmissionRow], target: Path, options: Options
) -> list[Path]:
    """Write `feedback.txt` for each submission, or the one asked for, and return the files.

    It is in a folder of its own below `target`, that of the one asked for in `target` itself. How
    many have other points in the course is told by `options.say`. Raises OSError.
    """
    say_how_many_have_other_points(rows, options)
    written = []
    for entry in entries_to_export(rows, target, options):
        text = _feedback_text(entry.row, options)
        written.append(save_text(entry.folder / "feedback.txt", text))
    return written


def _feedback_text(row: SubmissionRow, options: Options) -> str:
    """Return what a student reads; Autolab takes the scores from its last line."""
    lines = []
    if row.output:
        lines.append(printable_lines(describe_output(row)))
    lines += [one_line(line) for line in lines_for_student(row, options.exercises)]
    scores = {}
    for exercise in exercises_with_missing(row, options.exercises):
        scores[one_line(exercise.exercise)] = exercise.score
    lines.append(msgspec.json.encode({"scores": scores}).decode())
    return "\n".join([*lines, ""])
