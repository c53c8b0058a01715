"""Autograd on the device does what it does on CUDA: modes, checkpoints, hooks, own functions,
higher derivatives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

# Registers versions in Python, as many programs do without knowing it.
import torch._meta_registrations
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from virtual_cuda import VirtualGpu

pytestmark = pytest.mark.usefixtures("gpu")


def test_gradients_are_on_the_device() -> None:
    w = torch.randn(3, 3, device="cuda", requires_grad=True)
    (w * 2).sum().backward()
    assert w.grad is not None
    assert (w.grad.device, w.grad.tolist()) == (torch.device("cuda:0"), [[2.0] * 3] * 3)
    (w * 3).sum().backward()
    assert w.grad[0, 0].item() == 5.0
    w.grad = None
    assert w.grad is None


def test_gradients_flow_between_host_and_device() -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3, device="cuda", requires_grad=True)
    ((x.cuda() * 2 + y).cpu() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert (x.grad.device.type, x.grad.tolist()) == ("cpu", [2.0, 4.0, 6.0])
    assert (y.grad.device.type, y.grad.tolist()) == ("cuda", [1.0, 2.0, 3.0])
    assert not x.cuda().is_leaf


def test_inference_mode_looks_into_tensors_from_outside_it() -> None:
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    with torch.inference_mode():
        views = [x[:, 0], x.T, x.detach(), *x.unbind(0), x.view(6), x.expand(4, 2, 3)]
        assert not any(view.is_inference() for view in views), (
            "a view of an ordinary tensor is an ordinary tensor"
        )
        assert (x[:, 0] + x[:, 1]).is_inference()
        x[0].zero_()
    assert x.tolist() == [[0.0, 0.0, 0.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (1, 3, 4)),
    ],
    ids=str,
)
def test_inference_mode_runs_the_same_kernels_for_a_product(
    gpu: VirtualGpu, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """torch has a matmul written in Python besides, which a GPU never runs."""
    x = torch.rand(first, device="cuda")
    y = torch.rand(second, device="cuda")
    start = gpu.ledger.mark()
    wanted = x @ y
    middle = gpu.ledger.mark()
    with torch.inference_mode():
        found = x @ y
    here = gpu.ledger.since(start, middle)
    there = gpu.ledger.since(middle)
    assert [each.name for each in there.operations()] == [each.name for each in here.operations()]
    assert torch.equal(found, wanted)
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match="both arguments to matmul need to be at least 1D"),
    ):
        x @ torch.tensor(1.0, device="cuda")


WRITTEN_IN_PYTHON_TOO: dict[str, Callable[[torch.Tensor], Any]] = {
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[:, :1]),
    "dropout": lambda x: F.dropout(x, 0.0),
    "istft": lambda x: torch.istft(
        torch.stft(x[0], 8, window=x[1, :8], return_complex=True), 8, window=x[1, :8]
    ),
    "one_hot": lambda x: F.one_hot(x.abs().long()),
    "pad_sequence": lambda x: torch.nn.utils.rnn.pad_sequence([x[0], x[1, :2]]),
    "rnn": lambda x: torch.rnn_tanh_cell(x, x, *(torch.ones(64, 64, device="cuda"),) * 2),
    "stft": lambda x: torch.stft(x, 8, window=x[0, :8], center=True, return_complex=True),
    "tensor_split": lambda x: torch.tensor_split(x, torch.tensor([1, 2])),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2),
    "upsample": lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "upsample, antialias": lambda x: F.interpolate(
        x[None, None], size=(5, 5), mode="bicubic", antialias=True
    ),
    "upsample, nearest": lambda x: F.interpolate(x[None], scale_factor=2, mode="nearest"),
}


@pytest.mark.parametrize("name", WRITTEN_IN_PYTHON_TOO)
def test_inference_mode_runs_the_same_kernels(gpu: VirtualGpu, name: str) -> None:
    function = WRITTEN_IN_PYTHON_TOO[name]
    x = torch.rand(64, 64, device="cuda")
    start = gpu.ledger.mark()
    wanted = function(x)
    middle = gpu.ledger.mark()
    with torch.inference_mode():
        found = function(x)
    here = gpu.ledger.since(start, middle)
    there = gpu.ledger.since(middle)
    assert [each.name for each in there.operations()] == [each.name for each in here.operations()]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_inference_mode_refuses_in_the_same_words() -> None:
    sections = torch.tensor([1, 2], device="cuda")
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match="to be on cpu, but it's on cuda:0"),
    ):
        torch.tensor_split(torch.ones(3, device="cuda"), sections)


def test_no_grad_enable_grad_and_inference_mode(gpu: VirtualGpu) -> None:
    model = nn.Linear(3, 2).cuda()
    x = torch.ones(1, 3, device="cuda")
    with torch.no_grad():
        assert not model(x).requires_grad
        with torch.enable_grad():
            assert model(x).requires_grad
    start = gpu.ledger.mark()
    with torch.inference_mode():
        out = model(x)
        assert out.is_inference()
        assert not out.requires_grad
        assert torch.randn(2, device="cuda").is_inference()
        assert torch.ones(2).cuda().is_inference()
    assert not gpu.ledger.since(start).operations_building_graph()
    assert not gpu.ledger.since(start).forwards_building_graph()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (out * torch.ones(2, device="cuda", requires_grad=True)).sum().backward()

    @torch.no_grad()
    def quiet() -> torch.Tensor:
        return model(x)

    assert not quiet().requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_checkpoints_compute_again_with_the_same_random_numbers(
    gpu: VirtualGpu, reentrant: bool, half: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2)).cuda()
    found = []
    for use in (False, True):
        x = torch.ones(3, 4, device="cuda", requires_grad=True)
        torch.manual_seed(5)
        model.zero_grad()
        with torch.autocast("cuda", enabled=half):
            out = checkpoint(model, x, use_reentrant=reentrant) if use else model(x)
        out.sum().backward()
        found.append((out.tolist(), x.grad.tolist(), model[0].weight.grad.tolist()))
    assert found[0] == found[1]
    assert [f.depth for f in gpu.ledger.forwards("Sequential", top_level_only=False)] == [0, 0, 1]


def test_checkpoints_save_memory() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)]).cuda()
    x = torch.randn(512, 256, device="cuda", requires_grad=True)

    def kept(run: Any) -> int:
        before = torch.cuda.memory_allocated()
        out = run()
        taken = torch.cuda.memory_allocated() - before
        out.sum().backward()
        return taken

    model(x).sum().backward()  # cuBLAS has its workspaces now
    assert kept(lambda: checkpoint(model, x, use_reentrant=False)) < kept(lambda: model(x)) / 3


def test_a_function_of_ones_own() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.factor = factor
            return factor * x**3

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            (x,) = ctx.saved_tensors
            assert x.is_cuda
            assert gradient.is_cuda
            return 3 * ctx.factor * x**2 * gradient, None

    x = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    Cube.apply(x, 2.0).sum().backward()
    assert x.grad.tolist() == [6.0, 24.0]
    double = torch.tensor([0.5], device="cuda", dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: Cube.apply(v, 2.0), (double,))


def test_higher_derivatives_and_torch_func() -> None:
    x = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6.0, 12.0]
    assert torch.func.grad(lambda v: (v**2).sum())(x.detach()).tolist() == [2.0, 4.0]
    assert torch.func.vmap(lambda v: v * 2)(x.detach()).tolist() == [2.0, 4.0]
    assert torch.func.jacrev(lambda v: v**2)(x.detach()).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert torch.autograd.functional.hessian(lambda v: (v**3).sum(), x.detach()).tolist() == [
        [6.0, 0.0],
        [0.0, 12.0],
    ]


def test_hooks_on_tensors_and_retained_gradients() -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    y = x * 3
    seen = []
    y.register_hook(lambda gradient: seen.append(gradient.device) or gradient * 2)
    y.retain_grad()
    y.sum().backward()
    assert seen == [torch.device("cuda:0")]
    assert (y.grad.tolist(), x.grad.tolist()) == ([2.0, 2.0], [6.0, 6.0])


def test_saved_tensors_can_be_kept_on_the_host(gpu: VirtualGpu) -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    assert gpu.ledger.transfers_to_host()
    y.backward()
    assert x.grad.tolist() == [2.0] * 4


def test_the_words_of_autograds_errors() -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()
    with pytest.raises(
        RuntimeError, match="grad can be implicitly created only for scalar outputs"
    ):
        (x * 2).backward()
    with pytest.raises(
        RuntimeError,
        match="a leaf Variable that requires grad is being used in an in-place operation",
    ):
        x.add_(1)
    y = x.exp()
    y.add_(1)
    with pytest.raises(
        RuntimeError, match="one of the variables needed for gradient computation has been modified"
    ):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="device type 'cuda' to a tensor with device type 'cpu'"):
        nn.Parameter(torch.ones(2)).grad = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)


def test_detect_anomaly_and_views_and_in_place() -> None:
    x = torch.zeros(3, device="cuda", requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection has been enabled"),
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.warns(UserWarning, match="Error detected in"),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        torch.sqrt(x * 0).mul(0).sum().backward()
    base = torch.zeros(2, 3, device="cuda", requires_grad=True)
    grown = base * 1
    grown[0].add_(torch.ones(3, device="cuda"))
    grown.t()[1].mul_(5)
    grown.sum().backward()
    assert base.grad.tolist() == [[1.0, 5.0, 1.0], [1.0, 5.0, 1.0]]
    assert grown._version > 0


MADE_INSIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch.tensor": lambda x: x * torch.tensor([1.0, 2.0], device=x.device),
    "to": lambda x: x * torch.arange(2.0).to(x.device),
    "to, another dtype": lambda x: x * torch.arange(2).to(x.device, torch.float64),
    "there and back": lambda x: (x.cpu() * 2).to(x.device),
    "an index": lambda x: x[torch.tensor([1, 0], device=x.device)],
    "embedding": lambda x: F.embedding(torch.tensor([0, 1], device=x.device), x[:, None]),
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_tensors_come_to_the_device_inside_transforms(gpu: VirtualGpu, name: str) -> None:
    function = MADE_INSIDE[name]
    host = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    def results(x: torch.Tensor) -> list[Any]:
        slope = torch.func.grad(lambda each: (function(each) ** 2).sum())
        over = torch.func.vmap
        return [
            over(function)(x),
            over(slope)(x),
            slope(x[0]),
            torch.func.jvp(function, (x[0],), (x[1],)),
        ]

    found = results(host.cuda())
    torch.testing.assert_close(found, results(host), check_device=False)
    assert found[0].is_cuda
