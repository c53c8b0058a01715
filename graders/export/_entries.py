"""What is a submission made of, for a program that only knows tests? Its checks, and what is left of its points.

Every list of entries is worth exactly what the submission is worth, has at least one entry, and says why a submission
was not graded, so that no format has to think of this again. Points are counted in millionths: whole numbers add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from graders.export import Options, Part, Results
from graders.results import CheckRow, ExerciseRow, Outcome, Status, SubmissionRow
from graders.results.spreadsheet import number

MILLION: Final = 1_000_000
NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Entry:
    """One test, as other programs call it."""

    name: str  # "04_modifying_training_loop_gpu::train_epoch::runs"
    kind: str  # an Outcome, or the Status of a submission that was not graded
    parts: int  # points in millionths
    max_parts: int
    exercise: str = ""
    function: str = ""
    claim: str = ""
    message: str = ""
    text: str = ""  # all there is to say, on several lines
    file: str = ""
    line: int = 0

    @property
    def good(self) -> bool:
        """Whether it costs the student nothing."""
        return self.kind in (Outcome.PASSED, Outcome.ERROR)

    @property
    def ours(self) -> bool:
        return self.kind == Outcome.ERROR


def parts(points: float) -> int:
    return round(points * MILLION)


def points(parts: int) -> float:
    return parts / MILLION


def chosen(results: Results, options: Options) -> Iterator[SubmissionRow]:
    """The submissions to export."""
    return (row for row in results.submissions if options.submission in (None, row.submission))


def whole(row: SubmissionRow, known: Iterable[Part]) -> list[ExerciseRow]:
    """Its exercises, with those of the day that were not reached where their points are what is missing."""
    have = {exercise.exercise for exercise in row.exercises}
    missing = [
        ExerciseRow(each.exercise, each.title, 0.0, each.max_score) for each in known if each.exercise not in have
    ]
    left = parts(row.max_score) - sum(parts(exercise.max_score) for exercise in row.exercises)
    if sum(parts(exercise.max_score) for exercise in missing) != left:
        return list(row.exercises)
    return sorted([*row.exercises, *missing], key=lambda exercise: exercise.exercise)


def of_exercise(exercise: ExerciseRow, row: SubmissionRow) -> list[Entry]:
    entries = [_entry(check, exercise.exercise) for check in exercise.checks]
    left = parts(exercise.max_score) - sum(entry.max_parts for entry in entries)
    if left or not entries:
        entries.append(_left(exercise.exercise, row, left, exercise.exercise))
    return entries


def of_submission(row: SubmissionRow, known: Iterable[Part]) -> list[Entry]:
    """All entries of a submission, in the order of its exercises."""
    exercises = whole(row, known)
    entries = [entry for exercise in exercises for entry in of_exercise(exercise, row)]
    left = parts(row.max_score) - sum(entry.max_parts for entry in entries)
    told = any(entry.kind == row.status for entry in entries)
    if left or not entries or (row.status is not Status.GRADED and not told):
        entries.append(_left("submission", row, left))
    return entries


def sentence(row: SubmissionRow) -> str:
    """What became of the submission, for its student: never what only a teacher should read."""
    got = f"{number(row.score)} of {number(row.max_score)} points"
    return got if row.status is Status.GRADED else f"{got}: {_reason(row)}"


def verdict(row: SubmissionRow, entries: list[Entry]) -> str:
    """pass, fail or error (ours), as several formats call them."""
    if row.status is not Status.GRADED or not all(entry.good for entry in entries):
        return "fail"
    return "error" if any(entry.ours for entry in entries) else "pass"


def printable(text: str) -> str:
    """The text without characters that neither XML nor a terminal should get."""
    return NOT_XML.sub("\ufffd", text.replace("\x1b", "\ufffd"))


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _reason(row: SubmissionRow) -> str:
    return row.reason or f"this submission was not graded: {row.status.value}."


def _left(name: str, row: SubmissionRow, left: int, exercise: str = "") -> Entry:
    """What no check of a submission accounts for."""
    if row.status is not Status.GRADED:
        reason = _reason(row)
        return Entry(name, row.status.value, 0, left, exercise, message=reason, text=reason)
    if not left:
        return Entry(name, Outcome.PASSED.value, 0, 0, exercise)
    reason = "nothing that earns these points was graded."
    return Entry(name, Outcome.TODO.value, 0, left, exercise, message=reason, text=reason)


def _entry(check: CheckRow, exercise: str) -> Entry:
    return Entry(
        name=check.id,
        kind=check.outcome.value,
        parts=parts(check.points),
        max_parts=parts(check.max_points),
        exercise=exercise,
        function=check.function,
        claim=check.claim,
        message=check.message,
        text="\n".join(_lines(check)),
        file=check.file or "",
        line=check.line or 0,
    )


def _lines(check: CheckRow) -> Iterator[str]:
    if check.outcome is not Outcome.FAILED:
        if check.message:
            yield check.message
        return
    place = f"line {check.line}" if check.line else ""
    if place and check.cell:
        place = f"code cell {check.cell}, {place}"
    where = ", ".join(part for part in (check.file, place) if part)
    labelled = {
        "happened": check.happened or check.message,
        "expected": check.expected,
        "where": where,
        "mistake": check.why,
        "hint": check.hint,
    }
    for label, text in labelled.items():
        if text:
            yield f"{label}: {text}"
