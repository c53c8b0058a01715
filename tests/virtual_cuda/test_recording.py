"""Forward and backward passes, optimizer and scaler calls: the same rows on every bench."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from virtual_cuda import open_device
from virtual_cuda.recorder import devices_of


@pytest.fixture(params=["virtual", "cpu"])
def bench(request: pytest.FixtureRequest) -> Iterator[Any]:
    with open_device(request.param) as opened:
        yield opened


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("broken")


class BrokenSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise KeyError("broken")


def test_one_training_step_in_order(bench: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(bench.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(2, 4, device=bench.device)).sum().backward()
    optimizer.step()
    ledger = bench.ledger
    assert ledger.training_order() == ("forward", "backward", "step")
    assert [(f.module, f.depth) for f in ledger.forwards(top_level_only=False)] == [
        ("Sequential", 0),
        ("Linear", 1),
        ("ReLU", 1),
    ]
    assert ledger.optimizer_steps()[0].optimizer == "SGD"
    assert all(r.site.file == __file__ for r in ledger)
    assert [len(ledger.within(pass_)) > 3 for pass_ in ledger.backward_passes()] == [True]


def test_a_forward_names_the_devices_of_parameters_and_inputs(bench: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    model(torch.rand(2, 4))
    model.to(bench.device)
    model(torch.rand(2, 4, device=bench.device))
    first, second = bench.ledger.forwards()
    assert (first.devices, second.devices) == (("cpu",), (str(bench.device),))
    if bench.kind == "virtual":
        with pytest.raises(RuntimeError, match="same device"):
            model(torch.rand(2, 4))
        assert set(bench.ledger.forwards_across_devices()[0].devices) == {"cpu", "cuda:0"}


def test_devices_are_found_in_nested_inputs_and_in_layers() -> None:
    outer = nn.Sequential(nn.Linear(2, 2, device="meta"))
    assert devices_of(outer, (), {}) == (torch.device("meta"),)
    assert devices_of(nn.ReLU(), ({"x": [torch.zeros(1)]},), {}) == (torch.device("cpu"),)
    assert set(devices_of(outer, (), {"x": torch.zeros(1)})) == {torch.device("cpu"), torch.device("meta")}


def test_a_pass_that_raises_is_closed(bench: Any) -> None:
    with pytest.raises(KeyError):
        Broken()(torch.zeros(1))
    with pytest.raises(RuntimeError):
        torch.zeros((), device=bench.device).backward()
    spans = [*bench.ledger.forwards(), *bench.ledger.backward_passes()]
    assert [span.end is not None for span in spans] == [True, True]


def test_a_step_that_raises_is_closed_and_the_next_one_is_not_inside_it(bench: Any) -> None:
    parameter = nn.Parameter(torch.zeros(2, device=bench.device))
    with pytest.raises(KeyError):
        BrokenSGD([parameter]).step()
    parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([parameter]).step()
    first, second = bench.ledger.optimizer_steps()
    assert first.end == first.index + 1
    assert len(bench.ledger.within(second)) > 0


def test_nothing_is_left_on_an_optimizer(bench: Any) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter])
    before = set(vars(optimizer))
    optimizer.step()
    assert set(vars(optimizer)) == before


def test_scaler_calls_are_written(bench: Any) -> None:
    parameter = nn.Parameter(torch.ones(2, device=bench.device))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler(bench.device.type)
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    expected = ("scaler.scale", "backward", "scaler.unscale_", "scaler.step", "step", "scaler.update")
    assert bench.ledger.training_order() == expected


def test_a_recomputed_forward_belongs_to_the_backward_that_asked_for_it(bench: Any) -> None:
    layer = nn.Linear(3, 3).to(bench.device)
    checkpoint(layer, torch.rand(2, 3, device=bench.device), use_reentrant=False).sum().backward()
    first, second = bench.ledger.forwards(top_level_only=False)
    assert (first.depth, second.depth) == (0, 1)
    assert second.site == bench.ledger.backward_passes()[0].site


def test_doors_are_put_back() -> None:
    before = (nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.step)
    region = torch.autograd.profiler.record_function.__exit__
    for kind in ("virtual", "cpu"):
        with pytest.raises(ZeroDivisionError), open_device(kind):  # type: ignore[arg-type]
            1 / (nn.Module.__call__ is before[0])  # False, and so an error, if it is replaced meanwhile
    assert before == (nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.step)
    assert torch.autograd.profiler.record_function.__exit__ is region
