"""Several scenarios under one bench: whose errors are kept for the checks, and whose end the probe."""

from __future__ import annotations

import pytest
from gpudojo.grading.call import StudentRaised, described
from gpudojo.model.evidence import Raised

ENDING = [
    Raised("DeviceClosed", "the device is gone", 3),
    Raised("MemoryError", "", 3),
    Raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate 60.00 GiB.", 3),
    Raised("RuntimeError", "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", 3),
]


@pytest.mark.parametrize("evidence", ENDING, ids=lambda evidence: evidence.type)
def test_a_closed_device_and_memory_that_ran_out_are_matters_of_more_than_one_check(evidence: Raised) -> None:
    with pytest.raises(StudentRaised):
        described(StudentRaised(evidence))


def test_what_else_is_raised_belongs_to_a_check() -> None:
    told = described(StudentRaised(Raised("RuntimeError", "Expected all tensors to be on the same device", 7)))
    assert told == {"type": "RuntimeError", "message": "Expected all tensors to be on the same device", "line": 7}
