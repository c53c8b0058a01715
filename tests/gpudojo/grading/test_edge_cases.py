"""Edge cases cost their own points and block nothing.

What is not done pays only beside what is done.
"""

from __future__ import annotations

from pathlib import Path

from gpudojo.grading.call import Call, try_scenarios
from gpudojo.grading.checks import Ran, describe_call, runs
from gpudojo.grading.engine import grade_function
from gpudojo.grading.limits import Limits
from gpudojo.grading.observe import load_file
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.model.evidence import Cases, Raised
from gpudojo.model.exercise import Exercise, Failed, Seen
from gpudojo.model.results import CheckResult, Outcome

REFERENCE = """
def mean(numbers):
    # BEGIN SOLUTION
    return sum(numbers) / len(numbers) if numbers else 0.0
    # END SOLUTION
"""


def made() -> Exercise:
    exercise = Exercise("01_means", "Means", 3)
    function = exercise.function("mean")

    @function.probe
    def usual(call: Call) -> Cases[Ran]:
        return try_scenarios(
            {
                "two": lambda: describe_call(call, [1.0, 2.0]),
                "none": lambda: describe_call(call, []),
            }
        )

    @function.probe(edge=True)
    def one(call: Call) -> Cases[Ran]:
        return try_scenarios({"one": lambda: describe_call(call, [3.0])})

    def diagnose(raised: Raised, seen: Seen) -> str | None:
        return "empty-loader-forgotten" if raised.type == "ZeroDivisionError" else None

    runs(function, scenarios=("two",), diagnose=diagnose)

    @function.check(1)
    def right_values(seen: Seen, wanted: Seen) -> None:
        """It returns the mean."""
        if seen[usual]["two"].value != wanted[usual]["two"].value:
            raise Failed("another value", "the mean")

    @function.check(1, needs=("runs", "right_values"))
    def copes_with_nothing(seen: Seen, wanted: Seen) -> None:
        """No numbers give 0.0."""
        if seen[usual]["none"].value != 0.0:
            raise Failed("another value", "0.0")

    @function.check(1, needs=("runs", "right_values"))
    def copes_with_one(seen: Seen, wanted: Seen) -> None:
        """One number is its own mean."""
        if seen[one]["one"].value != 3.0:
            raise Failed("another value", "3.0")

    return exercise


def graded(folder: Path, source: str, seconds: float | None = None) -> dict[str, CheckResult]:
    student = folder / "01_means.py"
    reference = folder / "reference.py"
    reference.write_text(REFERENCE, encoding="utf-8")
    student.write_text(source, encoding="utf-8")
    exercise = made()
    limits = Limits(seconds)
    submission = load_file(student, limits)
    results = grade_function(
        exercise,
        exercise.functions[0],
        submission,
        ReferenceSolution(reference),
        "virtual",
        8,
        limits,
    )
    return {result.check: result for result in results}


def outcomes(results: dict[str, CheckResult]) -> list[Outcome]:
    return [result.outcome for result in results.values()]


def test_an_error_in_an_edge_case_costs_its_own_points(tmp_path: Path) -> None:
    results = graded(tmp_path, "def mean(numbers):\n    return sum(numbers) / len(numbers)\n")
    assert outcomes(results) == [Outcome.PASSED, Outcome.PASSED, Outcome.FAILED, Outcome.PASSED]
    failed = results["copes_with_nothing"]
    assert failed.happened == "scenario `none` raised: ZeroDivisionError: division by zero"
    assert (failed.line, failed.misconception) == (2, "empty-loader-forgotten")


def test_an_edge_case_that_never_ends_costs_its_own_points(tmp_path: Path) -> None:
    source = (
        "def mean(numbers):\n"
        "    while len(numbers) == 1:\n"
        "        pass\n"
        "    return sum(numbers) / len(numbers)\n"
    )
    results = graded(tmp_path, source, seconds=2)
    assert outcomes(results) == [Outcome.PASSED, Outcome.PASSED, Outcome.FAILED, Outcome.FAILED]
    assert "ZeroDivisionError" in results["copes_with_nothing"].happened
    assert "time-out" in results["copes_with_one"].happened


def test_a_constant_earns_nothing(tmp_path: Path) -> None:
    for constant in ("None", "0.0", "numbers", "...", "(0.0, 0.0)"):
        results = graded(tmp_path, f"def mean(numbers):\n    return {constant}\n")
        assert sum(result.points for result in results.values()) == 0
        assert results["copes_with_nothing"].blocked_by == "right_values"


def test_an_error_in_a_main_scenario_blocks_the_rest(tmp_path: Path) -> None:
    results = graded(
        tmp_path, "def mean(numbers):\n    return numbers.mean() if numbers else 0.0\n"
    )
    assert outcomes(results) == [Outcome.FAILED, Outcome.BLOCKED, Outcome.BLOCKED, Outcome.BLOCKED]
