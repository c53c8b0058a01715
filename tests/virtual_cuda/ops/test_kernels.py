"""Operators compute what CUDA computes where the CPU computes something else, or nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda

NAN = float("nan")
INF = float("inf")


def _t(data: Any, dtype: torch.dtype = torch.float32) -> Any:
    return torch.tensor(data, dtype=dtype).to("cuda")


# Each read off an H200, but those of float8, which CUDA casts by way of float32.
@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: _t([0, 1, -7, 2**40], torch.int64) // 0, [2**32 - 1, 2**32 - 1, -2, -1]),
        (lambda: torch.div(_t([1, -7], torch.int64), 0, rounding_mode="trunc"), [2**32 - 1, -1]),
        (lambda: _t([7, -7, 9], torch.int64) % _t([0, 0, 4], torch.int64), [2**32 - 1, -1, 1]),
        (lambda: _t([1, -7], torch.int32) // 0, [-1, -2]),
        (lambda: torch.fmod(_t([1, -7], torch.int32), 0), [-1, -1]),
        (lambda: _t([0, 7], torch.uint8) // 0, [255, 255]),
        (lambda: _t([3, -3], torch.int64).remainder_(0), [2**32 - 1, -1]),
        (lambda: _t([NAN, INF, -INF, 3e9]).to(torch.int32), [0, 2**31 - 1, -(2**31), 2**31 - 1]),
        (lambda: _t([NAN], torch.float64).int(), [-(2**31)]),
        (lambda: _t([1.5, NAN, -INF]).to(torch.float8_e5m2).int(), [1, 0, -(2**31)]),
        (lambda: _t([1.5, NAN, -INF]).to(torch.float8_e5m2).long(), [1, -(2**63), -(2**63)]),
        (lambda: _t([NAN, INF, -INF]).long(), [-(2**63), 2**63 - 1, -(2**63)]),
        (lambda: _t([INF, 3e9, -1.5, 300.0]).to(torch.uint8), [255, 0, 255, 44]),
        (lambda: _t([INF, 3e9, -INF]).to(torch.int8), [-1, -1, 0]),
        (lambda: _t([1, 2], torch.int64).copy_(_t([NAN, INF])), [-(2**63), 2**63 - 1]),
        (lambda: _t([1.0, 0.0, 1.0, 0.0, 1.0]).sort(stable=True)[1], [1, 3, 0, 2, 4]),
        (lambda: torch.zeros(5000, device="cuda").sort()[1][:4], [0, 1, 2, 3]),
        (lambda: _t([2.0, 1.0, 2.0, 1.0]).kthvalue(3)[1], 0),
        (lambda: _t([1.0, 1.0, 1.0]).median(0)[1], 0),
        (lambda: torch.eye(3, device="cuda", dtype=torch.float16).trace(), 3.0),
        (lambda: _t([True, False], torch.bool).abs(), [True, False]),
    ],
)
def test_values_of_cuda(compute: Callable[[], Any], expected: Any) -> None:
    with virtual_cuda():
        assert compute().tolist() == expected


# By name: what a call does that also takes `out`, given a matrix with equal elements.
WITH_OUT: dict[str, Callable[..., Any]] = {
    "sort": torch.sort,
    "stable sort": lambda x, **out: torch.sort(x, stable=True, dim=1, **out),
    "median": lambda x, **out: torch.median(x, 1, **out),
    "nanmedian": lambda x, **out: torch.nanmedian(x, 1, **out),
    "kthvalue": lambda x, **out: torch.kthvalue(x, 5, 1, **out),
    "mm": lambda x, **out: torch.mm(x.half() / 7, x.half().T / 7, **out),
    "addmm": lambda x, **out: torch.addmm(x.half(), x.half() / 7, x.half().T / 7, **out),
}


@pytest.mark.parametrize("name", WITH_OUT)
def test_a_call_with_out_gives_what_it_gives_without(name: str) -> None:
    with virtual_cuda():
        x = torch.arange(90_000, device="cuda").remainder(97).reshape(300, 300)
        plain = WITH_OUT[name](x)
        results = plain if isinstance(plain, tuple) else (plain,)
        out = tuple(torch.empty_like(result) for result in results)
        given = WITH_OUT[name](x, out=out if isinstance(plain, tuple) else out[0])
        for result, written in zip(results, out, strict=True):
            assert torch.equal(result, written)
        assert (given[0] if isinstance(plain, tuple) else given) is out[0]


def test_an_out_of_another_shape_is_resized_with_a_warning() -> None:
    with virtual_cuda():
        x = torch.ones(2, 3, device="cuda").half()
        out = torch.zeros(5, device="cuda").half()
        with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
            torch.mm(x, x.T, out=out)
        assert out.tolist() == [[3, 3], [3, 3]]
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(x, x.T, out=out.double())


def test_a_matrix_is_sorted_into_itself() -> None:
    with virtual_cuda():
        x = torch.tensor([[3, 1, 2], [1, 1, 0]], device="cuda")
        indices = torch.empty(0, dtype=torch.int64, device="cuda")
        torch.sort(x, out=(x, indices))
        assert x.tolist() == [[1, 2, 3], [0, 1, 1]]
        assert indices.tolist() == [[1, 2, 0], [2, 0, 1]]


def test_a_failed_factorization_ends_in_nan() -> None:
    with virtual_cuda():
        factor, info = torch.linalg.cholesky_ex(_t([[1.0, 2.0], [2.0, 1.0]]))
        assert info.item() == 2
        assert factor[0].tolist() == [1.0, 0.0]
        assert factor[1, 1].isnan()


def test_a_pixel_sampled_at_nan_is_zero() -> None:
    with virtual_cuda():
        picture = torch.ones(1, 1, 3, 4, device="cuda")
        grid = _t([[[[NAN, 0.0], [0.0, 0.0]]]])
        assert nn.functional.grid_sample(picture, grid, align_corners=False).tolist() == [
            [[[0.0, 1.0]]]
        ]


def test_a_value_inside_what_a_mask_writes_to_is_refused() -> None:
    with virtual_cuda():
        x = torch.arange(4.0, device="cuda")
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            x[x > 1] = x[3]


RECURRENT: list[tuple[Any, dict[str, Any]]] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (nn.LSTM, {"proj_size": 2}),
    (nn.GRU, {"batch_first": True}),
    (nn.RNN, {"nonlinearity": "relu", "bias": False}),
]


@pytest.mark.parametrize(("kind", "options"), RECURRENT)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_compute_the_values_and_gradients_of_the_cpu(
    kind: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    host = kind(4, 3, **options)
    twin = copy.deepcopy(host)
    data = torch.randn(5, 2, 4)
    x = data.clone().requires_grad_()
    host(x)[0].square().sum().backward()
    assert x.grad is not None
    with virtual_cuda():
        module = twin.to("cuda")
        y = data.to("cuda").requires_grad_()
        out, _ = module(y)
        assert out.grad_fn.name() == "CudnnRnnBackward0"
        assert out.stride() == host(x)[0].stride()
        out.square().sum().backward()
        assert torch.allclose(y.grad.cpu(), x.grad)
        for mine, theirs in zip(module.parameters(), host.parameters(), strict=True):
            assert torch.allclose(mine.grad.cpu(), theirs.grad)


def test_recurrent_weights_are_one_block_and_learn() -> None:
    with virtual_cuda():
        module = nn.LSTM(4, 3).to("cuda")
        assert torch.cuda.memory_allocated() == 512
        before = module.weight_ih_l0.detach().clone()
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        module(torch.ones(2, 1, 4, device="cuda"))[0].sum().backward()
        optimizer.step()
        assert not torch.equal(module.weight_ih_l0, before)
        assert module._flat_weights[0] is module.weight_ih_l0
        module.cpu()
        assert module.weight_ih_l0.device.type == "cpu"


def test_scattered_recurrent_weights_are_compacted_at_every_call_with_a_warning() -> None:
    with virtual_cuda():
        module = copy.deepcopy(nn.GRU(4, 3).to("cuda"))
        with pytest.warns(UserWarning, match="not part of single contiguous chunk"):
            module(torch.ones(2, 1, 4, device="cuda"))


def test_no_backward_through_a_recurrent_layer_in_eval_mode() -> None:
    with virtual_cuda():
        module = nn.LSTM(2, 3).to("cuda").eval()
        out = module(torch.ones(4, 1, 2, device="cuda", requires_grad=True))[0]
        with pytest.raises(
            RuntimeError, match="cudnn RNN backward can only be called in training mode"
        ):
            out.sum().backward()
        with torch.backends.cudnn.flags(enabled=False):
            module(torch.ones(4, 1, 2, device="cuda", requires_grad=True))[0].sum().backward()
