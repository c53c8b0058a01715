"""Memory of the device that changes without an operator is noticed; what a GPU allows is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from virtual_cuda import virtual_cuda
from virtual_cuda.hooks import watch_writes


def _inner(tensor: Any) -> torch.Tensor:
    return vars(tensor)["_virtual_inner"]


def _change_result(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    _inner(y).fill_(1)
    return y


def _change_by_numpy(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    _inner(y).detach().numpy()[...] = 1
    return y


def _change_input(x: torch.Tensor) -> torch.Tensor:
    _inner(x).fill_(1)
    return x + 1


def _change_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    _inner(y[0]).fill_(1)
    return y


def _change_before_a_graph(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = x + 1
    _inner(y).fill_(1)
    graph.replay()
    return y + z


def _work_in_place(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, 0] = 3
    y[x > 0.5] = 1
    torch.add(y, x, out=y)
    torch._foreach_mul_([y], 2.0)
    y.t()[0].copy_(x[0])
    y.data = y.data + 1
    y.resize_(8, 4)[4:].fill_(1)
    return y.set_(y.clone())


def _train(x: torch.Tensor) -> torch.Tensor:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.LayerNorm(4)).cuda()
    for make in (torch.optim.SGD, torch.optim.Adam):
        optimizer = make(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    return model(x)


def _replay(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.add_(x)
    for _ in range(2):
        graph.replay()
    return total


def _copy_storage(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y.untyped_storage().copy_(x.untyped_storage())
    return y


def _free_and_allocate(x: torch.Tensor) -> torch.Tensor:
    total = x * 0
    for number in range(50):
        y = x.clone().fill_(number)
        total = total + y
        del y
        torch.cuda.empty_cache()
    return total


def _is_noticed(work: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    with virtual_cuda():
        torch.manual_seed(0)
        x = torch.rand(4, 4).cuda()
        with watch_writes() as watch:
            watch.remember(x)
            work(x).cpu()
        return watch.has_found


@pytest.mark.parametrize(
    "work",
    [_change_result, _change_by_numpy, _change_input, _change_view, _change_before_a_graph],
)
def test_a_write_by_no_operator_is_noticed(work: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert _is_noticed(work)


@pytest.mark.parametrize(
    "work", [_work_in_place, _train, _replay, _copy_storage, _free_and_allocate]
)
def test_what_a_gpu_allows_is_no_such_write(work: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert not _is_noticed(work)


def test_what_an_operator_has_made_is_known() -> None:
    with virtual_cuda():
        earlier = torch.ones(3, device="cuda")
        with watch_writes() as watch:
            random = torch.rand(3, device="cuda")
            empty = torch.empty(3, device="cuda")
            assert watch.was_made_here(random)
            assert watch.was_made_here(random[1:])
            assert watch.was_made_here(torch.ones(3))
            assert not watch.was_made_here(empty)
            assert not watch.was_made_here(earlier)
            assert watch.was_made_here(empty.normal_())


def test_no_more_operators_are_watched_than_asked_for() -> None:
    for most, is_found in ((0, False), (1, False), (2, True), (None, True)):
        with virtual_cuda():
            x = torch.ones(3).cuda()
            with watch_writes(most) as watch:
                y = x * 2
                _inner(y).fill_(1)
                y + 1
            assert watch.has_found == is_found


def test_it_changes_no_record() -> None:
    def operations() -> list[str]:
        (torch.ones(3).cuda() * 2).sum().item()
        return [operation.name for operation in gpu.ledger.operations()]

    with virtual_cuda() as gpu:
        plain = operations()
    with virtual_cuda() as gpu, watch_writes():
        assert operations() == plain
