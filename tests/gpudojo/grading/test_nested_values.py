"""Ready-made checks of functions that take and return dicts, lists and modules of tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpudojo.grading.call import Call, try_scenarios
from gpudojo.grading.checks import (
    Ran,
    describe_call,
    leaves_its_input_alone,
    on_the_device,
    runs,
    same_as_reference,
)
from gpudojo.grading.engine import judge_checks
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.model.evidence import Cases
from gpudojo.model.exercise import Exercise
from gpudojo.model.results import Outcome

exercise = Exercise("01_average", "Averages of weights", points=3)
average = exercise.function("average")


@average.probe
def averages(call: Call) -> Cases[Ran]:
    torch.manual_seed(call.seed)
    model = torch.nn.Linear(3, 2).to(call.device)
    old = {name: torch.rand_like(weight) for name, weight in model.named_parameters()}
    marks = [torch.ones(2, device=call.device)]
    return try_scenarios(
        {
            "first": lambda: describe_call(call, old, model, marks=marks),
            "second": lambda: describe_call(call, old, model, marks=marks),
        }
    )


runs(average)
same_as_reference(average, averages, points=1)
on_the_device(average, averages, points=1)
leaves_its_input_alone(average, averages, points=1)

RIGHT = """
    weights = dict(model.named_parameters())
    mixed = {name: (old[name] + weights[name].detach()) / 2 for name in old}
    sizes = [sum(tensor.sum().item() for tensor in mixed.values()), len(mixed)]
    return {"mixed": mixed, "sizes": sizes, 1: marks[0] * 2}
"""


def write(path: Path, body: str) -> Path:
    path.write_text(f"import torch\n\n\ndef average(old, model, *, marks):{body}", encoding="utf-8")
    return path


def judge(folder: Path, body: str, right: str = RIGHT) -> dict[str, tuple[str, str, str]]:
    """The checks that a body of `average` does not pass: outcome, what happened, and expected."""
    seen, wanted = (
        observe_function(exercise, average, load_submission(path), "virtual", 8)
        for path in (write(folder / "student.py", body), write(folder / "right.py", right))
    )
    found = {}
    for result in judge_checks(exercise, average, seen, wanted):
        if result.outcome not in (Outcome.PASSED, Outcome.BLOCKED):
            found[result.check] = (result.outcome.value, result.happened, result.expected)
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        # A sum in another order is another float.
        ("sum(tensor.sum().item() for", "1e-6 + sum(tensor.sum().item() for"),
        ('"sizes": sizes', '"sizes": tuple(sizes)'),
    ],
)
def test_right_results_pass(tmp_path: Path, old: str, new: str) -> None:
    assert judge(tmp_path, RIGHT.replace(old, new) if old else RIGHT) == {}


@pytest.mark.parametrize(
    ("old", "new", "happened", "expected"),
    [
        ("/ 2", "/ 3", "the values of `weight` of `mixed` are wrong", "the reference's values"),
        ("* 2", "* 2.5", "the values of `1 (int)` are wrong", "the reference's values"),
        (" 1: ", ' "1": ', "the result has the keys ['mixed', 'sizes', '1']", "the keys "),
        ("len(mixed)]", "3]", "item 2 of `sizes` of the result is 3", "2"),
        ("len(mixed)]", "2.0]", "item 2 of `sizes` of the result is a float", "an int"),
        ("[sum", "[1 + sum", "item 1 of `sizes` of the result is ", ""),
        (", len(mixed)]", "]", "`sizes` of the result has the length 1", "the length 2"),
        ("marks[0] * 2", "None", "`1 (int)` of the result is None", "a Tensor"),
        ("marks[0] * 2", "model", "in what it returned is a Linear", "the reference's values"),
        ("marks[0] * 2", "marks[0][:1] * 2", "`1 (int)` of the result has the shape (1,)", "(2,)"),
        ("marks[0] * 2", "marks[0].double() * 2", "has the dtype float64", "the dtype float32"),
        ("return {", "return old or {", "the result has the keys ['weight', 'bias']", "the keys"),
    ],
)
def test_wrong_results_fail(
    tmp_path: Path, old: str, new: str, happened: str, expected: str
) -> None:
    assert old in RIGHT
    found = judge(tmp_path, RIGHT.replace(old, new))
    assert list(found) == ["same_as_reference"]
    outcome, said, wanted = found["same_as_reference"]
    assert outcome == "failed"
    assert happened in said
    assert expected in wanted


def test_all_tensors_of_a_result_have_to_be_on_the_device(tmp_path: Path) -> None:
    found = judge(tmp_path, RIGHT.replace("marks[0] * 2", "marks[0].cpu() * 2"))
    assert found == {
        "on_the_device": (
            "failed",
            "scenario `first`: it returned a dict with tensors on cpu and cuda:0",
            "all tensors on cuda:0",
        )
    }


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ("old['weight'].zero_()", "argument 1"),
        ("old['weight'] = old['weight'].cpu()", "argument 1"),
        ("old['more'] = 3", "argument 1"),
        ("torch.nn.init.zeros_(model.bias)", "argument 2"),
        ("model.bias = torch.nn.Parameter(torch.ones_like(model.bias))", "argument 2"),
        ("marks[0].add_(1)", "the argument `marks`"),
        ("marks.clear()", "the argument `marks`"),
    ],
)
def test_changed_arguments_are_told_and_put_back(
    tmp_path: Path, change: str, argument: str
) -> None:
    body = RIGHT.replace("    return", "    result").replace("result {", "result = {")
    body += f"    {change}\n    return result\n"
    found = judge(tmp_path, body)
    assert found == {
        "leaves_its_input_alone": (
            "failed",
            f"scenario `first`: {argument} has other values after the call",
            "the values from before",
        )
    }


def test_an_argument_changed_in_place_and_returned_is_judged_by_its_values(tmp_path: Path) -> None:
    in_place = "\n    for each in old.values(): each.mul_(2)\n    return old\n"
    right = "\n    return {name: each * 2 for name, each in old.items()}\n"
    assert list(judge(tmp_path, in_place, right)) == ["leaves_its_input_alone"]


def test_a_module_that_is_moved_is_back_in_the_next_scenario(tmp_path: Path) -> None:
    where = (
        "\n    name = str(next(model.parameters()).device)\n    {}\n    return [name, marks[0]]\n"
    )
    assert judge(tmp_path, where.format("model.cpu()"), where.format("pass")) == {}


def test_what_cannot_be_compared_is_an_error_of_the_exercise(tmp_path: Path) -> None:
    body = "\n    return [model]\n"
    found = judge(tmp_path, body, body)
    outcome, happened, _ = found["same_as_reference"]
    assert outcome == "error"
    assert "what the reference returns holds Linear, which it cannot compare" in happened
