"""Functions of torch.cuda, pinning and errors that programs of others rely on; what is expected, an H200 did."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from virtual_cuda import virtual_cuda


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with virtual_cuda():
        yield


def test_facts_about_the_device() -> None:
    assert torch.cuda.get_allocator_backend() == "native"
    assert len(torch.cuda.get_device_properties(0).uuid.bytes) == 16
    least, greatest = torch.cuda.Stream.priority_range()
    assert greatest < least == 0


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": lambda x: torch.rand_like(x, pin_memory=True),
    "zeros_like": lambda x: torch.zeros_like(x, pin_memory=True),
    "new_zeros": lambda x: x.new_zeros(2, pin_memory=True),
    "empty": lambda x: torch.empty(2, pin_memory=True),
    "pin_memory": lambda x: x.pin_memory(),
    "read without waiting": lambda x: x.cuda().to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("name", MADE)
def test_memory_is_pinned(name: str) -> None:
    made = MADE[name](torch.ones(2))
    assert made.is_pinned()
    assert made.device.type == "cpu"


def test_memory_is_not_pinned_by_a_read_that_waits() -> None:
    assert not torch.ones(2, device="cuda").to("cpu").is_pinned()


def test_a_pinned_copy_belongs_to_the_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    (x.pin_memory() * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_an_index_into_nothing_is_refused_by_the_host() -> None:
    with pytest.raises(IndexError, match="index is out of bounds for dimension with size 0"):
        torch.empty(3, 0, device="cuda")[:, [0]]
    assert torch.ones(1, device="cuda").item() == 1  # the device goes on
