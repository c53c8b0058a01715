"""What `dojo lint` says of solutions that it runs: whose mistake it is, and where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from gpudojo.authoring import solution_tests
from gpudojo.authoring.findings import Finding
from gpudojo.authoring.kept_solutions import Solution
from gpudojo.authoring.lint_solutions import trial_findings
from gpudojo.grading.call import Call, torch, try_scenarios
from gpudojo.grading.checks import Ran, describe_call, runs, same_as_reference
from gpudojo.model.errors import ReferenceFails
from gpudojo.model.evidence import Cases
from gpudojo.model.exercise import Exercise

STEM = "01_total"
REFERENCE = "def total(values):\n    return values.sum().item()\n"


def total_exercise() -> Exercise:
    exercise = Exercise(STEM, "The sum", points=1)
    total = exercise.function("total")

    @total.probe
    def sums(call: Call) -> Cases[Ran]:
        values = torch.arange(1.0, 6.0).to(call.device)
        return try_scenarios({"five": lambda: describe_call(call, values)})

    runs(total)
    same_as_reference(total, sums, points=1, claim="It returns the sum.")
    return exercise


def try_wrong(root: Path, source: str) -> list[Finding]:
    """What is found where this is the only solution, a wrong one."""
    reference = root / "reference" / "day9" / f"{STEM}.py"
    reference.parent.mkdir(parents=True)
    reference.write_text(REFERENCE)
    wrong = root / "tests" / "day9" / "wrong" / STEM / "wrong.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text(source)
    solution = Solution(wrong, "wrong/wrong.py", wrong=True)
    return list(trial_findings(total_exercise(), [solution], "day9", root))


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("def total():\n    return 0.0\n", "fails runs as wrong-signature"),
        ("import operator\n\ntotal = operator.itemgetter(99)\n", "fails runs as -"),
    ],
    ids=["another signature", "no line of its own"],
)
def test_a_call_that_a_solution_refuses_is_its_own_mistake(
    source: str, got: str, tmp_path: Path
) -> None:
    """The reference was called by the same line, so that line is not what is to be mended."""
    header = "# fails: total::same_as_reference as -\n"
    (found,) = try_wrong(tmp_path, header + source)
    assert found.place == f"tests/day9/wrong/{STEM}/wrong.py:1"
    claim = "its first line claims that it fails same_as_reference as -"
    assert found.text.startswith(f"it {got}, and {claim}: scenario `five` ")


def test_a_reference_that_does_not_run_is_one_failed_test_and_its_solutions_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks_it = ReferenceFails("total", "sums", "it is missing")

    def refuse(*arguments: object) -> None:
        raise lacks_it

    monkeypatch.setattr(solution_tests, "reference_evidence", refuse)
    monkeypatch.setattr(solution_tests, "skip_if_unfinished", lambda day, stem: None)
    monkeypatch.setattr(solution_tests, "functions_in", lambda path: total_exercise().functions)
    monkeypatch.setattr(solution_tests, "exercise_of", lambda day, stem: total_exercise())
    monkeypatch.delenv(solution_tests.VERDICTS, raising=False)
    asked = SimpleNamespace(path=tmp_path / "day9" / "test_solutions.py")
    with pytest.raises(pytest.fail.Exception) as failed:
        solution_tests.test_the_reference_runs(total_exercise(), asked)  # type: ignore[arg-type]
    assert str(failed.value) == str(lacks_it)
    solution = tmp_path / "day9" / "right" / STEM / "first.py"
    solution.parent.mkdir(parents=True)
    solution.write_text(REFERENCE)
    with pytest.raises(pytest.skip.Exception) as skipped:
        solution_tests.test_a_right_solution_passes(solution)
    assert str(skipped.value) == str(lacks_it)
