"""What exporters write of a submission: rows that add up to its points, and who may see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.classes.names import NamesOfPerson, find_people, suggest_people
from gpudojo.model.errors import BadClass
from gpudojo.model.results import (
    CheckRow,
    ClassResults,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    When,
)
from gpudojo.model.results_file import format_points
from gpudojo.platforms import Options
from gpudojo.platforms._files import file_names

MILLION: Final = 1_000_000
SUBMISSION: Final = "submission"  # the name of a row that stands for the whole submission


def in_millionths(points: float) -> int:
    """Return points as a whole number, so that sums are exact."""
    return round(points * MILLION)


def points_of(millionths: int) -> float:
    """Return points for a number of millionths."""
    return millionths / MILLION


def published_maximum(header: ClassResults) -> float:
    """Return what a class is worth on the platform."""
    if header.scale is None:
        return header.max_score
    return header.scale


@dataclass(frozen=True)
class VisibleRows:
    """Rows as students may see them at a time.

    They have no hints where the course does not show them yet. A student with an extension has
    a deadline of their own.
    """

    header: ClassResults
    rows: Iterable[SubmissionRow]
    now: datetime
    early: bool = True  # with the rows of students who should not see their results yet

    def __iter__(self) -> Iterator[SubmissionRow]:
        """Yield the rows, as far as students may see them."""
        for row in self.rows:
            if not self.early and not self.shows_results(row):
                continue
            if self._shows_to(self.header.visibility.hints, row):
                yield row
            else:
                yield _without_hints(row)

    def shows_results(self, row: SubmissionRow) -> bool:
        """True if the student may see the results."""
        return self._shows_to(self.header.visibility.results, row)

    def _shows_to(self, when: When, row: SubmissionRow) -> bool:
        """True if the student of a row may see now what the course shows at that time."""
        deadline = self.header.deadline
        if row.timing and row.timing.deadline:
            deadline = row.timing.deadline
        return self.header.visibility.shows(when, deadline, self.now)

    def describe_withheld(self) -> str:
        """Say whose results the course does not show yet; empty where it shows all."""
        counts = Counter(self.shows_results(row) for row in self.rows)
        withheld = counts[False]
        if not withheld:
            return ""
        when = "after the deadline"
        if self.header.visibility.results == "never":
            when = "never"
        text = f"the course shows results {when}"
        if counts[True]:
            text += f"; {withheld} of {counts.total()} students still have time"
        return text


def _without_hints(row: SubmissionRow) -> SubmissionRow:
    """Return a row whose checks have no hints."""
    exercises = []
    for exercise in row.exercises:
        checks = [msgspec.structs.replace(check, hint="") for check in exercise.checks]
        exercises.append(msgspec.structs.replace(exercise, checks=checks))
    return msgspec.structs.replace(row, exercises=exercises)


def chosen_rows(rows: Iterable[SubmissionRow], options: Options) -> Iterator[SubmissionRow]:
    """Yield the submissions to export: the one that was asked for, or all."""
    for row in rows:
        if options.submission in (None, row.submission):
            yield row


def exercises_with_missing(
    row: SubmissionRow, exercises_of_day: Iterable[ExerciseRow]
) -> list[ExerciseRow]:
    """Return a submission's exercises, and those of the day that were not reached.

    The latter are there only where their points are exactly what is missing of the maximum.
    """
    reached = {exercise.exercise for exercise in row.exercises}
    missing = [each for each in exercises_of_day if each.exercise not in reached]
    counted = [exercise for exercise in row.exercises if not exercise.extra]
    unaccounted = in_millionths(row.max_score) - _sum_of_maxima(counted)
    if _sum_of_maxima(missing) != unaccounted:
        return list(row.exercises)
    exercises = [*row.exercises, *missing]
    return sorted(exercises, key=lambda exercise: exercise.exercise)


def _sum_of_maxima(exercises: Iterable[ExerciseRow]) -> int:
    """Return what exercises are worth together, in millionths."""
    return sum(in_millionths(exercise.max_score) for exercise in exercises)


def rows_of_exercise(exercise: ExerciseRow, row: SubmissionRow) -> list[CheckRow]:
    """Return the checks of an exercise, and a row for points that no check accounts for.

    What a person graded is one row. So is extra credit, whose maximum does not count. The first row
    has what a person says about the exercise.
    """
    if exercise.override or exercise.by_hand or exercise.extra:
        return [_row_by_hand(exercise)]
    checks = list(exercise.checks)
    if exercise.remark and checks:
        remark = " ".join(filter(None, (exercise.remark, checks[0].remark)))
        checks[0] = msgspec.structs.replace(checks[0], remark=remark)
    unaccounted = in_millionths(exercise.max_score)
    unaccounted -= sum(in_millionths(check.max_points) for check in checks)
    if unaccounted or not checks:
        checks.append(_row_of_rest(exercise.exercise, row, unaccounted))
    return checks


def rows_of_submission(
    row: SubmissionRow, exercises_of_day: Iterable[ExerciseRow]
) -> list[CheckRow]:
    """Return all rows of a submission, in the order of its exercises.

    One row more stands for the submission where the rows do not add up to its maximum, where
    there are none, or where no other row tells why it was not graded.
    """
    checks = []
    for exercise in exercises_with_missing(row, exercises_of_day):
        checks += rows_of_exercise(exercise, row)
    unaccounted = in_millionths(row.max_score)
    unaccounted -= sum(in_millionths(check.max_points) for check in checks)
    tells_status = row.status is SubmissionStatus.GRADED
    for check in checks:
        if outcome_or_status(check, row) == row.status:
            tells_status = True
    if unaccounted or not checks or not tells_status:
        checks.append(_row_of_rest(SUBMISSION, row, unaccounted))
    return checks


def _row_by_hand(exercise: ExerciseRow) -> CheckRow:
    """Return the row of an exercise that a person graded, or still has to grade."""
    override = exercise.override
    message = ""
    if override:
        message = override.comment or "graded by hand."
    elif exercise.by_hand:
        message = describe_rubric(exercise)
        if exercise.to_grade:
            left = "a person still has to grade this."
            message = f"{message}; {left}" if message else left
    if exercise.to_grade:
        outcome = Outcome.TODO
    elif exercise.score >= exercise.max_score:
        outcome = Outcome.PASSED
    else:
        outcome = Outcome.FAILED
    if exercise.extra:
        max_points = 0.0
    else:
        max_points = exercise.max_score
    return CheckRow(
        id=exercise.exercise,
        function="",
        outcome=outcome,
        points=exercise.score,
        max_points=max_points,
        message=message,
        claim=exercise.heading,
        override=override,
        remark=exercise.remark,
    )


def describe_rubric(exercise: ExerciseRow) -> str:
    """Return the lines of a rubric with the points and comments that a person gave."""
    parts = []
    for line in exercise.rubric_lines.values():
        if line.override is None:
            continue
        points = f"{format_points(line.override.points)} of {format_points(line.max_points)}"
        comment = f" ({line.override.comment})" if line.override.comment else ""
        parts.append(f"{line.text}: {points}{comment}")
    return "; ".join(parts)


def _row_of_rest(name: str, row: SubmissionRow, millionths: int) -> CheckRow:
    """Return a row for points that no check of a submission accounts for; it has no function.

    `name` is that of the exercise or submission; `millionths` are of points.
    """
    if row.status is not SubmissionStatus.GRADED:
        outcome = Outcome.FAILED
        message = status_reason(row)
    elif millionths:
        outcome = Outcome.TODO
        message = "nothing that earns these points was graded."
    else:
        outcome = Outcome.PASSED
        message = ""
    return CheckRow(name, "", outcome, 0.0, points_of(millionths), message)


def status_reason(row: SubmissionRow) -> str:
    """Say why a submission was not graded."""
    if row.reason:
        return row.reason
    if row.status is SubmissionStatus.ABSENT:
        return "nothing was handed in."
    return f"this submission was not graded: {row.status.value}."


def exercise_of(check: CheckRow) -> str:
    """Return the exercise of a row; empty where the row stands for the whole submission."""
    if check.id == SUBMISSION:
        return ""
    return check.id.partition("::")[0]


def outcome_or_status(check: CheckRow, row: SubmissionRow) -> str:
    """Return the outcome of a check.

    Of a row that stands for what was not graded, that is the submission's status.
    """
    if check.function or check.claim or row.status is SubmissionStatus.GRADED:
        return check.outcome.value
    return row.status.value


def costs_nothing(check: CheckRow) -> bool:
    """True if a check costs the student no points.

    It passed, could not be judged, or a person gave all of its points.
    """
    if check.override is not None or check.outcome is Outcome.ERROR:
        return check.points >= check.max_points
    return check.outcome is Outcome.PASSED


def overall_outcome(row: SubmissionRow, checks: list[CheckRow]) -> str:
    """Return "pass", "fail" or "error" (gpudojo's own), as several formats call them."""
    if row.status is not SubmissionStatus.GRADED or not all(map(costs_nothing, checks)):
        return "fail"
    if any(check.outcome is Outcome.ERROR for check in checks):
        return "error"
    return "pass"


@dataclass(frozen=True)
class Entry:
    """A submission to export."""

    row: SubmissionRow
    checks: list[CheckRow]  # all of its rows, which add up to its points
    name: str  # for a file
    folder: Path  # its own; the target itself where it was asked for alone: programs look there


def entries_to_export(
    rows: Iterable[SubmissionRow], target: Path, options: Options
) -> Iterator[Entry]:
    """Yield the submissions to export: the one that was asked for in `options`, or all.

    `rows` are gone through twice: a name for files does not depend on what is chosen. Each has a
    folder of its own below `target`; the one that was asked for has `target` itself. No folder is
    made.
    """
    names = file_names(rows)
    for name, row in zip(names, rows, strict=True):
        if options.submission is None:
            folder = target / name
        elif options.submission == row.submission:
            folder = target
        else:
            continue
        yield Entry(row, rows_of_submission(row, options.exercises), name, folder)


def find_submission(name: str, rows: Iterable[SubmissionRow], file: Path) -> str:
    """Return the submission of this name, or of the one student with this name, id or address.

    `file` is what an error names. Raises BadClass where there is none or more than one.
    """
    names_of = {row.submission: _names_of(row) for row in rows}
    if name in names_of:
        return name
    matches = find_people(name, names_of)
    if len(matches) == 1:
        return matches[0]
    if matches:
        students = ", ".join(matches)
        raise BadClass(f"{len(matches)} students are called {name!r}: {students}")
    hint = suggest_people(name, names_of.values(), "")
    raise BadClass(f"{file} has no submission {name!r}{hint}")


def find_submissions(
    names: Iterable[str], rows: Iterable[SubmissionRow], file: Path
) -> tuple[str, ...]:
    """Return the submissions of these names, each once.

    `file` is what an error names. Raises BadClass for a name that nobody or several have.
    """
    found = [find_submission(name, rows, file) for name in names]
    return tuple(dict.fromkeys(found))


def _names_of(row: SubmissionRow) -> NamesOfPerson:
    """Return everything that a student may be called."""
    names = [row.student or "", row.identifier or ""]
    if row.roster:
        names += row.roster.all_names
    return NamesOfPerson.from_names(row.submission, names)
