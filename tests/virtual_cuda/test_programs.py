"""Whole models train and generate on the virtual device: the programs an H200 was timed with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from virtual_cuda import virtual_cuda

RECORD = Path(__file__).parent / "clock" / "h200-models.json"
PROGRAMS = json.loads(RECORD.read_text(encoding="utf-8"))["programs"]
QUICK = {"dlrm/train_2048", "resnet18/train_8x64", "rl/pendulum_policy", "unet/denoise_4"}


def parameter_for(name: str) -> Any:
    if name in QUICK:
        return name
    return pytest.param(name, marks=pytest.mark.slow)


def tensors_in(scope: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors a program has left: its variables, and its models' parameters and buffers."""
    found = []
    for value in list(scope.values()):
        if isinstance(value, torch.nn.Module):
            found += [*value.parameters(), *value.buffers()]
        elif isinstance(value, torch.Tensor):
            found.append(value)
    return found


@pytest.mark.parametrize("name", [parameter_for(name) for name in PROGRAMS])
def test_the_program_runs_and_its_numbers_are_finite(name: str) -> None:
    program = PROGRAMS[name]
    scope: dict[str, Any] = {}
    with virtual_cuda(gpu="H200") as gpu:
        exec(program["setup"], scope)
        before = len(gpu.ledger.operations())
        exec(program["step"], scope)
        assert len(gpu.ledger.operations()) > before
        for tensor in tensors_in(scope):
            assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("name", ["resnet18/train_8x64", "unet/denoise_4"])
def test_training_changes_every_parameter(name: str) -> None:
    program = PROGRAMS[name]
    scope: dict[str, Any] = {}
    with virtual_cuda(gpu="H200"):
        exec(program["setup"], scope)
        parameters = list(scope["m"].parameters())
        at_first = [parameter.detach().clone() for parameter in parameters]
        exec(program["step"], scope)
        for parameter, value in zip(parameters, at_first, strict=True):
            assert parameter.grad is not None
            assert not torch.equal(parameter, value)
