"""How a class did in each check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpudojo.model.results import (
    CheckRow,
    ExerciseRow,
    GroupFilter,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
)


@dataclass
class CheckStatistics:
    """The outcomes of one check.

    Those who did not hand in its function, or only the stub, are absent; all others attempted it.
    """

    id: str
    claim: str
    max_points: float
    outcomes: Counter[Outcome] = field(default_factory=Counter)  # of those who attempted it
    absent: int = 0
    # Sums of the points that students have in everything else. Errors of the grader are left out.
    _sum: float = 0.0
    _sum_of_squares: float = 0.0
    _sum_of_passed: float = 0.0

    def count_attempt(self, outcome: Outcome, rest: float) -> None:
        """Count one who attempted it. `rest` is that student's score without this check.

        An ERROR counts among the outcomes alone: it says nothing about scores.
        """
        self.outcomes[outcome] += 1
        if outcome is Outcome.ERROR:
            return
        self._sum += rest
        self._sum_of_squares += rest * rest
        if outcome is Outcome.PASSED:
            self._sum_of_passed += rest

    @property
    def attempted(self) -> int:
        """How many attempted it."""
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        """How many failed it."""
        return self.outcomes[Outcome.FAILED]

    @property
    def _count_of_judged(self) -> int:
        """How many attempted it and could be judged."""
        return self.attempted - self.outcomes[Outcome.ERROR]

    @property
    def difficulty(self) -> float | None:
        """The share that passed of those who attempted it: 1 is easy. None where nobody did."""
        if not self._count_of_judged:
            return None
        return self.outcomes[Outcome.PASSED] / self._count_of_judged

    @property
    def discrimination(self) -> float | None:
        """The point-biserial correlation of passing the check with the score in everything else.

        None where all passed, none passed, or all have the same score.
        """
        count = self._count_of_judged
        passed = self.outcomes[Outcome.PASSED]
        failed = count - passed
        if passed == 0 or failed == 0:
            return None
        mean = self._sum / count
        variance = self._sum_of_squares / count - mean**2
        if variance <= 1e-9:
            return None
        mean_of_passed = self._sum_of_passed / passed
        mean_of_failed = (self._sum - self._sum_of_passed) / failed
        difference = mean_of_passed - mean_of_failed
        covariance = difference * math.sqrt(passed * failed) / count
        correlation = covariance / math.sqrt(variance)
        return max(-1.0, min(correlation, 1.0))


def absent_functions(exercise: ExerciseRow) -> set[str]:
    """The functions of an exercise that were not handed in, or only as the stub."""
    return {check.function for check in exercise.checks if _shows_absence(check)}


def _shows_absence(check: CheckRow) -> bool:
    """True if a check says that its function was not handed in, or only as the stub."""
    if check.outcome is Outcome.TODO:
        return True
    return check.outcome is Outcome.FAILED and bool(check.absent)


def misconceptions_of(row: SubmissionRow) -> dict[str, CheckRow]:
    """The misconceptions behind the checks that failed: for each the first check, or, of those, the
    first with a line to show.
    """
    found: dict[str, CheckRow] = {}
    for exercise in row.exercises:
        for check in exercise.checks:
            name = check.misconception
            if check.outcome is not Outcome.FAILED or not name:
                continue
            if name not in found or (found[name].line is None and check.line is not None):
                found[name] = check
    return found


class ClassStatistics:
    """The statistics of every check, and of misconceptions. `count_row` counts one submission."""

    def __init__(self, rows: Iterable[SubmissionRow] = ()) -> None:
        """Count these rows; more can be counted later."""
        self.checks: dict[str, CheckStatistics] = {}
        # On the roster, but handed in nothing: absent in every check.
        self.nobody = 0
        # Could not be read, or was not graded: all checks failed, but not for the code.
        self.unread = 0
        self.not_graded = 0
        self.handed_in = 0  # with those that could not be read, or were not graded
        self.misconceptions: Counter[str] = Counter()  # in how many each is
        self._groups = GroupFilter()
        for row in rows:
            self.count_row(row)

    def count_row(self, row: SubmissionRow) -> None:
        """Count a row: an outcome in each check, or an absence; and its misconceptions.

        What could not be read, or was not graded, is counted apart: its checks say nothing. The
        work of a group is counted once.
        """
        if not self._groups.is_new_work(row):
            return
        if row.status is not SubmissionStatus.ABSENT:
            self.handed_in += 1
        if row.status is SubmissionStatus.UNREADABLE:
            self.unread += 1
            return
        if row.status is SubmissionStatus.NOT_GRADED:
            self.not_graded += 1
            return
        if row.status is SubmissionStatus.ABSENT:
            self.nobody += 1
            for statistics in self.checks.values():
                statistics.absent += 1
            return
        self.misconceptions.update(list(misconceptions_of(row)))
        for exercise in row.exercises:
            absent = absent_functions(exercise)
            for check in exercise.checks:
                statistics = self._find_or_add_statistics(check)
                if check.function in absent:
                    statistics.absent += 1
                else:
                    statistics.count_attempt(check.outcome, row.score - check.points)

    def _find_or_add_statistics(self, check: CheckRow) -> CheckStatistics:
        """The statistics of a check; new ones are added where it is met for the first time."""
        statistics = self.checks.get(check.id)
        if statistics is None:
            statistics = CheckStatistics(
                check.id, check.claim, check.max_points, absent=self.nobody
            )
            self.checks[check.id] = statistics
        return statistics

    @property
    def hardest(self) -> list[CheckStatistics]:
        """Checks that somebody failed, the most-failed first, and then the most-blocked.

        What nobody handed in, or could not be judged because another check failed, is no failure.
        """
        failed = [check for check in self.checks.values() if check.failed]
        failed.sort(key=lambda check: (-check.failed, -check.outcomes[Outcome.BLOCKED], check.id))
        return failed
