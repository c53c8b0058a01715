"""Ready-made checks: what each accepts, and what it says of a function that does not keep its
claim.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gpudojo.grading.call import Call, try_scenarios
from gpudojo.grading.checks import (
    Ran,
    changes_no_settings,
    check_scenarios,
    copies_at_most,
    describe_call,
    expect_device_used,
    expect_mode_kept,
    leaves_its_input_alone,
    on_the_device,
    reads_nothing_back,
    runs,
    same_as_reference,
    waits_at_most,
)
from gpudojo.grading.comparing import arrays_close, arrays_identical
from gpudojo.grading.engine import grade_function, judge_checks
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.grading.reference_solutions import ReferenceSolution
from gpudojo.model.evidence import Array, Cases
from gpudojo.model.exercise import Exercise, Failed, Function
from gpudojo.model.results import Outcome
from hypothesis import given
from hypothesis import strategies as st

exercise = Exercise("01_double", "Twice as much", points=6)
double = exercise.function("double")


@double.probe
def called(call: Call) -> Cases[Ran]:
    numbers = torch.arange(4.0, device=call.device)
    return try_scenarios(
        {
            "four": lambda: describe_call(call, numbers),
            "none": lambda: describe_call(call, numbers[:0]),
        }
    )


runs(double)
same_as_reference(double, called, points=1)
on_the_device(double, called, points=1)
copies_at_most(double, called, points=1, copies=0)
waits_at_most(double, called, points=1, waits=0)
reads_nothing_back(double, called, points=1)
leaves_its_input_alone(double, called, points=1)

WRONG = {
    "raise KeyError('x')": ("runs", "scenario `four` raised: KeyError: 'x'"),
    "return 3 * numbers": ("same_as_reference", "scenario `four`: the values are wrong"),
    "return None": ("same_as_reference", "scenario `four`: it returned None"),
    "return 2 * numbers.cpu()": ("on_the_device", "scenario `four`: it returned a tensor on cpu"),
    "return 2 * numbers.cpu().to(numbers.device)": (
        "copies_at_most",
        "scenario `four`: it copied between host and device 2 times",
    ),
    "numbers.sum().item(); return 2 * numbers": (
        "reads_nothing_back",
        "scenario `four`: the host read from the device once",
    ),
    "result = 2 * numbers; numbers.zero_(); return result": (
        "leaves_its_input_alone",
        "scenario `four`: argument 1 has other values after the call",
    ),
    "numbers.add_(1); return 2 * (numbers - 1)": (
        "leaves_its_input_alone",
        "scenario `four`: argument 1 has other values after the call",
    ),
    "torch.manual_seed(1); return 2 * numbers": (
        "leaves_its_input_alone",
        "it changed the seed of the random numbers (scenario `four`)",
    ),
}


def failed(folder: Path, body: str, function: Function = double) -> dict[str, str]:
    """The checks that a body of `double` fails, and what they say."""
    right = folder / "right.py"
    student = folder / "student.py"
    right.write_text("def double(numbers):\n    return 2 * numbers\n", encoding="utf-8")
    student.write_text(f"import torch\n\n\ndef double(numbers):\n    {body}\n", encoding="utf-8")
    seen, wanted = (
        observe_function(exercise, function, load_submission(path), "virtual", 8)
        for path in (student, right)
    )
    results = judge_checks(exercise, function, seen, wanted)
    return {result.check: result.happened for result in results if result.outcome is Outcome.FAILED}


@pytest.mark.parametrize(
    "nothing", ["numbers", "None", "0.0", "()", "numbers[:0]", "torch.empty(0)"]
)
def test_doing_nothing_earns_nothing(tmp_path: Path, nothing: str) -> None:
    found = failed(tmp_path, f"return {nothing}")
    assert list(found) == ["same_as_reference"]  # and what it needs is blocked


def test_a_claim_of_what_is_not_done_needs_one_of_what_is_done() -> None:
    function = Exercise("01_triple", "Three times as much", points=1).function("triple")
    with pytest.raises(ValueError, match="declare the check same_as_reference of triple first"):
        leaves_its_input_alone(function, called, points=1)


def test_a_right_function_passes(tmp_path: Path) -> None:
    assert failed(tmp_path, "return numbers + numbers") == {}


@pytest.mark.parametrize("body", WRONG)
def test_a_wrong_function_fails_the_check_that_claims_it(tmp_path: Path, body: str) -> None:
    check, happened = WRONG[body]
    assert failed(tmp_path, body)[check] == happened


def test_what_one_scenario_changes_is_as_before_in_the_next(tmp_path: Path) -> None:
    exercise = Exercise("01_double", "Twice as much", points=2)
    function = exercise.function("double")

    @function.probe
    def called_twice(call: Call) -> Cases[Ran]:
        numbers = torch.arange(4.0, device=call.device)
        first, second = (lambda: describe_call(call, numbers) for _ in range(2))
        return try_scenarios({"first": first, "second": second})

    runs(function)
    same_as_reference(function, called_twice, points=1)
    leaves_its_input_alone(function, called_twice, points=1)
    body = "result = 2 * numbers; numbers.zero_(); return result"
    assert list(failed(tmp_path, body, function)) == ["leaves_its_input_alone"]
    for change in ("resize_(2)", "data = numbers.data.cpu()"):
        body = f"result = 2 * numbers; numbers.{change}; return result"
        assert list(failed(tmp_path, body, function)) == ["leaves_its_input_alone"], change
    body = "assert numbers[1] == 1; numbers.zero_(); raise OSError"
    assert failed(tmp_path, body, function) == {"runs": "scenario `first` raised: OSError"}


def test_a_copy_to_the_device_is_no_wait_and_nothing_that_comes_back(tmp_path: Path) -> None:
    body = "two = torch.tensor(2.0).to(numbers.device); return two * numbers"
    assert failed(tmp_path, body) == {
        "copies_at_most": "scenario `four`: it copied between host and device once",
    }
    back = "numbers.to('cpu', non_blocking=True); return 2 * numbers"
    assert list(failed(tmp_path, back)) == ["copies_at_most", "reads_nothing_back"]


def test_limits_are_part_of_the_claim() -> None:
    function = Exercise("01_triple", "Three times as much", points=1).function("triple")
    runs(function)
    same_as_reference(function, called, points=1)
    copies_at_most(function, called, points=1, copies=2)
    waits_at_most(function, called, points=1, waits=1)
    assert [check.claim for check in function.checks[2:]] == [
        "It copies between host and device at most 2 times.",
        "The CPU waits for the device at most once.",
    ]
    claims = {check.name: check.claim for check in double.checks}
    assert claims["copies_at_most"] == "It copies nothing between host and device."
    assert claims["waits_at_most"] == "The CPU never waits for the device."


def test_only_changed_settings_fail_the_check_of_settings(tmp_path: Path) -> None:
    exercise = Exercise("01_double", "Twice as much", points=2)
    function = exercise.function("double")
    probe = function.probe(called.look)
    runs(function)
    same_as_reference(function, probe, points=1)
    changes_no_settings(function, probe, points=1)
    seed = "torch.manual_seed(1); return 2 * numbers"
    assert failed(tmp_path, seed, function) == {
        "changes_no_settings": "it changed the seed of the random numbers (scenario `four`)"
    }
    assert failed(tmp_path, "return numbers + numbers", function) == {}
    assert list(failed(tmp_path, "return None", function)) == ["same_as_reference"]


def test_a_check_of_ones_own_is_judged_in_the_scenarios_that_it_names(tmp_path: Path) -> None:
    exercise = Exercise("01_double", "Twice as much", points=2)
    function = exercise.function("double")
    probe = function.probe(called.look)
    runs(function)

    @check_scenarios(function, probe, points=1)
    def is_a_tensor(scenario: str, found: Ran, right: Ran) -> None:
        """It returns a tensor."""
        if found.kind != right.kind:
            raise Failed(f"{scenario}: {found.kind}", right.kind)

    @check_scenarios(function, probe, points=1, names=["none"], needs=("is_a_tensor",))
    def keeps_nothing(scenario: str, found: Ran, right: Ran) -> None:
        """Of no numbers it makes none."""
        if found.value != right.value:
            raise Failed(f"{scenario} gave some", "none")

    assert [check.claim for check in function.checks[1:]] == [
        "It returns a tensor.",
        "Of no numbers it makes none.",
    ]
    assert failed(tmp_path, "return 3", function) == {"is_a_tensor": "four: int"}
    assert failed(tmp_path, "return 3 * numbers", function) == {}
    more = "return torch.ones(1) if not len(numbers) else numbers"
    assert failed(tmp_path, more, function) == {"keeps_nothing": "none gave some"}


@pytest.mark.parametrize(
    ("device", "used", "mistake"),
    [
        ("cpu", ["cuda:0"], "hard-coded-cuda"),
        ("cuda:1", ["cuda:0"], "device-index-dropped"),
        ("cuda:0", ["cpu"], None),
        ("cuda:1", ["cpu", "cuda:0"], None),
        ("cpu", ["cpu", "cuda:0"], "hard-coded-cuda"),
    ],
)
def test_another_device_is_told_with_its_mistake(
    device: str, used: list[str], mistake: str | None
) -> None:
    with pytest.raises(Failed) as caught:
        expect_device_used(device, used, "the model ran on", 7)
    found = caught.value
    assert found.happened == f"with device={device!r}, the model ran on {' and '.join(used)}"
    assert (found.expected, found.line) == (f"{device}, as asked", 7)
    assert found.misconception == mistake
    expect_device_used(device, [device], "the model ran on")


def test_a_mode_is_told_if_it_is_another_one() -> None:
    expect_mode_kept("the model", True, True)
    with pytest.raises(Failed) as caught:
        expect_mode_kept("the model", False, True)
    assert caught.value.happened == "the model was put into training mode"
    assert caught.value.expected == "evaluation mode, as before"


FEW = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-6, 2.0, math.inf, math.nan])


@given(st.sampled_from(["float16", "float32", "float64", "int64", "bool", "complex64"]), st.data())
def test_arrays_are_compared_as_numpy_compares_them(dtype: str, data: st.DataObject) -> None:
    values = FEW if dtype.startswith(("float", "complex")) else st.sampled_from([0, 1])
    pairs = data.draw(
        st.lists(st.tuples(values, values) | values.map(lambda value: (value, value)), max_size=4)
    )
    one, other = (np.array([pair[side] for pair in pairs], dtype) for side in (0, 1))
    found, right = (Array(dtype, each.shape, each.tobytes()) for each in (one, other))
    assert arrays_close(found, right) is bool(np.allclose(one, other, 1e-3, 1e-5))
    assert arrays_close([found, right], [right, right]) is (
        arrays_close(found, right) and arrays_close(right, right)
    )
    assert arrays_identical(found, right) <= bool((one == other).all())


TRAINED = """
    outputs = model({inputs})
    return torch.nn.functional.{loss}(outputs, {targets})
