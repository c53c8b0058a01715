"""torch's own methods, called through the class, answer for a device tensor as on a GPU."""

from __future__ import annotations

import pytest
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS


def test_methods_of_the_class_take_device_tensors() -> None:
    with virtual_cuda() as gpu:
        values = torch.arange(3.0, device="cuda")
        assert list(map(torch.Tensor.tolist, [values, torch.ones(1)])) == [[0.0, 1.0, 2.0], [1.0]]
        assert [sync.what for sync in gpu.ledger.syncs()] == ["tolist"]
        assert torch.Tensor.numpy(values, force=True).tolist() == [0.0, 1.0, 2.0]
        assert torch.Tensor.type(values) == "torch.cuda.FloatTensor"
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            torch.Tensor.numpy(values)
    assert torch.Tensor.numpy(torch.ones(1)).tolist() == [1.0]
    assert "tolist" not in vars(torch.Tensor)


def test_inside_a_function_transform_a_tensor_is_where_it_was() -> None:
    seen = []

    def look(value: torch.Tensor) -> torch.Tensor:
        seen.append((str(value.device), value.is_cuda))
        return (value * torch.ones((), device=value.device)).sum()

    with virtual_cuda():
        values = torch.ones(2, 3, device="cuda")
        assert torch.func.grad(look)(values).device == values.device
        torch.vmap(look)(values)
        torch.vmap(torch.func.grad_and_value(look))(values)
        torch.func.grad(look)(torch.ones(2))
    assert seen == [("cuda:0", True)] * 3 + [("cpu", False)]
    assert "device" not in vars(torch.Tensor)


def test_a_subclass_is_not_told_what_the_device_keeps_in_a_tensor() -> None:
    asked: set[str] = set()

    class Curious(torch.Tensor):
        def __getattribute__(self, name: str) -> object:
            asked.add(name)
            return super().__getattribute__(name)

        def __setattr__(self, name: str, value: object) -> None:
            asked.add(name)
            super().__setattr__(name, value)

    with virtual_cuda():
        x = torch.ones(2, device="cuda").as_subclass(Curious)
        x.tag = "mine"
        assert (x.tag, (x + 1).tolist(), x.detach().clone().device.type) == (
            "mine",
            [2.0, 2.0],
            "cuda",
        )
        assert "tag" in asked
        assert asked.isdisjoint(HIDDEN_IN_TENSORS)
        with pytest.raises(TypeError, match="__slotnames__"):
            object.__getstate__(x)  # type: ignore[attr-defined,unused-ignore]


def test_the_class_of_a_device_tensor_makes_what_it_stands_for() -> None:
    with virtual_cuda():
        x = torch.ones(2, device="cuda")
        assert type(x)([1.0, 2.0]).tolist() == [1.0, 2.0]
        assert torch.ones(1).as_subclass(type(x)).device.type == "cpu"
        weight = torch.nn.Parameter(x)
        assert type(type(weight)(torch.ones(1))) is torch.nn.Parameter
