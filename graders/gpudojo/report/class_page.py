"""The class page and the numbers on it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from markupsafe import Markup

from gpudojo.classes.check_statistics import ClassStatistics, absent_functions
from gpudojo.model.catalogue import known_misconceptions
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
from gpudojo.report.charts import Dot, draw_histogram, draw_scatter
from gpudojo.report.people import Person, nameless_author
from gpudojo.report.records import RecordStore
from gpudojo.report.rendering import render_page
from gpudojo.submissions.names import natural_key

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
    """A misconception: who has it, and one of them as an example."""

    key: str
    check: CheckRow
    person: Person
    row: SubmissionRow
    places: list[int] = field(default_factory=list)  # in the class's table


class ExerciseLine(NamedTuple):
    """An exercise in the table of means."""

    exercise: str
    title: str
    mean: float
    worth: float


class SectionLine(NamedTuple):
    """A section of the course; its students by their places in the class's table."""

    name: str
    all: list[int]
    absent: list[int]
    late: list[int]
    scores: list[float]  # of those who handed in


class TitleAndWorth(NamedTuple):
    """What is known of an exercise from all submissions that have it."""

    title: str
    worth: float


@dataclass
class Tally:
    """The numbers of a class; `add` counts one submission."""

    header: ClassResults
    # Gives back a text about several students with their pseudonyms.
    replace_names: Callable[[str], str] = str
    lines: list[SubmissionLine] = field(default_factory=list)
    exercises: dict[str, TitleAndWorth] = field(default_factory=dict)
    statistics: ClassStatistics = field(default_factory=ClassStatistics)
    # By check, the places in the class's table of those who failed, or did not hand it in.
    failed: dict[str, list[int]] = field(default_factory=dict)
    absent: dict[str, list[int]] = field(default_factory=dict)
    mistakes: dict[str, Mistake] = field(default_factory=dict)
    named: bool = False  # students have names, on a roster

    def add(self, row: SubmissionRow, person: Person) -> None:
        """Count a submission, which gets the next line of the class's table."""
        self.lines.append(self._make_line(row, person))
        self.statistics.count_row(row)
        self.named |= bool(row.roster and row.roster.name)
        for exercise in row.exercises:
            known = self.exercises.get(exercise.exercise)
            if known is None:
                known = TitleAndWorth(exercise.heading, 0.0)
            worth = max(known.worth, exercise.max_score)
            self.exercises[exercise.exercise] = TitleAndWorth(known.title, worth)
            if row.status is not SubmissionStatus.UNREADABLE:
                self._count_checks(exercise, row)

    def _make_line(self, row: SubmissionRow, person: Person) -> SubmissionLine:
        """Return a submission's line of the class's table."""
        waiting = set()
        untouched = set()
        for exercise in row.exercises:
            if exercise.to_grade and row.status is not ABSENT:
                waiting.add(exercise.exercise)
            elif _is_untouched(exercise):
                untouched.add(exercise.exercise)
        review = [person.hide_names(self.replace_names(text)) for text in row.review]
        return SubmissionLine(
            person,
            row.status,
            row.score,
            scores={exercise.exercise: exercise.score for exercise in row.exercises},
            absent=untouched,
            waiting=waiting,
            seconds=row.seconds,
            peak_bytes=row.peak_bytes,
            review=tuple(review),
            reason=person.hide_names(row.reason),
            grade=row.final,
            section=row.section,
            late=_describe_lateness(row),
        )

    def _count_checks(self, exercise: ExerciseRow, row: SubmissionRow) -> None:
        """Count the checks of an exercise that the last line failed, or did not hand in."""
        absent = absent_functions(exercise)
        place = len(self.lines) - 1
        for check in exercise.checks:
            if check.function in absent:
                self.absent.setdefault(check.id, []).append(place)
            elif check.outcome is Outcome.FAILED:
                self.failed.setdefault(check.id, []).append(place)
                if check.misconception:
                    self._count_mistake(check.misconception, check, row, place)

    def _count_mistake(self, key: str, check: CheckRow, row: SubmissionRow, place: int) -> None:
        """Count a misconception for the submission at this place of the class's table.

        The first one is its example, or the first with a line to show.
        """
        mistake = self.mistakes.get(key)
        if mistake is None:
            mistake = Mistake(key, check, nameless_author(row), row)
            self.mistakes[key] = mistake
        elif mistake.check.line is None and check.line is not None:
            mistake.check = check
            mistake.person = nameless_author(row)
            mistake.row = row
        if mistake.places[-1:] != [place]:
            mistake.places.append(place)

    @property
    def handed_in(self) -> list[SubmissionLine]:
        """The lines of those who handed in something."""
        return [line for line in self.lines if line.handed_in]

    @property
    def nobody(self) -> list[int]:
        """The places of those on the roster who handed in nothing."""
        return [place for place, line in enumerate(self.lines) if not line.handed_in]

    @property
    def sections(self) -> list[SectionLine]:
        names = {line.section for line in self.lines if line.section}
        return [self._section_of_name(name) for name in sorted(names, key=natural_key)]

    def _section_of_name(self, name: str) -> SectionLine:
        """Return a section with the places of its students."""
        section = SectionLine(name, [], [], [], [])
        for place, line in enumerate(self.lines):
            if line.section != name:
                continue
            section.all.append(place)
            if not line.handed_in:
                section.absent.append(place)
                continue
            section.scores.append(line.score)
            if line.late:
                section.late.append(place)
        return section

    @property
    def scores(self) -> list[float]:
        return [line.score for line in self.handed_in]

    @property
    def scaled(self) -> bool:
        """True if what is published is not the score itself."""
        for line in self.handed_in:
            grade = line.grade
            if grade.points != line.score or grade.max_points != self.header.max_score:
                return True
        return False

    @property
    def median(self) -> float:
        return statistics.median(self.scores) if self.scores else 0.0

    @property
    def quartiles(self) -> tuple[float, float]:
        """The score that a quarter does not reach, and that three quarters do not exceed."""
        scores = self.scores
        if not scores:
            return 0.0, 0.0
        if len(scores) == 1:
            return scores[0], scores[0]
        lower, _, upper = statistics.quantiles(scores, n=4, method="inclusive")
        return lower, upper

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores) if self.scores else 0.0

    @property
    def published(self) -> float:
        """The mean of the points to publish, in percent."""
        shares = [line.grade for line in self.handed_in if line.grade.max_points]
        if not shares:
            return 0.0
        percent = sum(100 * grade.points / grade.max_points for grade in shares)
        return percent / len(self.handed_in)

    @property
    def reached(self) -> list[ExerciseLine]:
        """The means of all exercises. Their sum is `mean`."""
        lines = []
        for exercise, known in sorted(self.exercises.items()):
            mean = statistics.fmean(line.scores.get(exercise, 0.0) for line in self.handed_in)
            lines.append(ExerciseLine(exercise, known.title, mean, known.worth))
        return lines

    @property
    def slowest(self) -> list[SubmissionLine]:
        """Submissions that ran, longest first."""
        lines = [line for line in self.lines if line.ran]
        return sorted(lines, key=lambda line: -line.seconds)

    @property
    def needs_review(self) -> list[SubmissionLine]:
        """Submissions to review before grades go out."""
        return [line for line in self.lines if line.review]

    @property
    def ranked(self) -> list[Mistake]:
        """Misconceptions, the most frequent first."""
        mistakes = self.mistakes.values()
        return sorted(mistakes, key=lambda mistake: (-len(mistake.places), mistake.key))


