"""The class page and the numbers on it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpudojo.classes.check_statistics import ClassStatistics, absent_functions
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.results import (
    CheckRow,
    ClassResults,
    ExerciseRow,
    Grade,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
)
from gpudojo.model.results_file import format_points
from gpudojo.platforms._texts import describe_delay
from gpudojo.report.rendering import Person, anyone, histogram, page, scatter
from gpudojo.report.student_page import RecordStore
from gpudojo.submissions.entries import natural

ABSENT: Final = SubmissionStatus.ABSENT


@dataclass(frozen=True)
class SubmissionLine:
    """One submission in the class's table."""

    person: Person
    status: SubmissionStatus
    score: float
    scores: dict[str, float]  # by exercise
    absent: set[str]  # exercises of which nothing was handed in
    waiting: set[str]  # what a person still has to grade
    seconds: float
    peak_bytes: int
    review: tuple[str, ...]
    reason: str
    grade: Grade
    section: str
    late: str  # how late, and the penalty; empty where it was in time or nothing is known

    @property
    def ran(self) -> bool:
        return self.seconds > 0 or self.peak_bytes > 0

    @property
    def handed_in(self) -> bool:
        return self.status is not ABSENT


@dataclass
class Mistake:
    """A misconception: the places of those who have it in the class's table, and one of them as an example."""

    key: str
    check: CheckRow
    person: Person
    row: SubmissionRow
    places: list[int] = field(default_factory=list)


@dataclass
class Tally:
    """The numbers of a class; `add` counts one submission."""

    header: ClassResults
    says: Callable[[str], str] = str  # a text about several students, with their pseudonyms
    lines: list[SubmissionLine] = field(default_factory=list)
    exercises: dict[str, tuple[str, float]] = field(
        default_factory=dict
    )  # title and maximum, by exercise
    statistics: ClassStatistics = field(default_factory=ClassStatistics)
    failed: dict[str, list[int]] = field(
        default_factory=dict
    )  # by check: places in the class's table
    absent: dict[str, list[int]] = field(default_factory=dict)
    mistakes: dict[str, Mistake] = field(default_factory=dict)
    named: bool = False  # students have names, on a roster

    def add(self, row: SubmissionRow, person: Person) -> None:
        absent = {exercise.exercise: absent_functions(exercise) for exercise in row.exercises}
        read = row.status is not SubmissionStatus.UNREADABLE
        waiting = {
            each.exercise for each in row.exercises if each.to_grade and row.status is not ABSENT
        }
        self.lines.append(
            SubmissionLine(
                person,
                row.status,
                row.score,
                {exercise.exercise: exercise.score for exercise in row.exercises},
                {e.exercise for e in row.exercises if _untouched(e, absent[e.exercise])} - waiting,
                waiting,
                row.seconds,
                row.peak_bytes,
                tuple(person.says(self.says(text)) for text in row.review),
                person.says(row.reason),
                row.final,
                row.section,
                _late(row),
            )
        )
        self.statistics.add(row)
        self.named |= bool(row.roster and row.roster.name)
        for exercise in row.exercises:
            title, worth = self.exercises.get(exercise.exercise, (exercise.heading, 0.0))
            self.exercises[exercise.exercise] = (title, max(worth, exercise.max_score))
            if read:
                self._count(exercise.checks, absent[exercise.exercise], row)

    def _count(self, checks: list[CheckRow], absent: set[str], row: SubmissionRow) -> None:
        place = len(self.lines) - 1
        for check in checks:
            if check.function in absent:
                self.absent.setdefault(check.id, []).append(place)
            elif check.outcome is Outcome.FAILED:
                self.failed.setdefault(check.id, []).append(place)
                if check.misconception:
                    self._mistaken(check.misconception, check, row, place)

    def _mistaken(self, key: str, check: CheckRow, row: SubmissionRow, place: int) -> None:
        known = self.mistakes.get(key)
        if known is None:
            known = self.mistakes[key] = Mistake(key, check, anyone(row), row)
        elif known.check.line is None and check.line is not None:  # a better example
            known.check, known.person, known.row = check, anyone(row), row
        if known.places[-1:] != [place]:
            known.places.append(place)

    @property
    def handed_in(self) -> list[SubmissionLine]:
        return [line for line in self.lines if line.handed_in]

    @property
    def nobody(self) -> list[int]:
        """The places of those on the roster who handed in nothing."""
        return [place for place, line in enumerate(self.lines) if not line.handed_in]

    @property
    def sections(self) -> list[tuple[str, list[int], list[int], list[int], list[float]]]:
        """Of each section: its name, the places of all, of the absent and of the late, and scores of who handed in."""
        found = []
        for name in sorted({line.section for line in self.lines if line.section}, key=natural):
            places = [place for place, line in enumerate(self.lines) if line.section == name]
            sent = [place for place in places if self.lines[place].handed_in]
            absent = [place for place in places if not self.lines[place].handed_in]
            late = [place for place in sent if self.lines[place].late]
            found.append((name, places, absent, late, [self.lines[place].score for place in sent]))
        return found

    @property
    def scores(self) -> list[float]:
        return [line.score for line in self.handed_in]

    @property
    def scaled(self) -> bool:
        """Whether what is published is not the score itself."""
        return any((line.grade.points, line.grade.max_points) != (line.score, self.header.max_score)
                   for line in self.handed_in)  # fmt: skip

    @property
    def median(self) -> float:
        return statistics.median(self.scores) if self.scores else 0.0

    @property
    def quartiles(self) -> tuple[float, float]:
        """The score that a quarter does not reach, and the one that three quarters do not exceed."""
        scores = self.scores
        lower, _, upper = (
            statistics.quantiles(scores, n=4, method="inclusive")
            if len(scores) > 1
            else ([*scores, 0.0] * 3)[:3]
        )
        return lower, upper

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores) if self.scores else 0.0

    @property
    def published(self) -> float:
        """The mean of the points to publish, in percent."""
        shares = [
            100 * line.grade.points / line.grade.max_points
            for line in self.handed_in
            if line.grade.max_points
        ]
        return sum(shares) / len(self.handed_in) if shares else 0.0

    @property
    def reached(self) -> list[tuple[str, str, float, float]]:
        """Key, title, mean and points of each exercise. The sum of the means is `mean`."""
        return [
            (
                key,
                title,
                statistics.fmean(line.scores.get(key, 0.0) for line in self.handed_in),
                worth,
            )
            for key, (title, worth) in sorted(self.exercises.items())
        ]

    @property
    def slowest(self) -> list[SubmissionLine]:
        """Submissions that ran, longest first."""
        return sorted((line for line in self.lines if line.ran), key=lambda line: -line.seconds)

    @property
    def needs_review(self) -> list[SubmissionLine]:
        """Submissions to review before grades go out."""
        return [line for line in self.lines if line.review]

    @property
    def ranked(self) -> list[Mistake]:
        return sorted(
            self.mistakes.values(), key=lambda mistake: (-len(mistake.places), mistake.key)
        )


