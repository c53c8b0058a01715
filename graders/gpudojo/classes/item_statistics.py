"""Attempted, absent and failed: the counts of each check in a class, its difficulty and its discrimination."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpudojo.model.results import ExerciseRow, Outcome, SubmissionRow, SubmissionStatus, not_handed_in


@dataclass
class CheckStatistics:
    """The outcomes of one check. Those who did not hand in its function, or only the stub, are absent."""

    id: str
    claim: str
    max_points: float
    outcomes: Counter[Outcome] = field(default_factory=Counter)  # of those who attempted it
    absent: int = 0
    # Sums over those who attempted it, of the points they have in everything else: all, squared, of those who passed.
    _sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def add(self, outcome: Outcome, rest: float) -> None:
        """Counts one who attempted it; `rest` is the score without this check."""
        self.outcomes[outcome] += 1
        if outcome is not Outcome.ERROR:
            for place, number in enumerate((rest, rest * rest, rest if outcome is Outcome.PASSED else 0.0)):
                self._sums[place] += number

    @property
    def attempted(self) -> int:
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        return self.outcomes[Outcome.FAILED]

    @property
    def missed(self) -> int:
        """How many do not have its points, for whatever reason."""
        return self.absent + self.failed + self.outcomes[Outcome.BLOCKED]

    @property
    def _judged(self) -> int:
        return self.attempted - self.outcomes[Outcome.ERROR]

    @property
    def difficulty(self) -> float | None:
        """The share that passed of those who attempted it: 1 is easy. None where nobody did."""
        return self.outcomes[Outcome.PASSED] / self._judged if self._judged else None

    @property
    def discrimination(self) -> float | None:
        """The point-biserial correlation of passing it with the score in everything else; None where there is none."""
        count, passed = self._judged, self.outcomes[Outcome.PASSED]
        whole, squares, of_passed = self._sums
        if not 0 < passed < count:
            return None
        spread = squares / count - (whole / count) ** 2
        if spread <= 1e-9:  # everybody has the same score
            return None
        apart = of_passed / passed - (whole - of_passed) / (count - passed)
        found = apart * math.sqrt(passed * (count - passed)) / count / math.sqrt(spread)
        return max(-1.0, min(found, 1.0))


def absent_functions(exercise: ExerciseRow) -> set[str]:
    """The functions of an exercise that were not handed in, or only as the stub."""
    return {
        check.function
        for check in exercise.checks
        if check.outcome is Outcome.TODO
        or (check.outcome is Outcome.FAILED and check.happened.startswith(not_handed_in(check.function)))
    }


class ClassStatistics:
    """The statistics of every check; `add` counts one submission."""

    def __init__(self, rows: Iterable[SubmissionRow] = ()) -> None:
        self.checks: dict[str, CheckStatistics] = {}
        self.nobody = 0  # on the roster, who handed in nothing: absent in every check
        self.unread = 0  # submissions that could not be read: all of their checks failed, but not for their code
        for row in rows:
            self.add(row)

    def add(self, row: SubmissionRow) -> None:
        if row.status is SubmissionStatus.UNREADABLE:
            self.unread += 1
            return
        if row.status is SubmissionStatus.ABSENT:
            self.nobody += 1
            for known in self.checks.values():
                known.absent += 1
            return
        for exercise in row.exercises:
            absent = absent_functions(exercise)
            for check in exercise.checks:
                if check.id not in self.checks:
                    made = CheckStatistics(check.id, check.claim, check.max_points, absent=self.nobody)
                    self.checks[check.id] = made
                known = self.checks[check.id]
                if check.function in absent:
                    known.absent += 1
                else:
                    known.add(check.outcome, row.score - check.points)

    @property
    def hardest(self) -> list[CheckStatistics]:
        """Checks whose points somebody does not have, most missed first."""
        missed = [check for check in self.checks.values() if check.missed]
        return sorted(missed, key=lambda check: (-check.missed, -check.failed, check.id))
