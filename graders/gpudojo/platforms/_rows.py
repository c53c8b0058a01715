"""What exporters write of a submission: rows that add up to its points, and who may see them."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.classes.names import name_key
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
from gpudojo.platforms import Options
from gpudojo.platforms._files import file_names

MILLION: Final = 1_000_000
MOST_SUGGESTED: Final = 3  # submissions, where none has the name that was given
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
    """Yield the submissions to export."""
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

    What a person graded is one row. So is extra credit, whose maximum does not count.
    """
    if exercise.override or exercise.by_hand or exercise.extra:
        return [_row_by_hand(exercise)]
    checks = list(exercise.checks)
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
        message = "a person still has to grade this."
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
    )


def _row_of_rest(name: str, row: SubmissionRow, millionths: int) -> CheckRow:
    """Return a row for points that no check of a submission accounts for; it has no function."""
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
    """True if a check costs the student no points: it passed, or could not be judged."""
    return check.outcome in (Outcome.PASSED, Outcome.ERROR)


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
    """Yield the submissions to export; a name does not depend on what is chosen."""
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

    Raises BadClass where there is none or more than one.
    """
    names_of = {row.submission: _names_of(row) for row in rows}
    if name in names_of:
        return name
    wanted = name_key(name)
    matches = [one for one, names in names_of.items() if wanted in names]
    if len(matches) == 1:
        return matches[0]
    if matches:
        students = ", ".join(matches)
        raise BadClass(f"{len(matches)} students are called {name!r}: {students}")
    raise BadClass(f"{file} has no submission {name!r}{_suggest_submission(name, names_of)}")


def _suggest_submission(name: str, names_of: Mapping[str, set[str]]) -> str:
    """Return which submissions may be meant, for the end of a sentence; empty for none."""
    wanted = name_key(name)
    similar = []
    for submission, names in names_of.items():
        if any(wanted in each for each in names):
            similar.append(submission)
    if not similar:
        similar = difflib.get_close_matches(name, list(names_of), MOST_SUGGESTED)
    if not similar:
        return ""
    names_in_words = " or ".join(repr(one) for one in similar[:MOST_SUGGESTED])
    return f"; did you mean {names_in_words}?"


def _names_of(row: SubmissionRow) -> set[str]:
    """Return everything that a student may be called, as keys that can be compared."""
    names = [row.submission, row.student or "", row.identifier or ""]
    if row.roster:
        person = row.roster
        names += [person.id, person.name, person.email, person.github, person.login]
    return {name_key(name) for name in names} - {""}
