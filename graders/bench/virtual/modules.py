"""How does `Module.to` move parameters that an optimizer may hold already? They stay the same objects."""

from __future__ import annotations

import gc
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin, is_lazy  # type: ignore[attr-defined]

from graders.bench.virtual.tensor import VIRTUAL, Parameter

_Base: Final[Any] = torch._C.TensorBase


def make_parameter(data: Any, requires_grad: bool) -> Any:
    fresh = data.detach().requires_grad_(requires_grad)
    fresh.__class__ = Parameter
    return fresh


def new_parameter(original: Any) -> Any:
    """`nn.Parameter(data)` where data is on the device."""

    def make(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in VIRTUAL:
            return make_parameter(data, requires_grad)
        return original(cls, data, requires_grad)

    return make


def exchange(tensor: Any, fresh: Any, requires_grad: bool) -> Any:
    """Give `tensor` the content of `fresh` on another device; the object stays the same."""
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(fresh, requires_grad=requires_grad)
    else:
        other = fresh.requires_grad_(requires_grad)
    extra = {k: v for k, v in tensor.__dict__.items() if k not in ("_inner", "_block")}
    try:
        torch.utils.swap_tensors(tensor, other)
        kept = tensor
    except RuntimeError:
        # A graph or a weak reference holds the C++ tensor. Put the new one wherever Python holds the old one.
        _replace_everywhere(tensor, other)
        kept = other
    kept.__dict__.update(extra)
    return kept


def _replace_everywhere(old: Any, new: Any) -> None:
    for holder in gc.get_referrers(old):
        if isinstance(holder, list):
            for i, item in enumerate(holder):
                if item is old:
                    holder[i] = new
        elif isinstance(holder, dict):
            for key, value in list(holder.items()):
                if value is old:
                    holder[key] = new
            if any(key is old for key in holder):
                holder[new] = holder.pop(old)


def apply(self: Any, function: Any, recurse: bool = True) -> Any:
    """`Module._apply` for host and device parameters alike."""
    if recurse:
        for child in self.children():
            child._apply(function)
    for key, parameter in self._parameters.items():
        if parameter is None:
            continue
        if is_lazy(parameter):
            parameter.__dict__["_goes_to"] = function(torch.empty(0)).device
            continue
        gradient = parameter.grad
        with torch.no_grad():
            moved = function(parameter)
        if moved is parameter:
            continue
        moved_gradient = None
        if gradient is not None:
            with torch.no_grad():
                moved_gradient = function(gradient).requires_grad_(gradient.requires_grad)
        if (type(moved) in VIRTUAL) is (type(parameter) in VIRTUAL):
            parameter.data = moved
            if moved_gradient is not None:
                parameter.grad.data = moved_gradient
            continue
        parameter.grad = None
        kept = exchange(parameter, moved, parameter.requires_grad)
        self._parameters[key] = kept
        if gradient is not None and moved_gradient is not None:
            kept.grad = exchange(gradient, moved_gradient, gradient.requires_grad)
    for key, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[key] = function(buffer)
    return self


def materialize(original: Any) -> Any:
    """A `LazyLinear` moved before its first batch makes its parameters where it was moved to."""

    def made(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        device = device or self.__dict__.pop("_goes_to", None)
        if device is None or device.type != "cuda":
            original(self, shape, device, dtype)
            return
        fresh = torch.empty(shape, device=device, dtype=dtype or self.data.dtype)
        self.__class__ = self.cls_to_become
        exchange(self, fresh, self.requires_grad)

    return made


def patches() -> list[tuple[Any, str, Any]]:
    return [
        (nn.Module, "_apply", apply),
        (nn.Parameter, "__new__", staticmethod(new_parameter(nn.Parameter.__new__))),
        (UninitializedTensorMixin, "materialize", materialize(UninitializedTensorMixin.materialize)),
    ]
