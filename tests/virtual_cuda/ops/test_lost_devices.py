"""Kernels that do the work of several operators refuse a device that a failed kernel has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from virtual_cuda import VirtualGpu


def attention() -> Callable[[], object]:
    query = torch.ones(1, 2, 4, 8, device="cuda")
    return lambda: F.scaled_dot_product_attention(query, query, query)


def recurrent_layer() -> Callable[[], object]:
    layer = nn.LSTM(3, 4).cuda()
    data = torch.ones(5, 2, 3, device="cuda")
    return lambda: layer(data)


def recurrent_cell() -> Callable[[], object]:
    cell = nn.GRUCell(3, 4).cuda()
    data = torch.ones(2, 3, device="cuda")
    return lambda: cell(data)


def norm() -> Callable[[], object]:
    layer = nn.RMSNorm(4).cuda()
    data = torch.ones(2, 4, device="cuda")
    return lambda: layer(data)


@pytest.mark.parametrize("prepare", [attention, recurrent_layer, recurrent_cell, norm])
def test_a_lost_device_runs_no_kernel(
    gpu: VirtualGpu, prepare: Callable[[], Callable[[], object]]
) -> None:
    run = prepare()
    run()
    _ = torch.ones(3, device="cuda")[torch.tensor([5], device="cuda")]
    with pytest.raises(RuntimeError, match="device-side assert"):
        torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="device-side assert"):
        run()
