"""Several scenarios on one device: which errors are kept for the checks, and which end the probe."""

from __future__ import annotations

import pytest
from gpudojo.grading.call import StudentRaised, several, tried
from gpudojo.model.evidence import Raised


def raising(evidence: Raised) -> int:
    raise StudentRaised(evidence)


ENDING = [
    Raised("DeviceClosed", "the device is gone", 3),
    Raised("MemoryError", "", 3),
    Raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate 60.00 GiB.", 3),
    Raised("RuntimeError", "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", 3),
]


@pytest.mark.parametrize("evidence", ENDING, ids=lambda evidence: evidence.type)
def test_a_closed_device_and_lack_of_memory_end_the_probe(evidence: Raised) -> None:
    with pytest.raises(StudentRaised):
        tried({"one": lambda: raising(evidence)})


def test_other_errors_are_kept_with_their_scenario_and_the_rest_goes_on() -> None:
    error = Raised("RuntimeError", "Expected all tensors to be on the same device", 7)
    found = tried({"one": lambda: raising(error), "two": lambda: 2})
    assert dict(found) == {"two": 2}
    assert found.errors == {"one": Raised(error.type, error.message, 7, scenario="one")}


def test_several_ends_with_the_first_error_which_names_its_scenario() -> None:
    with pytest.raises(StudentRaised) as caught:
        several({"one": lambda: 1, "two": lambda: raising(Raised("ValueError", "no", 3))})
    assert caught.value.evidence.scenario == "two"
