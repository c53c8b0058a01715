"""Mixed precision behaves as on CUDA: dtypes per operator, scaling, overflow, in both spellings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from virtual_cuda import VirtualGpu
from virtual_cuda.ledger.rows import OperationRow

from tests.virtual_cuda.releases import TORCH

pytestmark = [
    pytest.mark.usefixtures("gpu"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp:FutureWarning"),
]
HALVES = [torch.float16, torch.bfloat16]

LOWER: dict[str, Callable[[Any], Any]] = {
    "matmul": lambda x: x @ x,
    "mm": lambda x: torch.mm(x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "linear": lambda x: F.linear(x, x),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[None], x[:, None]),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "lstm cell": lambda x: nn.LSTMCell(4, 4).cuda()(x)[0],
}
SINGLE: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "pow": lambda x: x**2.0,
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "mse_loss": lambda x: F.mse_loss(x, x * 0),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(4, dtype=torch.long, device="cuda")),
    "bce with logits": lambda x: F.binary_cross_entropy_with_logits(x, x * 0),
    "softplus": F.softplus,
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
}
KEPT: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 1,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "mean": lambda x: x.mean(),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "dropout": F.dropout,
    "view": lambda x: x.view(-1),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", LOWER)
def test_computed_in_half(name: str, half: torch.dtype) -> None:
    with torch.autocast("cuda", dtype=half):
        assert LOWER[name](torch.randn(4, 4, device="cuda")).dtype is half


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", SINGLE)
def test_computed_in_single(name: str, half: torch.dtype) -> None:
    with torch.autocast("cuda", dtype=half):
        assert SINGLE[name](torch.randn(4, 4, device="cuda", dtype=half)).dtype is torch.float32


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", KEPT)
def test_kept_as_it_is(name: str, dtype: torch.dtype) -> None:
    with torch.autocast("cuda"):
        assert KEPT[name](torch.randn(4, 4, device="cuda", dtype=dtype)).dtype is dtype


def test_widest_type_where_tensors_meet() -> None:
    half = torch.ones(2, device="cuda").half()
    single = torch.ones(2, device="cuda")
    with torch.autocast("cuda"):
        assert torch.cat([half, single]).dtype is torch.float32
        assert torch.stack([half, half]).dtype is torch.float16
        assert torch.dot(half, half).dtype is torch.float16
        assert (
            torch.ones(2, 2, device="cuda", dtype=torch.float64)
            @ torch.ones(2, 2, device="cuda").double()
        ).dtype is (torch.float64)
        assert (
            torch.cross(
                torch.ones(3, device="cuda").half(), torch.ones(3, device="cuda"), dim=0
            ).dtype
            is torch.float32
        )


def test_banned_and_disabled_and_nested() -> None:
    x = torch.rand(2, 2, device="cuda")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") is torch.float16
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, x)
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype is torch.bfloat16
        assert (x @ x).dtype is torch.float16
    assert (x @ x).dtype is torch.float32
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("name", ["cuda:0", "cuda:1"])
def test_a_region_for_a_device_with_an_index_is_one_for_its_type(name: str) -> None:
    x = torch.rand(2, 2, device="cuda")
    with torch.autocast(name):
        assert torch.is_autocast_enabled("cuda")
        assert (x @ x).dtype is torch.float16
        with torch.autocast(name, enabled=False):
            assert (x @ x).dtype is torch.float32
    assert (x @ x).dtype is torch.float32


def test_decorators_and_host_tensors() -> None:
    @torch.autocast("cuda")
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert product(torch.ones(2, 2, device="cuda")).dtype is torch.float16
    assert product(torch.ones(2, 2)).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (
            torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
        ).dtype is torch.float32


def test_custom_functions_follow() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("cuda")
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    x = torch.ones(2, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        out = Square.apply(x)
    assert out.dtype is torch.float32
    out.sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (torch.float16, [2.0, 2.0])


SCALERS: dict[str, Callable[..., Any]] = {
    "torch.amp": lambda **options: torch.amp.GradScaler("cuda", **options),
    "torch.cuda.amp": lambda **options: torch.cuda.amp.GradScaler(**options),
}
REGIONS: dict[str, Callable[[], Any]] = {
    "torch.amp": lambda: torch.autocast(device_type="cuda", dtype=torch.float16),
    "torch.cuda.amp": lambda: torch.cuda.amp.autocast(),
}


@pytest.mark.parametrize("spelling", SCALERS)
def test_training_in_mixed_precision(gpu: VirtualGpu, spelling: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = SCALERS[spelling](growth_interval=4)
    x = torch.randn(16, 6).cuda()
    y = torch.arange(16).remainder(3).cuda()
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with REGIONS[spelling]():
            out = model(x)
            loss = F.cross_entropy(out, y)
        assert (out.dtype, loss.dtype) == (torch.float16, torch.float32)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 2 * 65536.0
    assert set(gpu.ledger.autocast_dtypes()) == {"float16"}
    assert not gpu.ledger.backwards_without_scale()
    assert not gpu.ledger.norms_before_unscale()


@pytest.mark.parametrize("spelling", SCALERS)
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_skips_the_step_and_halves_the_scale(spelling: str, fused: bool) -> None:
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=fused)
    scaler = SCALERS[spelling](init_scale=1024.0)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (weight.tolist(), scaler.get_scale()) == ([1.0, 1.0, 1.0], 512.0)
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() != [1.0, 1.0, 1.0]
    assert scaler.get_scale() == 512.0


def test_a_disabled_scaler_does_nothing() -> None:
    weight = nn.Parameter(torch.ones(1, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    loss = weight.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert (weight.item(), scaler.get_scale(), scaler.is_enabled(), scaler.state_dict()) == (
        0.5,
        1.0,
        False,
        {},
    )


def test_misuse_and_state_of_a_scaler() -> None:
    weight = nn.Parameter(torch.ones(1, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscale_\\(\\) has already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    other = torch.amp.GradScaler("cuda")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == scaler.get_scale() == 65536.0
    half = nn.Parameter(torch.ones(1, device="cuda", dtype=torch.float16))
    scaler.scale(half.sum().float()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(torch.optim.SGD([half], lr=0.5))


def test_small_gradients_vanish_unscaled_and_survive_scaled() -> None:
    """What the scaler is for, with real half precision values."""
    weight = nn.Parameter(torch.ones(1, device="cuda"))
    with torch.autocast("cuda"):
        (
            weight.view(1, 1) @ torch.full((1, 1), 1e-4, device="cuda") * 1e-4
        ).float().sum().backward()
    lost = weight.grad.item()
    weight.grad = None
    scaler = torch.amp.GradScaler("cuda", init_scale=32768.0)  # 65536 would be infinite in half
    with torch.autocast("cuda"):
        loss = (weight.view(1, 1) @ torch.full((1, 1), 1e-4, device="cuda") * 1e-4).float().sum()
    scaler.scale(loss).backward()
    scaler.unscale_(torch.optim.SGD([weight], lr=1.0))
    assert lost == 0.0
    assert math.isclose(weight.grad.item(), 1e-8, rel_tol=0.01)


def test_autocast_of_the_cpu_casts_nothing_on_the_device() -> None:
    with torch.autocast("cpu"):
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ).cuda()
        out = model(torch.randn(5, 4, device="cuda"))
        assert out.dtype is torch.float32
        out.sum().backward()
        seen = [
            parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None
        ]
        assert seen == [torch.float32] * 4


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("dtype", HALVES)
def test_recurrent_layers_cast_what_is_mixed(kind: str, dtype: torch.dtype) -> None:
    """cuDNN computes in half, whatever autocast was asked for, and whatever the dtypes of data,
    state and weights.
    """
    layer = getattr(nn, kind)(4, 3).cuda()
    data = torch.randn(5, 2, 4, device="cuda", dtype=torch.float16)
    state = torch.randn(1, 2, 3, device="cuda")
    states = (state, state.half()) if kind == "LSTM" else state
    with torch.autocast("cuda", dtype):
        out, _ = layer(data, states)
    assert out.dtype is torch.float16
    assert out.grad_fn.name() == "CudnnRnnBackward0"
    out.float().sum().backward()
    seen = [parameter.grad for parameter in layer.parameters()]
    assert {gradient.dtype for gradient in seen} == {torch.float32}
    layer.zero_grad()
    half = layer.half()
    plain, _ = half(data, (state.half(), state.half()) if kind == "LSTM" else state.half())
    assert torch.equal(out, plain)
    plain.float().sum().backward()
    for gradient, parameter in zip(seen, half.parameters(), strict=True):
        assert torch.equal(gradient.half(), parameter.grad)


def test_recurrent_layers_keep_doubles_under_autocast() -> None:
    layer = nn.GRU(4, 3).cuda().double()
    with torch.autocast("cuda"):
        out, _ = layer(torch.randn(5, 2, 4, device="cuda", dtype=torch.float64))
    assert out.dtype is torch.float64


GRU: dict[str, Callable[..., Any]] = {
    "_VF": torch._VF.gru,
    "torch": torch.gru,
    "aten": lambda *args: torch.ops.aten.gru(*args),
}


@pytest.mark.parametrize("name", GRU)
def test_batch_sizes_stay_on_the_host(name: str) -> None:
    layer = nn.GRU(4, 3).cuda()
    data = torch.randn(6, 4, device="cuda")
    sizes = torch.tensor([3, 2, 1], device="cuda")
    state = torch.zeros(1, 3, 3, device="cuda")
    settings = (state, layer._flat_weights, True, 1, 0.0, True, False)
    with pytest.raises(RuntimeError, match="batch_sizes tensor should be on CPU, but got cuda:0"):
        GRU[name](data, sizes, *settings)
    out, _ = GRU[name](data, sizes.cpu(), *settings)
    assert out.grad_fn.name() == "CudnnRnnBackward0"
    out.sum().backward()
    assert layer.weight_ih_l0.grad is not None


@pytest.mark.parametrize("name", GRU)
def test_recurrent_layers_by_any_name(name: str) -> None:
    layer = nn.GRU(4, 3, batch_first=True).cuda()
    data = torch.randn(2, 5, 4, device="cuda")
    state = torch.zeros(1, 2, 3, device="cuda")
    settings = (state, layer._flat_weights, True, 1, 0.0, True, False, True)
    for mode in (torch.enable_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(GRU[name](data, *settings), layer(data))
    with torch.backends.cudnn.flags(enabled=False):
        out, _ = GRU[name](data, *settings)
        assert "Cudnn" not in out.grad_fn.name()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # of 2.11, about its own kernels
def test_rms_norm_runs_in_single_precision_under_autocast(weighted: bool) -> None:
    """Since torch 2.12: before, autocast does not know it, and the result has the type of the
    input.
    """
    x = torch.randn(2, 4, device="cuda", dtype=torch.float16, requires_grad=True)
    weight = torch.ones(4, device="cuda", requires_grad=True) if weighted else None
    casts = TORCH >= (2, 12)
    with torch.autocast("cuda"):
        out = F.rms_norm(x, (4,), weight)
    assert out.dtype is (torch.float32 if casts else torch.float16)
    if casts:
        assert out.grad_fn.name() == "FusedRmsNormBackward0"
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float16


_CAST: dict[str, Callable[[torch.Tensor], Any]] = {
    "conv2d, same": lambda x: F.conv2d(
        x[None, None], torch.ones(1, 1, 3, 3, device="cuda"), padding="same"
    ),
    "corrcoef": torch.corrcoef,
    "cov": torch.cov,
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(16, dtype=torch.long, device="cuda")),
    "cross_entropy, weights": lambda x: F.cross_entropy(
        x, torch.zeros(16, dtype=torch.long, device="cuda"), torch.ones(16, device="cuda")
    ),
    "layer_norm": lambda x: F.layer_norm(x, (16,)),
    "linalg.matmul": lambda x: torch.linalg.matmul(x, x),
    "linalg.norm": torch.linalg.norm,
    "linear": lambda x: F.linear(x, x),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "matmul": lambda x: x @ x[0],
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(0)),
    "softmax": lambda x: x.softmax(1),
    "trapezoid": torch.trapezoid,
    "triplet_margin": lambda x: F.triplet_margin_with_distance_loss(x, x.flip(0), x.flip(1)),
}


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", _CAST)
def test_autocast_reaches_the_parts_of_functions_in_inference_mode(
    name: str, given: torch.dtype
) -> None:
    x = torch.rand(16, 16, device="cuda").to(given)
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            wanted = _CAST[name](x)
        with torch.inference_mode():
            found = _CAST[name](x)
    assert found.dtype is wanted.dtype
    assert torch.equal(found, wanted)


def test_arguments_are_cast_from_the_last_to_the_first(gpu: VirtualGpu) -> None:
    layer = nn.Linear(8, 4).cuda()
    batch = torch.rand(2, 8, device="cuda")
    before = len(gpu.ledger.rows)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        layer(batch)
    rows = [row for row in gpu.ledger.rows[before:] if isinstance(row, OperationRow)]
    casts = [row.bytes for row in rows if row.name == "aten._to_copy.default"]
    assert casts == [4 * 2, 4 * 8 * 2, 2 * 8 * 2]  # bias, weight, batch
