"""Attempted, absent and failed are three numbers.

Difficulty and discrimination are what textbooks say.
"""

from __future__ import annotations

import statistics

import pytest
from gpudojo.classes.check_statistics import CheckStatistics, ClassStatistics
from gpudojo.model.results import (
    CheckRow,
    ExerciseRow,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
    not_handed_in,
    sum_points,
)
from hypothesis import given
from hypothesis import strategies as st

P = Outcome.PASSED
F = Outcome.FAILED
T = Outcome.TODO
B = Outcome.BLOCKED
E = Outcome.ERROR


def row(
    *outcomes: Outcome, happened: str = "", status: SubmissionStatus = SubmissionStatus.GRADED
) -> SubmissionRow:
    checks = [
        CheckRow(
            f"01_x::f::c{n}",
            "f",
            outcome,
            float(outcome in (P, E)),
            1.0,
            happened=happened,
            claim="A claim.",
        )
        for n, outcome in enumerate(outcomes)
    ]
    score = sum_points(check.points for check in checks)
    worth = float(len(checks))
    return SubmissionRow(
        "ada", status, score, worth, [ExerciseRow("01_x", "X", score, worth, checks)]
    )


def test_who_did_not_try_has_not_failed() -> None:
    missing = row(F, B, happened=f"{not_handed_in('f')}; is `g` meant to be it?")
    nobody = SubmissionRow("eve", SubmissionStatus.ABSENT, 0.0, 2.0)
    unreadable = row(F, F, status=SubmissionStatus.UNREADABLE)
    found = ClassStatistics(
        [nobody, row(P, P), row(F, B), row(P, F), row(T, T), missing, unreadable, nobody, row(P, E)]
    )
    first = found.checks["01_x::f::c0"]
    second = found.checks["01_x::f::c1"]
    assert (first.attempted, first.absent, first.failed) == (4, 4, 1)
    assert (second.attempted, second.absent, second.failed) == (4, 4, 1)
    assert second.outcomes[B] == 1
    assert first.difficulty == 0.75
    assert second.difficulty == pytest.approx(1 / 3), (
        "what gpudojo could not judge counts for nobody"
    )
    assert (found.unread, found.nobody) == (1, 2)
    assert [check.id for check in found.hardest] == ["01_x::f::c1", "01_x::f::c0"], (
        "blocked points are missed too"
    )


def test_what_nobody_failed_is_not_among_the_hardest() -> None:
    missing = row(F, B, B, happened=not_handed_in("f"))
    assert ClassStatistics([missing, row(P, P, P)]).hardest == []
    failed = ClassStatistics([missing, row(P, P, F)]).hardest
    assert [check.id for check in failed] == ["01_x::f::c2"]


def test_a_check_that_tells_nothing_has_no_discrimination() -> None:
    for outcomes in ([P, P, P], [F, F], []):
        check = CheckStatistics("a", "", 1.0)
        for place, outcome in enumerate(outcomes):
            check.count_attempt(outcome, float(place))
        assert check.discrimination is None
    same = CheckStatistics("a", "", 1.0)
    for outcome in (P, F, P, F):
        same.count_attempt(outcome, 7.0)
    assert same.discrimination is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100)), min_size=2, max_size=30))
def test_discrimination_is_the_correlation_of_passing_with_the_rest(
    seen: list[tuple[bool, int]],
) -> None:
    check = CheckStatistics("a", "", 1.0)
    for passed, rest in seen:
        check.count_attempt(P if passed else F, float(rest))
    ones = [float(passed) for passed, _ in seen]
    rests = [float(rest) for _, rest in seen]
    if len(set(ones)) < 2 or len(set(rests)) < 2:
        assert check.discrimination is None
    else:
        assert check.discrimination == pytest.approx(statistics.correlation(ones, rests), abs=1e-6)
