"""Mistakes that can be made anywhere have texts of their own, are told once, and come with hints on
nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gpudojo.authoring.solution_tests import (
    BENCH,
    claim_in,
    exercise_of,
    grade_once,
    reference_solution,
)
from gpudojo.grading.engine import FileGrader, grade_function
from gpudojo.grading.feedback import check_to_mend_first, hints_about
from gpudojo.grading.load import load_submission
from gpudojo.model.catalogue import known_misconceptions
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import CheckResult, Outcome, describe_blocking
from gpudojo.pytest_plugin.terminal import Feedback

MOVING = exercise_of("day8", "02_moving_model_to_device")
TIMING = exercise_of("day8", "10_timing_and_profiling")
WRONG = Path(__file__).parent / "wrong"
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
    "the stub's line": (
        f"{HEAD}\n    model.to(device)\n    raise NotImplementedError\n",
        3,
        "not-implemented-left",
    ),
    "no memory": ("raise MemoryError\n", 1, "file-without-memory"),
    "a parameter less": (
        f"def train_epoch(model, loader, loss_fn, optimizer):{LOOP}",
        1,
        "wrong-signature",
    ),
    "a global": (f'DEVICE = "cuda"\n{HEAD}{LOOP}', 3, "global-device"),
    "no return": (
        f"{HEAD}{LOOP}".replace("DEVICE", "device").partition("    return")[0],
        11,
        "return-forgotten",
    ),
}


def first_of(results: list[CheckResult]) -> CheckResult:
    return next(result for result in results if result.outcome is Outcome.FAILED)


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_and_its_line(name: str, tmp_path: Path) -> None:
    source, line, mistake = CASES[name]
    path = tmp_path / "04_modifying_training_loop_gpu.py"
    path.write_text(source, encoding="utf-8")
    (function,) = TRAINING.functions
    measure = reference_solution("day8", TRAINING.stem)
    result = first_of(grade_function(TRAINING, function, load_submission(path), measure, BENCH, 8))
    assert (result.line, result.misconception) == (line, mistake), result.happened
    assert hints_about(result, function) == known_misconceptions()[mistake].hints


def test_a_file_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "02_moving_model_to_device.py"
    path.write_text("def move_model(model, device):\n    return (model\n", encoding="utf-8")
    grader = FileGrader(path, BENCH, 8)
    first, second = (grader.results_of(MOVING, function) for function in MOVING.functions)
    assert first[0].misconception == "syntax-error"
    assert {result.outcome for result in second} == {Outcome.BLOCKED}
    assert (
        describe_blocking(second[0])
        == "blocked: the check `runs` of `move_model` has to pass first."
    )
    waiting = [result.check for result in first if result.blocked_by == "runs"]
    said = Feedback(first[0], MOVING, path, 0, blocks=waiting).parts
    assert dict(said)["blocks"].startswith(f"{waiting[0]}, ")


def test_a_second_failure_at_the_same_line_names_the_first() -> None:
    def failed(
        check: str, line: int | None, mistake: str | None, function: str = "f", ran: int = 0
    ) -> CheckResult:
        lines = ((ran, ran),) if ran else None
        return CheckResult(
            "02", function, check, check, Outcome.FAILED, 1, "", "", line, mistake, ran=lines
        )

    results = [
        failed("a", 3, "model-copied"),
        failed("b", 3, None),
        failed("c", 3, "unknown-name"),
        failed("d", 4, None),
        failed("a", 9, "model-copied", "g", ran=3),
        failed("b", 9, "unknown-name", "h", ran=4),
        failed("c", 3, None, "h", ran=5),
    ]
    wanted = [None, "a", "b", None, "f::a", None, None]
    assert [check_to_mend_first(result, results, MOVING) for result in results] == wanted


LARGEST = """
def largest_batch(try_batch, start):
    while start > 0:
        try:
            try_batch(start)
            return start
        except torch.OutOfMemoryError:
            start = start // 2
"""
PEAK = """
def peak_memory(fn, device):
    torch.cuda.reset_peak_memory_stats()
    fn()
    return torch.cuda.max_memory_allocated()
