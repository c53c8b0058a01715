"""Results of checks become rows that add up and say what a student should read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gpudojo.model.exercise import Exercise, Misconception
from gpudojo.model.hints import FunctionHints
from gpudojo.model.results import (
    NOT_YOUR_ERROR,
    CheckResult,
    Definition,
    Outcome,
    round_points,
    rows_of,
    sum_points,
)

EXERCISE = Exercise("04_loop", "A loop", 3)
EXERCISE.function("train")
EXERCISE.written_hints = {"train": FunctionHints(("First hint.", "Second hint."))}
MISTAKES = {"missing-step": Misconception("missing step", "Nothing\n  learns.")}


def result(check: str, outcome: Outcome, points: float = 1.0, **more: object) -> CheckResult:
    return CheckResult("04_loop", "train", check, f"It {check}.", outcome, points, **more)  # type: ignore[arg-type]


def test_a_row_says_what_a_student_should_read() -> None:
    failed = result(
        "steps",
        Outcome.FAILED,
        happened="no step",
        expected="one",
        line=7,
        misconception="missing-step",
    )
    place = Definition("train", "a.ipynb", 3, cell=2)
    (row,) = rows_of([failed], [EXERCISE], 1, misconceptions=MISTAKES, definitions=[place])
    (check,) = row.checks
    assert (row.exercise, row.title, row.score, row.max_score) == ("04_loop", "A loop", 0.0, 1.0)
    assert check.id == "04_loop::train::steps"
    assert check.claim == "It steps."
    assert check.message == "no step; expected one"
    assert check.why == "missing step: Nothing learns."
    assert check.hint == "First hint."
    assert (check.file, check.cell, check.line) == ("a.ipynb", 2, 7)


@pytest.mark.parametrize(
    ("outcome", "message", "points"),
    [
        (Outcome.PASSED, "", 0.25),
        (Outcome.TODO, "to do: `train` is still a stub.", 0.0),
        (Outcome.BLOCKED, "blocked: the check `runs` of `train` has to pass first.", 0.0),
        (Outcome.ERROR, NOT_YOUR_ERROR, 0.25),
    ],
)
def test_an_outcome_has_its_points_and_its_sentence(
    outcome: Outcome, message: str, points: float
) -> None:
    (row,) = rows_of([result("steps", outcome, 0.25, blocked_by="runs")], [EXERCISE], 2)
    assert (row.checks[0].message, row.checks[0].points, row.score) == (message, points, points)
    assert row.checks[0].hint == ""  # hints are for what failed


def test_hints_are_as_many_as_asked_for() -> None:
    for hints, shown in (
        (0, ""),
        (2, "First hint.\nSecond hint."),
        (9, "First hint.\nSecond hint."),
        (-1, ""),
    ):
        (row,) = rows_of([result("steps", Outcome.FAILED)], [EXERCISE], hints)
        assert row.checks[0].hint == shown


def test_points_add_up_as_people_add_them() -> None:
    assert sum_points([0.1, 0.2]) == 0.3
    (row,) = rows_of(
        [result("a", Outcome.PASSED, 0.1), result("b", Outcome.PASSED, 0.2)], [EXERCISE], 0
    )
    assert (row.score, row.max_score) == (0.3, 0.3)


def test_three_thirds_are_a_whole() -> None:
    assert round_points([1 / 3] * 3) == [0.333333, 0.333334, 0.333333]
    (row,) = rows_of([result(name, Outcome.PASSED, 1 / 3) for name in "abc"], [EXERCISE], 0)
    assert (row.score, row.max_score) == (1.0, 1.0)
    assert sum_points(check.points for check in row.checks) == 1.0


def test_exercises_come_in_their_order_and_none_is_lost() -> None:
    second = Exercise("05_other", "Other", 1)
    second.function("train")
    other = CheckResult("05_other", "train", "runs", "It runs.", Outcome.PASSED, 1.0)
    rows = rows_of([other, result("runs", Outcome.PASSED)], [EXERCISE, second], 0)
    assert [row.exercise for row in rows] == ["04_loop", "05_other"]
    with pytest.raises(ValueError, match="not given: 05_other"):
        rows_of([other], [EXERCISE], 0)


def test_results_and_export_do_not_import_torch() -> None:
    question = (
        "import sys, gpudojo.model, gpudojo.platforms as e; [e.exporter_of(f) for f in "
        "e.format_names()]; "
        "import gpudojo.cli.export as c; from tests.gpudojo.platforms.export.classes import CLASS; "
        "assert len(c.exercises_of_class(CLASS, CLASS.submissions)) == 2; print('torch' in "
        "sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", question],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "False\n"
