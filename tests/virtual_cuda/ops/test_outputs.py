"""Operators return, and graphs keep, what they do on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from virtual_cuda import virtual_cuda

from tests.virtual_cuda.releases import TORCH

aten = torch.ops.aten


def held(make: Callable[[], Any]) -> int:
    """The bytes that a result keeps alive, its graph and the graph's leaves included."""
    before = torch.cuda.memory_allocated()
    result = make()
    after = torch.cuda.memory_allocated()
    del result
    return after - before


def _run(
    module: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.float32
) -> Callable[[], Any]:
    return lambda: module().to("cuda", dtype)(torch.ones(*shape).to("cuda", dtype).requires_grad_())


def _x() -> Any:
    return torch.ones(4, 8, device="cuda", requires_grad=True)


# Read off an H200.
HELD: dict[str, tuple[Callable[[], Callable[[], Any]], int]] = {
    "layer norm": (lambda: _run(lambda: nn.LayerNorm(8), 2, 4, 8), 3072),
    "rms norm": (lambda: _run(lambda: nn.RMSNorm(8), 2, 4, 8), 2048 if TORCH >= (2, 9) else 2560),
    "log sigmoid": (lambda: lambda: F.logsigmoid(_x()), 1024),
    "dropout": (lambda: _run(lambda: nn.Dropout(0.5), 2, 4, 8), 1536),
    "max with indices": (lambda: lambda: _x().max(0), 1536),
    "batch norm in eval, half": (
        lambda: _run(lambda: nn.BatchNorm1d(4).eval(), 2, 4, 8, dtype=torch.float16),
        4096,
    ),
    "attention": (lambda: lambda: F.scaled_dot_product_attention(*[_x()[None, None]] * 3), 1536),
    "attention in half precision": (
        lambda: lambda: F.scaled_dot_product_attention(*[_x()[None, None].half()] * 3),
        3072,
    ),
    "transformer layer": (
        lambda: _run(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, 4, 8),
        16896,
    ),
    "lstm": (lambda: _run(lambda: nn.LSTM(4, 3, batch_first=True), 2, 3, 4), 4608),
    "gru": (lambda: _run(lambda: nn.GRU(4, 3, batch_first=True), 2, 3, 4), 3584),
    "rnn": (lambda: _run(lambda: nn.RNN(4, 3, batch_first=True), 2, 3, 4), 3072),
    "lstm in bfloat16": (
        lambda: _run(lambda: nn.LSTM(8, 5, batch_first=True), 2, 4, 8, dtype=torch.bfloat16),
        7168,
    ),
}


@pytest.mark.parametrize("name", HELD)
@pytest.mark.filterwarnings("ignore:RNN module weights")
def test_a_graph_keeps_as_many_bytes_as_on_cuda(name: str) -> None:
    make, expected = HELD[name]
    with virtual_cuda():
        held(make())  # libraries have their workspaces now
        assert held(make()) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "module", [lambda: nn.LayerNorm(8), lambda: nn.BatchNorm1d(4), lambda: nn.RMSNorm(8)]
)
def test_norms_of_half_inputs_have_a_backward(
    module: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    data = torch.randn(2, 4, 8)
    plain = module()
    wide = data.clone().requires_grad_()
    (plain(wide) ** 3).sum().backward()
    assert wide.grad is not None
    with virtual_cuda():
        layer = module().to("cuda", dtype)
        x = data.to("cuda", dtype).requires_grad_()
        (layer(x) ** 3).sum().backward()
        assert x.grad.dtype is dtype
        assert layer.weight.grad.dtype is dtype
        assert torch.allclose(x.grad.float().cpu(), wide.grad, rtol=0.05, atol=0.15)


def test_layer_norm_statistics_are_single_precision() -> None:
    with virtual_cuda():
        x = torch.ones(2, 8, device="cuda", dtype=torch.bfloat16)
        _, mean, rstd = aten.native_layer_norm(x, [8], None, None, 1e-5)
        assert mean.dtype is rstd.dtype is torch.float32


def test_batch_norm_in_eval_keeps_statistics_unless_cudnn_runs_it() -> None:
    with virtual_cuda():
        ones = torch.ones(4, device="cuda")
        flat = torch.ones(2, 4, device="cuda")
        deep = torch.ones(2, 4, 3, device="cuda")
        assert aten.native_batch_norm(flat, ones, ones, ones, ones, False, 0.1, 1e-5)[1].shape == (
            4,
        )
        assert aten.native_batch_norm(deep, ones, ones, ones, ones, False, 0.1, 1e-5)[1].shape == (
            0,
        )


def test_log_sigmoid_keeps_no_buffer_and_still_has_its_gradient() -> None:
    values = torch.linspace(-3, 3, 7)
    host = values.clone().requires_grad_()
    F.logsigmoid(host).sum().backward()
    with virtual_cuda():
        x = values.to("cuda").requires_grad_()
        assert aten.log_sigmoid_forward(x)[1].numel() == 0
        F.logsigmoid(x).sum().backward()
        assert torch.equal(x.grad.cpu(), host.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_know_their_indices_and_have_gradients(mode: str) -> None:
    weight = torch.arange(12.0).reshape(4, 3)
    indices = torch.tensor([0, 2, 3, 1])
    offsets = torch.tensor([0, 1])
    host = weight.clone().requires_grad_()
    F.embedding_bag(indices, host, offsets, mode=mode).square().sum().backward()
    with virtual_cuda():
        w = weight.to("cuda").requires_grad_()
        number = ["sum", "mean", "max"].index(mode)
        out = aten._embedding_bag(w, indices.to("cuda"), offsets.to("cuda"), False, number)
        assert out[1].tolist() == [0, 1, 1, 1]
        assert out[3].numel() == (6 if mode == "max" else 0)
        F.embedding_bag(
            indices.to("cuda"), w, offsets.to("cuda"), mode=mode
        ).square().sum().backward()
        assert torch.allclose(w.grad.cpu(), host.grad)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_gradients_of_the_cpu(causal: bool) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 5, 8) for _ in range(3))
    host = [t.clone().requires_grad_() for t in (query, key, value)]
    F.scaled_dot_product_attention(*host, is_causal=causal).square().sum().backward()
    with virtual_cuda():
        device = [t.to("cuda").requires_grad_() for t in (query, key, value)]
        F.scaled_dot_product_attention(*device, is_causal=causal).square().sum().backward()
        for mine, theirs in zip(device, host, strict=True):
            assert torch.allclose(mine.grad.cpu(), theirs.grad, atol=1e-6)


@pytest.mark.parametrize("shapes", [((5, 4, 3), (3,)), ((5, 4, 3), (3, 2))])
def test_a_product_of_folded_dimensions_goes_into_its_output(shapes: tuple[Any, Any]) -> None:
    with virtual_cuda() as gpu:
        left, right = (torch.rand(shape, device="cuda") for shape in shapes)
        expected = torch.matmul(left, right)
        out = torch.empty_like(expected)
        begin = len(gpu.ledger.operations())
        assert torch.matmul(left, right, out=out) is out
        assert not [row for row in gpu.ledger.operations()[begin:] if "copy_" in row.name]
        assert torch.equal(out, expected)
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.ones(2, 3, device="cuda").copy_(torch.ones(6, device="cuda"))
