"""Optimizers in all their implementations and dtypes step on the virtual device as on the CPU."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from virtual_cuda import virtual_cuda

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MODES: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "one by one": {"foreach": False},
    "capturable": {"capturable": True},
    "fused, a number on the host": {"fused": True, "lr": torch.tensor(1e-2)},
    "fused, a list of one on the host": {"fused": True, "lr": torch.tensor([1e-2])},
}


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with virtual_cuda():
        yield


def stepped(make: Any, device: str, dtype: torch.dtype, **options: Any) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    parameters = [
        torch.randn(shape, generator=draw).to(device, dtype).requires_grad_()
        for shape in ((3,), (4, 8), ())
    ]
    optimizer = make(parameters, **{"lr": 1e-2, **options})
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draw).to(device, dtype)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in parameters]


NAMES = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop")
CASES = [
    (name, mode)
    for name, mode in itertools.product(NAMES, MODES)
    if MODES[mode].keys() <= inspect.signature(getattr(torch.optim, name)).parameters.keys()
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_steps(name: str, mode: str) -> None:
    if name == "Adagrad" and "fused" in mode and torch.__version__ < "2.13":
        pytest.skip("this torch has no fused Adagrad for CUDA")
    make = getattr(torch.optim, name)
    for dtype in DTYPES:
        tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(dtype, 1e-5)
        wanted = stepped(make, "cpu", dtype, foreach=False)
        torch.testing.assert_close(
            stepped(make, "cuda", dtype, **MODES[mode]), wanted, rtol=tolerance, atol=tolerance
        )


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="this torch has states of the parameters' dtype only"
)
def test_fused_adam_with_states_in_bfloat16() -> None:
    def step(dtype: torch.dtype) -> torch.Tensor:
        parameter = torch.ones(20, device="cuda", requires_grad=True)
        optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)
        optimizer.state[parameter] = {
            "step": torch.zeros((), device="cuda"),
            "exp_avg": torch.zeros(20, dtype=dtype, device="cuda"),
            "exp_avg_sq": torch.zeros(20, dtype=dtype, device="cuda"),
        }
        for _ in range(2):
            parameter.grad = torch.arange(20.0, device="cuda")
            optimizer.step()
        assert optimizer.state[parameter]["exp_avg"].dtype is dtype
        return parameter.detach().cpu()

    torch.testing.assert_close(step(torch.bfloat16), step(torch.float32), rtol=1e-2, atol=1e-2)


def test_a_learning_rate_on_the_host_makes_nobody_wait() -> None:
    parameter = torch.ones(3, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=torch.tensor([1e-2]), fused=True)
    parameter.grad = torch.ones(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    optimizer.step()
    torch.cuda.set_sync_debug_mode("default")