"""
MOVED = {"inputs": "inputs.to(device)", "targets": "targets.to(device)"}
DEVICE_MISTAKES = [
    (TRAINED.format(loss="mse_loss", inputs="inputs", targets="targets"), "inputs-on-cpu"),
    (
        "\n    inputs.to(device)"
        + TRAINED.format(loss="mse_loss", inputs="inputs", targets="targets"),
        "result-thrown-away",
    ),
    *(
        (TRAINED.format(loss=loss, **MOVED | {"targets": "targets"}), "targets-on-cpu")
        for loss in ("mse_loss", "l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
    ),
    (
        "\n    targets.to(device)"
        + TRAINED.format(loss="mse_loss", **MOVED | {"targets": "targets"}),
        "result-thrown-away",
    ),
    (
        "\n    model.to(device)" + TRAINED.format(loss="mse_loss", **MOVED | {"inputs": "inputs"}),
        "inputs-on-cpu",
    ),
    ("\n    return model(inputs.to(device)).detach().numpy()", "numpy-on-device-tensor"),
    ("\n    return model(inptus)", "unknown-name"),
]


@pytest.mark.parametrize(("body", "mistake"), DEVICE_MISTAKES)
def test_device_mistakes_are_named_by_runs_alone(tmp_path: Path, body: str, mistake: str) -> None:
    exercise = Exercise("01_step", "A step", points=0)
    step = exercise.function("step")

    @step.probe
    def stepped(call: Call) -> Cases[Ran]:
        model = torch.nn.Linear(3, 1).to(call.device)
        inputs, targets = torch.rand(4, 3), torch.rand(4, 1)
        return try_scenarios(
            {"one batch": lambda: describe_call(call, model, inputs, targets, call.device)}
        )

    runs(step)
    head = "import torch\n\n\ndef step(model, inputs, targets, device):"
    student = tmp_path / "student.py"
    student.write_text(head + body, encoding="utf-8")
    right = tmp_path / "right.py"
    right.write_text(head + TRAINED.format(loss="mse_loss", **MOVED), encoding="utf-8")
    (result,) = grade_function(
        exercise, step, load_submission(student), ReferenceSolution(right), "virtual", 8
    )
    assert result.misconception == mistake, result.happened
