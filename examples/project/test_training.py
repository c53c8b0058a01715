"""Tests of a project that has never heard of a virtual device.

On a machine without a GPU pytest skips them; `pytest --virtual-cuda` runs them.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_model_learns_on_the_gpu():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    inputs = torch.randn(64, 4, device="cuda")
    targets = inputs.sum(dim=1, keepdim=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_memory_is_freed():
    before = torch.cuda.memory_allocated()
    numbers = torch.zeros(1024, 1024, device="cuda")
    assert torch.cuda.memory_allocated() - before == numbers.nbytes
    del numbers
    assert torch.cuda.memory_allocated() == before


def test_tensors_on_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="cuda") + torch.ones(2)
