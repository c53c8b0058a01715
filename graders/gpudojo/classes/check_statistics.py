"""How a class did in each check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpudojo.model.results import CheckRow, ExerciseRow, Outcome, SubmissionRow, SubmissionStatus


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
        """Count one who attempted it. `rest` is the score without this check."""
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
    def missed(self) -> int:
        """How many do not have its points, for whatever reason."""
        return self.absent + self.failed + self.outcomes[Outcome.BLOCKED]

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


class ClassStatistics:
    """The statistics of every check. `count_row` counts one submission."""

    def __init__(self, rows: Iterable[SubmissionRow] = ()) -> None:
        self.checks: dict[str, CheckStatistics] = {}
        # On the roster, but handed in nothing: absent in every check.
        self.nobody = 0
        # Could not be read, or was not graded: all checks failed, but not for the code.
        self.unread = 0
        self.not_graded = 0
        for row in rows:
            self.count_row(row)

    def count_row(self, row: SubmissionRow) -> None:
        """Count a row: an outcome in each check, or an absence.

        What could not be read, or was not graded, is counted apart: its checks say nothing.
        """
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
        for exercise in row.exercises:
            absent = absent_functions(exercise)
            for check in exercise.checks:
                statistics = self._statistics_of(check)
                if check.function in absent:
                    statistics.absent += 1
                else:
                    statistics.count_attempt(check.outcome, row.score - check.points)

    def _statistics_of(self, check: CheckRow) -> CheckStatistics:
        """The statistics of a check; new ones where it is met for the first time."""
        statistics = self.checks.get(check.id)
        if statistics is None:
            statistics = CheckStatistics(
                check.id, check.claim, check.max_points, absent=self.nobody
            )
            self.checks[check.id] = statistics
        return statistics

    @property
    def hardest(self) -> list[CheckStatistics]:
        """Checks whose points somebody does not have, most missed first.

        Of the checks of a function that are missed for nothing but its absence, one stands for all.
        """
        missed = [check for check in self.checks.values() if check.missed]
        missed.sort(key=lambda check: (-check.missed, -check.failed, check.id))
        hardest = []
        functions: set[str] = set()
        for check in missed:
            function = check.id.rpartition("::")[0]
            if check.missed > check.absent or function not in functions:
                hardest.append(check)
            functions.add(function)
        return hardest
