"""Several scenarios on one device: which errors are kept for checks, and which end the probe."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from gpudojo.grading.call import StudentRaised, run_scenarios, try_inputs, try_scenarios
from gpudojo.grading.observe import load_file, observe_function
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.evidence import Raised


def raising(evidence: Raised) -> int:
    raise StudentRaised(evidence)


ENDING = [
    Raised("DeviceClosed", "the device is gone", 3),
    Raised("MemoryError", "", 3),
    Raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate 60.00 GiB.", 3),
    Raised(
        "RuntimeError",
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        3,
    ),
]


@pytest.mark.parametrize("evidence", ENDING, ids=lambda evidence: evidence.type)
def test_a_closed_device_and_lack_of_memory_end_the_probe(evidence: Raised) -> None:
    with pytest.raises(StudentRaised):
        try_scenarios({"one": lambda: raising(evidence)})


def test_other_errors_are_kept_with_their_scenario_and_the_rest_goes_on() -> None:
    error = Raised("RuntimeError", "Expected all tensors to be on the same device", 7)
    found = try_scenarios({"one": lambda: raising(error), "two": lambda: 2})
    assert dict(found) == {"two": 2}
    assert found.errors == {"one": Raised(error.type, error.message, 7, scenario="one")}


def test_each_input_of_a_table_is_a_scenario_of_its_name() -> None:
    error = Raised("ZeroDivisionError", "division by zero", 7)

    def describe(call: Any, number: int) -> float:
        return call / number if number else raising(error)

    call: Any = 6
    found = try_inputs(describe, call, {"two": 2, "none": 0, "three": 3})
    assert dict(found) == {"two": 3, "three": 2}
    assert found.errors["none"].scenario == "none"


def test_several_ends_with_the_first_error_which_names_its_scenario() -> None:
    with pytest.raises(StudentRaised) as caught:
        run_scenarios({"one": lambda: 1, "two": lambda: raising(Raised("ValueError", "no", 3))})
    assert caught.value.evidence.scenario == "two"


@pytest.mark.parametrize(
    "drawn", ["torch.randperm(n)", "random.sample(range(n), n)", "numpy.random.permutation(n)"]
)
def test_random_numbers_are_the_same_whatever_ran_before(tmp_path: Path, drawn: str) -> None:
    """A function that is graded again, alone or after a process died, is seen to do the same."""
    exercise = next(each for each in exercises_of("day8") if each.stem.startswith("08"))
    function = next(each for each in exercise.functions if each.name == "make_loader")
    file = tmp_path / f"{exercise.stem}.py"
    file.write_text(
        "import random\nimport numpy\nimport torch\n\n\n"
        "def make_loader(dataset, batch_size, device, shuffle=False, num_workers=0):\n"
        f"    n = len(dataset)\n    order = [int(each) for each in {drawn}]\n"
        "    return torch.utils.data.DataLoader(dataset, batch_size, sampler=order)\n"
    )
    submission = load_file(file)
    first = observe_function(exercise, function, submission, "virtual", 8)
    torch.rand(3), random.random(), numpy.random.rand(3)
    again = observe_function(exercise, function, submission, "virtual", 8)
    other = observe_function(exercise, function, submission, "virtual", 9)
    assert first.observations["loaders"].facts == again.observations["loaders"].facts
    assert first.observations["loaders"].facts != other.observations["loaders"].facts


def test_a_warning_of_several_calls_is_shown_once(tmp_path: Path) -> None:
    exercise = next(each for each in exercises_of("day8") if each.number == "01")
    file = tmp_path / f"{exercise.stem}.py"
    source = (
        "import torch\n"
        "import warnings\n\n\n"
        "def select_device(prefer=None):\n"
        '    warnings.warn("old", stacklevel=1)\n'
    )
    file.write_text(f'{source}    return torch.device("cpu")\n')
    for _ in range(2):  # another submission of the same file shows it again
        with warnings.catch_warnings(record=True) as shown:
            observe_function(exercise, exercise.functions[0], load_file(file), "virtual", 8)
        assert [str(each.message) for each in shown] == ["old"]
