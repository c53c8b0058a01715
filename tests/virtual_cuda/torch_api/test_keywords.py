"""Functions that the device takes over accept their first argument by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from virtual_cuda import VirtualGpu

# Of two elements `t`, a scalar `s` and the place of both.
CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor, str], Any]] = {
    "tensor": lambda t, s, place: torch.tensor(data=t),
    "tensor of a list on the host": lambda t, s, place: torch.tensor(data=[s, s]),
    "tensor of a list, placed": lambda t, s, place: torch.tensor(data=[s, s], device=place),
    "tensor for the host": lambda t, s, place: torch.tensor(data=t, device="cpu"),
    "as_tensor for the host": lambda t, s, place: torch.as_tensor(data=t, device="cpu"),
    "as_tensor of a list": lambda t, s, place: torch.as_tensor(data=[s, 2], device=place),
    "asarray for the host": lambda t, s, place: torch.asarray(obj=t, device="cpu"),
    "asarray of a list": lambda t, s, place: torch.asarray(obj=[1, 2], device=place),
    "full": lambda t, s, place: torch.full(size=(2,), fill_value=s, device=place),
    "arange": lambda t, s, place: torch.arange(start=s, end=5, device=place),
    "linspace": lambda t, s, place: torch.linspace(start=s, end=s + 1, steps=3, device=place),
    "zeros": lambda t, s, place: torch.zeros(size=(2,), device=place),
    "full_like": lambda t, s, place: torch.full_like(input=t, fill_value=s),
    "normal": lambda t, s, place: torch.normal(mean=t, std=t * 0),
    "sparse": lambda t, s, place: torch.sparse_coo_tensor(
        indices=torch.zeros(1, 2, dtype=torch.long, device=place), values=t, size=(2,)
    ).to_dense(),
    "compressed": lambda t, s, place: torch.sparse_csr_tensor(
        crow_indices=[0, 1, 2], col_indices=[0, 1], values=t, size=(2, 2)
    ).to_dense(),
    "new_tensor": lambda t, s, place: t.new_tensor(data=t),
    "new_full": lambda t, s, place: t.new_full(size=(2,), fill_value=s),
    "to a device": lambda t, s, place: torch.ones(2).to(device=place),
    "to another's": lambda t, s, place: torch.ones(2).to(tensor=t),
    "copy_ to the host": lambda t, s, place: torch.zeros(2).copy_(other=t),
    "type": lambda t, s, place: t.type(dtype=torch.float64),
    "set_": lambda t, s, place: torch.empty(0, device=place).set_(source=t),
    "module": lambda t, s, place: nn.Linear(2, 2).to(device=place).weight * 0,
    "module to another's": lambda t, s, place: nn.Linear(2, 2).to(tensor=t).weight * 0,
    "nested": lambda t, s, place: torch.nested.nested_tensor(
        tensor_list=[t, t], layout=torch.jagged
    ).values(),
}


# Of copies by `torch.tensor`, and of sparse tensors in general.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_by_names_gives_what_it_gives_on_the_host(gpu: VirtualGpu, name: str) -> None:
    call = CALLS[name]
    expected = call(torch.ones(2), torch.ones(()), "cpu")
    device = torch.device("cuda", 0)
    found = call(torch.ones(2, device=device), torch.ones((), device=device), "cuda")
    assert found.is_cuda == ("host" not in name)
    torch.testing.assert_close(found.cpu(), expected)
