"""Programs wait and copy on the virtual device as often as on a GPU, and copy as many bytes."""

from __future__ import annotations

import pytest
import torch

from tests.virtual_cuda.releases import TORCH
from tools.waits_and_copies import (
    PROGRAMS,
    RECORD,
    count_on_virtual_device,
    differences,
    read_counts,
    read_programs,
)

RECORDED = read_counts(RECORD).programs
# The programs of the other files, whole models that take long, are compared by the tool.
WRITTEN_FOR_THIS = list(read_programs(PROGRAMS[0]))
PRINTS_A_TENSOR = "loop/clip_that_raises_for_nan"


@pytest.mark.parametrize("name", WRITTEN_FOR_THIS)
def test_a_step_waits_and_copies_as_on_an_h200(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == PRINTS_A_TENSOR and TORCH < (2, 9):
        pytest.skip("before torch 2.9 the text of a tensor takes one wait less")
    # torch.compile switches these checks off, which wait, for the rest of the process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    program = RECORDED[name]
    assert list(differences(count_on_virtual_device(program, name), program.counts)) == []


def test_the_record_is_of_the_programs_as_they_are() -> None:
    for name, program in read_programs(PROGRAMS[0]).items():
        assert (program.setup, program.step) == (RECORDED[name].setup, RECORDED[name].step)
