"""A failure shows hints on its own mistake, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.authoring.lint_declarations import declaration_findings, hint_findings
from gpudojo.model.catalogue import exercises_of, known_misconceptions, misconceptions_of
from gpudojo.model.exercise import Exercise
from gpudojo.model.hints import FunctionHints
from gpudojo.model.results import Outcome
from gpudojo.pytest_plugin.terminal import Feedback

from tests.solutions import ROOT, day_and_exercise_of, exercise_of, grade_once

WRONG = Path(__file__).parent / "wrong"
# A wrong solution, and which hints of its function are about the check that fails where the mistake
# has no name.
CASES: dict[str, tuple[int, ...]] = {
    "01_checking_device/drops_the_index": (),
    "02_moving_model_to_device/eval_mode": (7, 8, 9),
    "04_modifying_training_loop_gpu/missing_zero_grad": (),
    "04_modifying_training_loop_gpu/last_loss": (10, 11, 12),
}


@pytest.mark.parametrize("name", CASES)
def test_hints_are_those_of_the_mistake_or_of_the_check(name: str) -> None:
    path = (WRONG / name).with_suffix(".py")
    exercise = exercise_of(*day_and_exercise_of(path))
    result = next(each for each in grade_once(path) if each.outcome is Outcome.FAILED)
    function = next(each for each in exercise.functions if each.name == result.function)
    wanted = [function.hints[number - 1] for number in CASES[name]]
    wanted = wanted or [*known_misconceptions()[result.misconception or ""].hints]
    parts = Feedback(result, exercise, path, 9).parts
    assert [text for label, text in parts if label.startswith("hint")] == wanted


def test_every_mistake_has_three_hints_and_the_first_gives_nothing_away() -> None:
    assert list(hint_findings("day8", ROOT)) == []


def test_advice_is_on_mistakes_and_checks_that_there_are() -> None:
    for exercise in exercises_of("day8"):
        assert list(declaration_findings(exercise, misconceptions_of("day8"))) == []


def test_advice_on_nothing_is_found() -> None:
    exercise = Exercise("01_made_up", "Made up", points=0)
    exercise.function("first")
    exercise.written_hints = {"first": FunctionHints(("Look.",), {"no_such_check": ("Look.",)})}
    told = [str(finding) for finding in declaration_findings(exercise, misconceptions_of("day8"))]
    assert any(
        "has hints on 'no_such_check', no check of it and no mistake" in each for each in told
    )


def test_every_check_has_hints_of_its_own() -> None:
    for exercise in exercises_of("day8"):
        for function in exercise.functions:
            for check in function.checks:
                assert function.hints_for(check.name)