def _untouched(exercise: ExerciseRow, absent: set[str]) -> bool:
    """Whether nothing of an exercise was handed in, and nobody gave points for it."""
    return exercise.override is None and absent >= {check.function for check in exercise.checks}


def _late(row: SubmissionRow) -> str:
    """In short: "2.5 days, −4"; "late", where no more is known."""
    if row.timing is None or not row.timing.late:
        return ""
    return (describe_delay(row.timing) or "late") + (
        f", −{format_points(row.timing.penalty)}" if row.timing.penalty else ""
    )


def class_page(
    tally: Tally, archive: RecordStore, students: bool, anonymous: bool, similar: bool = False
) -> str:
    """The page's text; with `students`, each name is a link to the student's own page."""
    known = misconceptions()
    dots = [
        (line.seconds, line.peak_bytes, line.status.value.replace(" ", "-"))
        for line in tally.slowest
    ]
    return page(
        "class.html",
        "class.js",
        tally=tally,
        late=[place for place, line in enumerate(tally.lines) if line.late],
        mean=statistics.fmean,
        middle=statistics.median,
        archive=archive,
        students=students,
        similar=similar,
        anonymous=anonymous,
        misconceptions=known,
        name=lambda mistake: known[mistake.key].name if mistake.key in known else mistake.key,
        histogram=histogram(tally.scores, tally.header.max_score, clickable=not anonymous)
        if tally.scores
        else "",
        scatter=scatter(dots),
    )
