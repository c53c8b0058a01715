"""Mistakes that can be made anywhere have texts of their own, are told once, and come with hints on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.grading.engine import FileGrader, grade_function
from gpudojo.grading.load import load
from gpudojo.grading.wording import hints_about, same_cause
from gpudojo.model.catalogue import misconceptions
from gpudojo.model.results import CheckResult, Outcome, blocked
from gpudojo.pytest_plugin.terminal import Feedback

from tests.solutions import BENCH, exercise_of, reference

MOVING = exercise_of("day8", "02_moving_model_to_device")
TRAINING = exercise_of("day8", "04_modifying_training_loop_gpu")
LOOP = """
    model.to(DEVICE).train()
    total = n = 0
    for x, y in loader:
        x, y = x.to(DEVICE), y.to(DEVICE)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        n += len(x)
    return total / n if n else 0.0
"""
HEAD = "def train_epoch(model, loader, loss_fn, optimizer, device):"
# A file of 04, the line shown and the mistake.
CASES = {
    "not closed": (f"{HEAD}\n    model.to(device\n    return 0.0\n", 2, "syntax-error"),
    "an unknown name": (f"{HEAD}\n    modell.to(device)\n    return 0.0\n", 2, "unknown-name"),
    "the stub's line": (f"{HEAD}\n    model.to(device)\n    raise NotImplementedError\n", 3, "not-implemented-left"),
    "no memory": ("raise MemoryError\n", 1, "file-without-memory"),
    "a parameter less": (f"def train_epoch(model, loader, loss_fn, optimizer):{LOOP}", 1, "wrong-signature"),
    "a global": (f'DEVICE = "cuda"\n{HEAD}{LOOP}', 3, "global-device"),
    "no return": (f"{HEAD}{LOOP}".replace("DEVICE", "device").partition("    return")[0], 11, "return-forgotten"),
}


def first_of(results: list[CheckResult]) -> CheckResult:
    return next(result for result in results if result.outcome is Outcome.FAILED)


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_and_its_line(name: str, tmp_path: Path) -> None:
    source, line, mistake = CASES[name]
    path = tmp_path / "04_modifying_training_loop_gpu.py"
    path.write_text(source, encoding="utf-8")
    (function,) = TRAINING.functions
    measure = reference("day8", TRAINING.stem)
    result = first_of(grade_function(TRAINING, function, load(path), measure, BENCH, 8))
    assert (result.line, result.misconception) == (line, mistake), result.happened
    assert hints_about(result, function) == misconceptions()[mistake].hints


def test_a_file_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "02_moving_model_to_device.py"
    path.write_text("def move_model(model, device):\n    return (model\n", encoding="utf-8")
    grader = FileGrader(path, BENCH, 8)
    first, second = (grader.results(MOVING, function) for function in MOVING.functions)
    assert first[0].misconception == "syntax-error"
    assert {result.outcome for result in second} == {Outcome.BLOCKED}
    assert blocked(second[0]) == "blocked: the check `runs` of `move_model` has to pass first."
    waiting = [result.check for result in first if result.blocked_by == "runs"]
    said = Feedback(first[0], MOVING, path, 0, blocks=waiting).parts
    assert dict(said)["blocks"].startswith(f"{waiting[0]}, ")


def test_a_second_failure_at_the_same_line_names_the_first() -> None:
    def failed(check: str, line: int | None, mistake: str | None) -> CheckResult:
        return CheckResult("02", "move_model", check, check, Outcome.FAILED, 1, line=line, misconception=mistake)

    results = [
        failed("a", 3, "model-copied"),
        failed("b", 3, None),
        failed("c", 3, "unknown-name"),
        failed("d", 4, None),
    ]
    assert [same_cause(result, results) for result in results] == [None, "a", "b", None]
