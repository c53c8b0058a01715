"""A backward pass is one backward pass in the ledger, also where a layer computes its gradients
inside one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda

LAYERS = {
    "LSTM": lambda: nn.LSTM(4, 3),
    "GRU": lambda: nn.GRU(4, 3),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
    "plain": lambda: nn.Linear(4, 3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_one_backward(name: str) -> None:
    with virtual_cuda() as gpu:
        layer = LAYERS[name]().to("cuda")
        out: Any = layer(torch.rand(5, 2, 4, device="cuda"))
        (out[0] if isinstance(out, tuple) else out).sum().backward()
    assert gpu.ledger.training_order() == ("forward", "backward")