def _is_untouched(exercise: ExerciseRow) -> bool:
    """True if nothing of an exercise was handed in, and nobody gave points for it."""
    if exercise.override is not None:
        return False
    return absent_functions(exercise) >= {check.function for check in exercise.checks}


def _describe_lateness(row: SubmissionRow) -> str:
    """Return "2.5 days, −4" in short; "late", where no more is known; empty if it was in time."""
    if row.timing is None or not row.timing.late:
        return ""
    text = describe_delay(row.timing) or "late"
    if row.timing.penalty:
        text += f", −{format_points(row.timing.penalty)}"
    return text


def class_page(
    tally: Tally, records: RecordStore, students: bool, anonymous: bool, similar: bool = False
) -> str:
    """Return the page's text; with `students`, each name is a link to the student's own page."""
    known = known_misconceptions()

    def name_of(mistake: Mistake) -> str:
        """The name of a misconception; its key, where no day declares it any more."""
        return known[mistake.key].name if mistake.key in known else mistake.key

    distribution: Markup | str = ""
    if tally.scores:
        distribution = draw_histogram(tally.scores, tally.header.max_score, clickable=not anonymous)
    dots = []
    for line in tally.slowest:
        kind = line.status.value.replace(" ", "-")
        dots.append(Dot(line.seconds, line.peak_bytes, kind))
    return render_page(
        "class.html",
        "class.js",
        tally=tally,
        late=[place for place, line in enumerate(tally.lines) if line.late],
        mean=statistics.fmean,
        middle=statistics.median,
        archive=records,
        students=students,
        similar=similar,
        anonymous=anonymous,
        misconceptions=known,
        name=name_of,
        histogram=distribution,
        scatter=draw_scatter(dots),
    )
