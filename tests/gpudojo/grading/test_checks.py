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
    at_most,
    changes_no_settings,
    check_scenarios,
    describe_call,
    expect_device_used,
    expect_mode_kept,
    leaves_its_input_alone,
    on_the_device,
    runs,
    same_as_reference,
)
from gpudojo.grading.comparing import arrays_close, arrays_identical
from gpudojo.grading.engine import judge_checks
from gpudojo.grading.load import load_submission
from gpudojo.grading.observe import observe_function
from gpudojo.model.evidence import Array, Cases
from gpudojo.model.exercise import Exercise, Failed, Function
from gpudojo.model.results import Outcome
from hypothesis import given
from hypothesis import strategies as st

exercise = Exercise("01_double", "Twice as much", points=4)
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
at_most(double, called, points=1, copies=0, waits=0)
leaves_its_input_alone(double, called, points=1)

WRONG = {
    "raise KeyError('x')": ("runs", "scenario `four` raised: KeyError: 'x'"),
    "return 3 * numbers": ("same_as_reference", "scenario `four`: the values are wrong"),
    "return None": ("same_as_reference", "scenario `four`: it returned None"),
    "return 2 * numbers.cpu()": ("on_the_device", "scenario `four`: it returned a tensor on cpu"),
    "return 2 * numbers.cpu().to(numbers.device)": (
        "stays_on_the_device",
        "scenario `four`: 2 copies",
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


def test_only_changed_settings_fail_the_check_of_settings(tmp_path: Path) -> None:
    function = exercise.function("double")
    try:
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
    finally:
        exercise.functions.remove(function)


def test_a_check_of_ones_own_is_judged_in_the_scenarios_that_it_names(tmp_path: Path) -> None:
    function = exercise.function("double")
    try:
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
    finally:
        exercise.functions.remove(function)


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
