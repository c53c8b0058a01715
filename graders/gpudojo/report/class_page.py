"""The class page and the numbers on it."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from gpudojo.model.catalogue import misconceptions
from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.report.charts import histogram, scatter
from gpudojo.report.rendering import Person, anyone, page
from gpudojo.report.student_page import RecordStore


@dataclass(frozen=True)
class SubmissionLine:
    """One submission in the class's table."""

    person: Person
    status: SubmissionStatus
    score: float
    scores: dict[str, float]  # by exercise
    seconds: float
    peak_bytes: int
    review: tuple[str, ...]
    reason: str

    @property
    def ran(self) -> bool:
        return self.seconds > 0 or self.peak_bytes > 0


@dataclass
class CheckCount:
    """The outcomes of one check in the class."""

    id: str
    claim: str
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        return self.outcomes[Outcome.FAILED]

    @property
    def judged(self) -> int:
        return self.outcomes[Outcome.FAILED] + self.outcomes[Outcome.PASSED]


@dataclass
class Mistake:
    """How many students have a misconception, and one of them as an example."""

    key: str
    students: int
    check: CheckRow
    person: Person
    record: str  # the key of the example's record


@dataclass
class Tally:
    """The numbers of a class; `add` counts one submission."""

    header: ClassResults
    lines: list[SubmissionLine] = field(default_factory=list)
    exercises: dict[str, tuple[str, float]] = field(default_factory=dict)  # title and maximum, by exercise
    checks: dict[str, CheckCount] = field(default_factory=dict)
    mistakes: dict[str, Mistake] = field(default_factory=dict)
    unread: int = 0  # submissions that could not be read

    def add(self, row: SubmissionRow, person: Person) -> None:
        self.lines.append(
            SubmissionLine(
                person,
                row.status,
                row.score,
                {exercise.exercise: exercise.score for exercise in row.exercises},
                row.seconds,
                row.peak_bytes,
                tuple(person.says(text) for text in row.needs_human),
                person.says(row.reason),
            )
        )
        for exercise in row.exercises:
            title, worth = self.exercises.get(exercise.exercise, (exercise.title, 0.0))
            self.exercises[exercise.exercise] = (title, max(worth, exercise.max_score))
        if row.status is SubmissionStatus.UNREADABLE:
            self.unread += 1  # all of its checks failed, for a reason that is not in the student's code
        else:
            self._count(row)

    def _count(self, row: SubmissionRow) -> None:
        made: dict[str, CheckRow] = {}
        for exercise in row.exercises:
            for check in exercise.checks:
                self.checks.setdefault(check.id, CheckCount(check.id, check.claim)).outcomes[check.outcome] += 1
                if check.outcome is Outcome.FAILED and check.misconception:
                    known = made.get(check.misconception)
                    if known is None or (known.line is None and check.line is not None):
                        made[check.misconception] = check
        for key, check in made.items():
            before = self.mistakes.get(key)
            students = before.students + 1 if before is not None else 1
            if before is None or (before.check.line is None and check.line is not None):
                self.mistakes[key] = Mistake(key, students, check, anyone(row), row.record)
            else:
                before.students = students

    @property
    def scores(self) -> list[float]:
        return [line.score for line in self.lines]

    @property
    def median(self) -> float:
        return statistics.median(self.scores) if self.lines else 0.0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores) if self.lines else 0.0

    @property
    def reached(self) -> list[tuple[str, str, float, float]]:
        """Key, title, mean and points of each exercise. The sum of the means is `mean`."""
        return [
            (key, title, statistics.fmean(line.scores.get(key, 0.0) for line in self.lines), worth)
            for key, (title, worth) in sorted(self.exercises.items())
        ]

    @property
    def slowest(self) -> list[SubmissionLine]:
        """Submissions that ran, longest first."""
        return sorted((line for line in self.lines if line.ran), key=lambda line: -line.seconds)

    @property
    def needs_review(self) -> list[SubmissionLine]:
        """Submissions to review before grades go out: there is a reason to, or nothing could be graded."""
        return [line for line in self.lines if line.review or line.status is not SubmissionStatus.GRADED]

    @property
    def hardest(self) -> list[CheckCount]:
        """Checks that somebody failed, most failed first."""
        failed = [check for check in self.checks.values() if check.failed]
        return sorted(failed, key=lambda check: (-check.failed, check.id))

    @property
    def ranked(self) -> list[Mistake]:
        return sorted(self.mistakes.values(), key=lambda mistake: (-mistake.students, mistake.key))


def class_page(tally: Tally, archive: RecordStore, students: bool, anonymous: bool) -> str:
    """The page's text; with `students`, each name is a link to the student's own page."""
    dots = [(line.seconds, line.peak_bytes, line.status.value.replace(" ", "-")) for line in tally.slowest]
    return page(
        "class.html",
        "class.js",
        tally=tally,
        archive=archive,
        students=students,
        anonymous=anonymous,
        misconceptions=misconceptions(),
        histogram=histogram(tally.scores, tally.header.max_score) if tally.lines else "",
        scatter=scatter(dots),
    )
