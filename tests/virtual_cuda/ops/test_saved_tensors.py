"""Hooks for saved tensors see what they see on a GPU: nothing of the host's graphs inside."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from virtual_cuda import VirtualGpu


def _attention(x: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(x, x, x)


def _recurrent(x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = nn.LSTM(8, 8).cuda()(x)[0]
    return output


def _cell(x: torch.Tensor) -> torch.Tensor:
    state: torch.Tensor = nn.GRUCell(8, 8).cuda()(x[0], x[1])
    return state


@pytest.mark.parametrize("work", [_attention, _recurrent, _cell])
def test_hooks_see_tensors_of_the_device_alone(
    gpu: VirtualGpu, work: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    seen: list[str] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.device.type)
        return tensor

    x = torch.rand(2, 4, 8, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = work(x)
    result.sum().backward()
    assert set(seen) == {"cuda"}
    assert x.grad is not None


def test_a_checkpoint_of_attention_keeps_nothing_after_backward(gpu: VirtualGpu) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).cuda()
    h = layer(torch.rand(2, 4, 8, device="cuda"))
    given = weakref.ref(h)
    loss = checkpoint(layer, h, use_reentrant=False).sum()
    loss.backward()
    del h
    gc.collect()
    assert given() is None
    assert loss.grad_fn is not None
