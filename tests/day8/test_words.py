"""A failure shows the line to change, and first the hint that fits the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpudojo.authoring.lint import declared
from gpudojo.grading.judge import explained, judge
from gpudojo.grading.load import load
from gpudojo.grading.observe import observe
from gpudojo.model.catalogue import day, misconceptions_of
from gpudojo.model.evidence import Evidence
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.pytest_plugin.terminal import Feedback

from tests.solutions import BENCH, exercise_of, functions_in, of_path, wanted

WRONG = Path(__file__).parent / "wrong"
# file, what the line shown says, how the first hint begins
CASES = {
    "01_checking_device/drops_the_index": ("return torch.device(wanted.type)", "`torch.device(prefer)` takes"),
    "01_checking_device/is_built": ("if torch.backends.cuda.is_built():", "Ask torch what this machine has"),
    "02_moving_model_to_device/devices_without_buffers": (
        "return {name: p.device for name, p in model.named_parameters()}",
        "`model.named_parameters()` gives qualified names and parameters; buffers have their own",
    ),
    "02_moving_model_to_device/hard_coded_if_available": ('device = "cuda" if', "Use the `device` you were given"),
    "02_moving_model_to_device/eval_mode": ("return model.to(device).eval()", "Only move the model"),
    "02_moving_model_to_device/not_returned": ("model.to(device)", "`nn.Module.to` moves"),
    "03_moving_batches/tuple_to_list": ("return [move_batch(", "`type(batch)(items)` keeps the type of the batch"),
    "03_moving_batches/filled_in_place": ("batch[key] = move_batch(", "For a container, build a new one"),
    "04_modifying_training_loop_gpu/mean_of_batch_means": ("return total / count", "`loss_fn` gives the mean"),
    "04_modifying_training_loop_gpu/missing_step": ("loss.backward()", "Per batch: zero the gradients"),
    "04_modifying_training_loop_gpu/hard_coded_data": ('x, y = x.to("cuda")', "Use the `device` you were given"),
    "05_modifying_evaluation_loop_gpu/returned_tensor": ("return (total / count", "Return two Python floats"),
    "12_self_assessment/no_grad_zeroes": ('"no_grad": "c"', "What does autograd do while the model runs"),
    "09_managing_memory/any_word_of_memory": ("except ", "Which errors does your handler catch"),
}


def first_failed(path: Path) -> CheckResult:
    day_name, stem = of_path(path)
    exercise = exercise_of(day_name, stem)
    for function in functions_in(path):
        right: Evidence = wanted(day_name, stem, function.name)
        student = load(path)
        seen = observe(exercise, function, student, BENCH, 8)
        for result in judge(exercise, function, seen, right):
            if result.outcome is Outcome.FAILED:
                return explained(result, function, seen.observations, student.lines, "()")
    raise AssertionError(f"{path} passes")


@pytest.mark.parametrize("name", CASES)
def test_the_line_to_change_and_the_hint_that_fits(name: str) -> None:
    path = (WRONG / name).with_suffix(".py")
    line, hint = CASES[name]
    result = first_failed(path)
    assert result.line is not None
    assert path.read_text(encoding="utf-8").splitlines()[result.line - 1].strip().startswith(line)
    said = " ".join(str(Feedback(result, exercise_of(*of_path(path)), path, 1)).split())
    assert f"hint {hint}" in said


def test_advice_is_on_mistakes_and_checks_that_there_are() -> None:
    for exercise in day("day8"):
        assert list(declared(exercise, misconceptions_of("day8"))) == []


def test_advice_on_nothing_is_found() -> None:
    function = day("day8")[0].functions[0]
    function.when("no_such_check", hint=99)
    try:
        told = [str(finding) for finding in declared(day("day8")[0], misconceptions_of("day8"))]
    finally:
        del function.advice["no_such_check"]
    assert any("has advice on 'no_such_check', no check of it and no mistake" in each for each in told)
    assert any("has no hint 99, which is for 'no_such_check'" in each for each in told)


def test_every_hint_is_shown_once_whichever_comes_first() -> None:
    for exercise in day("day8"):
        for function in exercise.functions:
            for key in [None, *function.advice]:
                assert sorted(function.hints_for(key, "runs")) == sorted(function.hints)
