"""What is told where a probe, or a check of it, could not be written down or found."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.grading.call import Call, torch, try_scenarios
from gpudojo.grading.checks import runs
from gpudojo.grading.engine import grade_function
from gpudojo.grading.load import load_submission
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.model.evidence import Case, Cases
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult, Outcome

COPIES = "def move(batch):\n    return batch.to('cuda')\n"
NOTHING = "def move(batch):\n    return batch\n"


class Copied(Case):
    """The line of the first copy."""

    line: int | None


def first_of_copies(call: Call) -> Copied:
    call(torch.ones(3))
    copies = call.ledger.transfers()
    return Copied(line=call.line_of(copies[0]))


def grade(exercise: Exercise, function: Function, source: str, folder: Path) -> list[CheckResult]:
    reference, student = folder / "reference.py", folder / "01_move.py"
    reference.write_text(COPIES, encoding="utf-8")
    student.write_text(source, encoding="utf-8")
    solution = ReferenceSolution(reference)
    return grade_function(exercise, function, load_submission(student), solution, "virtual", 8)


def test_an_error_of_a_probe_may_be_one_of_the_exercise(tmp_path: Path) -> None:
    """Whether the probe or the function is wrong cannot be told, so both are named."""
    exercise = Exercise("01_move", "Move", 1)
    function = exercise.function("move")
    function.probe(first_of_copies)
    runs(function)
    (result,) = grade(exercise, function, NOTHING, tmp_path)
    assert result.outcome is Outcome.FAILED
    assert result.happened == (
        "what `move` did or returned cannot be used: IndexError: tuple index out of range "
        "(probe `first_of_copies`)"
    )
    assert result.expected == (
        "what the docstring promises; if the function does that, this is an error in the exercise: "
        "tell your teacher"
    )


@pytest.mark.parametrize(
    ("name", "hint"), [("for photos", "did you mean photos?"), ("x", "there are once, photos")]
)
def test_a_scenario_of_runs_that_there_is_not_is_told_with_the_names(
    name: str, hint: str, tmp_path: Path
) -> None:
    exercise = Exercise("01_move", "Move", 1)
    function = exercise.function("move")

    @function.probe
    def copied(call: Call) -> Cases[Copied]:
        return try_scenarios({each: lambda: first_of_copies(call) for each in ("once", "photos")})

    runs(function, scenarios=[name])
    (result,) = grade(exercise, function, COPIES, tmp_path)
    assert result.outcome is Outcome.ERROR
    assert f"there is no scenario {name!r} for runs(move); {hint}" in result.happened
