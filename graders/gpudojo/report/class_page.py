"""The class page and the numbers on it."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from markupsafe import Markup

from gpudojo.classes.check_statistics import ClassStatistics, absent_functions, misconceptions_of
from gpudojo.classes.reviews import ReviewFilter
from gpudojo.model.catalogue import day_title, known_misconceptions
from gpudojo.model.errors import BadDay
from gpudojo.model.results import (
    CheckRow,
    ClassResults,
    ExerciseRow,
    Grade,
    GroupFilter,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    split_sections,
)
from gpudojo.model.results_file import format_points
from gpudojo.platforms._rows import published_maximum
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
    review_rank: int  # the most serious reasons to review are 0
    counts_in_means: bool
    reason: str
    grade: Grade
    section: str
    late: str  # how late, and the penalty; empty where it was in time or nothing is known
    is_new_work: bool  # False for what another member of the group stands for
    is_listed_for_review: bool  # False also where another member has the same to review

    @property
    def ran(self) -> bool:
        """True if a time or memory was measured."""
        return self.seconds > 0 or self.peak_bytes > 0

    @property
    def handed_in(self) -> bool:
        """False for those on the roster who handed in nothing."""
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
    points: list[float]  # to publish, of those that count in means


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
    has_groups: bool = False  # several students have one submission, which counts once
    groups: GroupFilter = field(default_factory=GroupFilter)
    reviews: ReviewFilter = field(default_factory=ReviewFilter)
    # By check, the places in the class's table of those who failed, or did not hand it in: all
    # members of a group.
    failed: dict[str, list[int]] = field(default_factory=dict)
    absent: dict[str, list[int]] = field(default_factory=dict)
    mistakes: dict[str, Mistake] = field(default_factory=dict)
    named: bool = False  # students have names, on a roster
    reviewed: list[int] = field(default_factory=list)  # places of those whom a person reviewed

    @property
    def title(self) -> str:
        """The title of the course, else that of the day; its name where it is not installed."""
        if self.header.title:
            return self.header.title
        with contextlib.suppress(BadDay, KeyError):
            return day_title(self.header.day)
        return self.header.day

    def add(self, row: SubmissionRow, person: Person) -> None:
        """Count a submission, which gets the next line of the class's table.

        Its exercises, checks and mistakes are counted, too.
        """
        self.lines.append(self._make_line(row, person))
        self.statistics.count_row(row)
        if row.reviewed is not None:
            self.reviewed.append(len(self.lines) - 1)
        if row.roster and row.roster.name:
            self.named = True
        if row.group:
            self.has_groups = True
        for exercise in row.exercises:
            self._note_exercise(exercise)
            if row.was_judged:
                self._note_checks(exercise)
        if row.was_judged:
            self._note_mistakes(row)

    def _note_exercise(self, exercise: ExerciseRow) -> None:
        """Remember the title of an exercise, and the most points that anybody could have."""
        title = exercise.heading
        worth = exercise.max_score
        known = self.exercises.get(exercise.exercise)
        if known is not None:
            title = known.title
            worth = max(known.worth, worth)
        self.exercises[exercise.exercise] = TitleAndWorth(title, worth)

    def _make_line(self, row: SubmissionRow, person: Person) -> SubmissionLine:
        """Return a submission's line of the class's table."""
        waiting = set()
        untouched = set()
        for exercise in row.exercises:
            if exercise.to_grade and exercise.title in row.to_grade:
                waiting.add(exercise.exercise)
            elif _is_untouched(exercise):
                untouched.add(exercise.exercise)
        texts = [self.replace_names(text) for text in row.review]
        review = [person.hide_names(text) for text in texts]
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
            review_rank=row.review_rank,
            counts_in_means=row.counts_in_means,
            reason=person.hide_names(row.reason),
            grade=row.final,
            section=row.section,
            late=_describe_lateness(row),
            is_new_work=row.status is not ABSENT and self.groups.is_new_work(row),
            is_listed_for_review=bool(row.review) and self.reviews.is_first(row),
        )

    def _note_checks(self, exercise: ExerciseRow) -> None:
        """Note the checks of an exercise that the last line failed, or did not hand in."""
        absent = absent_functions(exercise)
        place = len(self.lines) - 1
        for check in exercise.checks:
            if check.function in absent:
                self.absent.setdefault(check.id, []).append(place)
            elif check.outcome is Outcome.FAILED:
                self.failed.setdefault(check.id, []).append(place)

    def _note_mistakes(self, row: SubmissionRow) -> None:
        """Note the misconceptions of the last line.

        The first one who has a misconception is its example, or the first with a line to show.
        """
        place = len(self.lines) - 1
        for key, check in misconceptions_of(row).items():
            mistake = self.mistakes.get(key)
            if mistake is None:
                mistake = Mistake(key, check, nameless_author(row, self.lines[place].person), row)
                self.mistakes[key] = mistake
            elif mistake.check.line is None and check.line is not None:
                mistake.check = check
                mistake.person = nameless_author(row, self.lines[place].person)
                mistake.row = row
            mistake.places.append(place)

    @property
    def handed_in(self) -> list[SubmissionLine]:
        """The lines of those who handed in something."""
        return [line for line in self.lines if line.handed_in]

    @property
    def submission_count(self) -> int:
        """How many submissions there are. Members of a group have one."""
        return sum(line.is_new_work for line in self.lines)

    @property
    def nobody(self) -> list[int]:
        """The places of those on the roster who handed in nothing."""
        return [place for place, line in enumerate(self.lines) if not line.handed_in]

    @property
    def sections(self) -> list[SectionLine]:
        """The sections of the course, by name."""
        sections_of = split_sections(line.section for line in self.lines)
        names: set[str] = set()
        for parts in sections_of.values():
            names.update(parts)
        ordered = sorted(names, key=natural_key)
        return [self._section_of_name(name, sections_of) for name in ordered]

    def _section_of_name(self, name: str, sections_of: Mapping[str, list[str]]) -> SectionLine:
        """Return a section with the places of its students.

        `sections_of` has those that are meant by what the roster says.
        """
        section = SectionLine(name, [], [], [], [])
        for place, line in enumerate(self.lines):
            if name not in sections_of.get(line.section, ()):
                continue
            section.all.append(place)
            if not line.handed_in:
                section.absent.append(place)
                continue
            if line.counts_in_means:
                section.points.append(line.grade.points)
            if line.late:
                section.late.append(place)
        return section

    @property
    def _lines_in_means(self) -> list[SubmissionLine]:
        """The lines whose points count in means."""
        return [line for line in self.lines if line.counts_in_means]

    @property
    def points(self) -> list[float]:
        """The points to publish that count in means."""
        return [line.grade.points for line in self._lines_in_means]

    @property
    def max_points(self) -> float:
        """What can be had, on the scale that is published."""
        return published_maximum(self.header)

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
        """The points to publish that half of the class does not reach; 0 without points."""
        if not self.points:
            return 0.0
        return statistics.median(self.points)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The points that a quarter does not reach, and that three quarters do not exceed."""
        points = self.points
        if not points:
            return 0.0, 0.0
        if len(points) == 1:
            return points[0], points[0]
        lower, _, upper = statistics.quantiles(points, n=4, method="inclusive")
        return lower, upper

    @property
    def mean(self) -> float:
        """The mean of the points to publish; 0 without points."""
        if not self.points:
            return 0.0
        return statistics.fmean(self.points)

    @property
    def mean_score(self) -> float:
        """The mean of the points in the exercises; 0 without points."""
        scores = [line.score for line in self._lines_in_means]
        if not scores:
            return 0.0
        return statistics.fmean(scores)

    @property
    def reached(self) -> list[ExerciseLine]:
        """The means of all exercises. Their sum is `mean_score`."""
        lines = []
        for exercise, known in sorted(self.exercises.items()):
            scores = [line.scores.get(exercise, 0.0) for line in self._lines_in_means]
            mean = 0.0
            if scores:
                mean = statistics.fmean(scores)
            line = ExerciseLine(exercise, known.title, mean, known.worth)
            lines.append(line)
        return lines

    @property
    def slowest(self) -> list[SubmissionLine]:
        """Submissions that ran, longest first."""
        lines = [line for line in self.lines if line.ran and line.is_new_work]
        return sorted(lines, key=lambda line: -line.seconds)

    @property
    def needs_review(self) -> list[SubmissionLine]:
        """Submissions to review before grades go out, the most serious reasons first."""
        lines = [line for line in self.lines if line.is_listed_for_review]
        return sorted(lines, key=lambda line: line.review_rank)

    @property
    def ranked(self) -> list[Mistake]:
        """Misconceptions, the most frequent first."""
        by_key = sorted(self.mistakes.values(), key=lambda mistake: mistake.key)
        counts = self.statistics.misconceptions
        return sorted(by_key, key=lambda mistake: -counts[mistake.key])


def _is_untouched(exercise: ExerciseRow) -> bool:
    """True if nothing of an exercise was handed in, and nobody gave points for it."""
    if exercise.has_points_by_hand:
        return False
    functions = {check.function for check in exercise.checks}
    return functions <= absent_functions(exercise)


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
    """Return the text of the class page, HTML.

    With `students`, each name is a link to the student's own page; with `similar`, there is a link
    to the page of similar submissions. Raises BadDay where the misconceptions of a day cannot be
    read, and OSError where a template cannot be. With `anonymous`, names are pseudonyms.
    """
    known = known_misconceptions()

    def name_of(mistake: Mistake) -> str:
        """The name of a misconception; its key, where no day declares it any more."""
        if mistake.key not in known:
            return mistake.key
        return known[mistake.key].name

    distribution: Markup | str = ""
    if tally.points:
        distribution = draw_histogram(tally.points, tally.max_points, clickable=not anonymous)
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