"""


@pytest.mark.parametrize("source", [LARGEST, PEAK])
def test_two_mistakes_at_one_line_are_both_told(source: str, tmp_path: Path) -> None:
    memory = exercise_of("day8", "09_managing_memory")
    path = tmp_path / f"{memory.stem}.py"
    path.write_text(f"import torch\n{source}", encoding="utf-8")
    grader = FileGrader(
        path, BENCH, 8, references={memory.stem: reference_solution("day8", memory.stem)}
    )
    for function in memory.functions:
        if f"def {function.name}" in source:
            grader.results_of(memory, function)
    assert list(told_after(grader.graded, memory).values()) == [None, None]


def told_after(results: list[CheckResult], exercise: Exercise) -> dict[str, str | None]:
    """By failed check, the one that is to be mended first."""
    return {
        each.check: check_to_mend_first(each, results, exercise)
        for each in results
        if each.outcome is Outcome.FAILED
    }


def test_statistics_that_change_without_eval_are_told_after_it() -> None:
    first = "evaluates_in_evaluation_mode"
    for name in ("no_eval", "eval_without_parentheses", "neither_eval_nor_no_grad"):
        exercise = exercise_of("day8", "05_modifying_evaluation_loop_gpu")
        found = told_after(grade_once(WRONG / exercise.stem / f"{name}.py"), exercise)
        assert (found[first], found["leaves_batch_norm_as_it_was"]) == (None, first), name


def test_a_pass_without_a_step_is_told_after_the_remainder_where_others_step() -> None:
    first = "steps_for_the_remainder"
    second = "returns_the_number_of_steps"
    for name in ("remainder_dropped", "last_batches_never_read"):
        results = grade_once(WRONG / "09_managing_memory" / f"{name}.py")
        found = told_after(results, exercise_of("day8", "09_managing_memory"))
        assert (found[first], found[second]) == (None, first), name
        assert "missing-step" not in {each.misconception for each in results}


def test_a_function_is_to_be_mended_before_another_that_calls_it(tmp_path: Path) -> None:
    clock = (
        (WRONG / TIMING.stem / "clock_never_waits.py")
        .read_text(encoding="utf-8")
        .partition("def compare")[0]
    )
    compare = (
        "return {str(each): time_on_device(make_work(each), each, repeats) for each in devices}"
    )
    path = tmp_path / f"{TIMING.stem}.py"
    path.write_text(
        f"{clock}\n\ndef compare_devices(make_work, devices, repeats=3):\n    {compare}\n",
        encoding="utf-8",
    )
    grader = FileGrader(
        path, BENCH, 8, references={TIMING.stem: reference_solution("day8", TIMING.stem)}
    )
    for function in TIMING.functions[:2]:
        grader.results_of(TIMING, function)
    first = "waits_for_the_device"
    assert told_after(grader.graded, TIMING) == {
        first: None,
        "times_each_as_it_should": f"time_on_device::{first}",
    }


def test_a_function_that_is_missing_has_no_hints_on_what_it_should_do(tmp_path: Path) -> None:
    path = tmp_path / "02_moving_model_to_device.py"
    path.write_text("def moves_model(model, device):\n    return model\n", encoding="utf-8")
    result = FileGrader(path, BENCH, 8).results_of(MOVING, MOVING.functions[0])[0]
    assert result.happened == "`move_model` was not handed in; is `moves_model` meant to be it?"
    assert (result.line, hints_about(result, MOVING.functions[0])) == (1, ())


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("modell.to(device)", "NameError: name 'modell' is not defined. Did you mean: 'model'?"),
        (
            "torch.cuda.synchronise()",
            "has no attribute 'synchronise'. Did you mean: 'synchronize'?",
        ),
        ("model.parametres()", "has no attribute 'parametres'. Did you mean: 'parameters'?"),
        ("model.quantise_by_hand()", "has no attribute 'quantise_by_hand'"),
    ],
)
def test_an_error_by_a_misspelt_name_says_which_one_is_near(
    body: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "04_modifying_training_loop_gpu.py"
    path.write_text(f"import torch\n{HEAD}\n    {body}\n", encoding="utf-8")
    result = first_of(FileGrader(path, BENCH, 8).results_of(TRAINING, TRAINING.functions[0]))
    assert result.happened.endswith(told)
    if (
        result.misconception is None
    ):  # what the function should do is not what such an error is about
        assert hints_about(result, TRAINING.functions[0])[0].startswith("What does the error say")


@pytest.mark.parametrize("name", ["a_key_misspelt", "portable_number", "every_letter"])
def test_an_answer_that_is_no_letter_comes_with_hints_on_the_dict(name: str) -> None:
    result = first_of(grade_once(WRONG / "12_self_assessment" / f"{name}.py"))
    (answers,) = exercise_of("day8", "12_self_assessment").functions
    assert hints_about(result, answers)[0] == "What did `ANSWERS` look like when you got the file?"


def test_an_answer_comes_with_hints_on_its_question() -> None:
    (result,) = (
        each
        for each in grade_once(WRONG / "12_self_assessment" / "portable_hard_coded.py")
        if each.outcome is Outcome.FAILED
    )
    (answers,) = exercise_of("day8", "12_self_assessment").functions
    assert hints_about(result, answers) == answers.hints[:3]
    assert result.happened.startswith(
        '"a" is not the answer to "portable". When we tried it out, is_available() chose'
    )


def test_another_process_of_the_machine_is_not_taken_for_the_student_s() -> None:
    """As in a notebook or under a test runner that has started some."""
    path = WRONG / "06_vectorizing_pixel_loops/gray_through_numpy.py"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        submission = load_submission(path)
        measure = reference_solution("day8", path.parent.name)
        exercise = exercise_of("day8", path.parent.name)
        results = grade_function(exercise, exercise.functions[0], submission, measure, BENCH, 8)
        other.communicate(b"\n")
    assert next(r.check for r in results if r.outcome is Outcome.FAILED) == claim_in(path)[1]
