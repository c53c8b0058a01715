"""Patches of `torch.nn`: moving modules, DataParallel, gradients."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.cuda.comm
import torch.nn.parallel.comm as comm
import torch.optim.swa_utils
import torch.utils._foreach_utils as foreach
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin, is_lazy  # type: ignore[attr-defined]

from virtual_cuda.device.messages import without_lazy
from virtual_cuda.device.state import place_named
from virtual_cuda.device.tensor import VIRTUAL, Parameter, Tensor
from virtual_cuda.patching import Opening, Patch, around, torch_patches

# torch.optim hides its submodules behind functions of the same names.
optimizer: Final = sys.modules["torch.optim.optimizer"]
swa_utils: Final = sys.modules["torch.optim.swa_utils"]
_grad: Final[Any] = torch._C.TensorBase.grad


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _elsewhere(gradient: Any, device: torch.device) -> bool:
    """A gradient of one element follows its tensor; any other must be there already."""
    # Inside torch.func the wrapped gradient still shows the name C++ has for the device.
    other = isinstance(gradient, torch.Tensor) and gradient.dim() > 0 and gradient.device != device
    return other and "lazy" not in (gradient.device.type, device.type)


def _checked(name: str, position: int, original: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.backward` or `grad`, whose gradients come by keyword or at a position."""
    given = args[position] if len(args) > position else kwargs.get(name)
    if given is not None:
        tensors = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
        for index, (tensor, gradient) in enumerate(zip(_listed(tensors), _listed(given), strict=False)):
            virtual = type(tensor) in VIRTUAL or type(gradient) in VIRTUAL
            if virtual and isinstance(tensor, torch.Tensor) and _elsewhere(gradient, tensor.device):
                raise RuntimeError(
                    f"invalid gradient at index {index} - expected device {tensor.device} but got {gradient.device}"
                )
    return original(*args, **kwargs)


def _custom(original: Any, self: Any, *args: Any) -> Any:
    """A student's own `autograd.Function.backward`: what it returns must be where the inputs are."""
    given = original(self, *args)
    for index, (gradient, (node, slot)) in enumerate(zip(_listed(given), self.next_functions, strict=False)):
        if node is None:
            continue
        variable = getattr(node, "variable", None)
        device = (node._input_metadata[slot] if variable is None else variable).device
        device = torch.device("cuda", device.index) if device.type == "lazy" else device
        if _elsewhere(gradient, device) and "cuda" in (device.type, gradient.device.type):
            raise RuntimeError(
                f"Function {type(self).__name__} returned an invalid gradient at index {index} - "
                f"expected device {device} but got {gradient.device}"
            )
    return given


def set_grad(self: Any, gradient: Any) -> None:
    """A tensor is given a gradient; where that is elsewhere, C++ refuses it by the name it has for the device."""
    try:
        _grad.__set__(self, gradient)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


def _new_parameter(original: Any, cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """`nn.Parameter(data)` where data is on the device."""
    if type(data) not in VIRTUAL:
        return original(cls, data, requires_grad)
    fresh = data.detach().requires_grad_(requires_grad)
    fresh.__class__ = Parameter
    return fresh


def exchange(tensor: Any, fresh: Any, requires_grad: bool) -> Any:
    """Give `tensor` the content of `fresh` on another device; the object stays the same."""
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(fresh, requires_grad=requires_grad)
    else:
        other = fresh.requires_grad_(requires_grad)
    extra = {k: v for k, v in tensor.__dict__.items() if k not in ("_inner", "_block", "_parts")}
    try:
        torch.utils.swap_tensors(tensor, other)
        kept = tensor
    except RuntimeError:
        # A graph or a weak reference holds the C++ tensor. Put the new one wherever Python holds the old one.
        for holder in gc.get_referrers(tensor):
            if isinstance(holder, (dict, list)):
                for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
                    if value is tensor:
                        holder[key] = other
                if isinstance(holder, dict) and any(key is tensor for key in holder):
                    holder[other] = holder.pop(tensor)
        kept = other
    kept.__dict__.update(extra)
    return kept


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
        if isinstance(moved, Tensor) is isinstance(parameter, Tensor):
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


def _materialize(original: Any, self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """A `LazyLinear` moved before its first batch makes its parameters where it was moved to."""
    device = device or self.__dict__.pop("_goes_to", None)
    if device is None or device.type != "cuda":
        original(self, shape, device, dtype)
        return
    fresh = torch.empty(shape, device=device, dtype=dtype or self.data.dtype)
    self.__class__ = self.cls_to_become
    exchange(self, fresh, self.requires_grad)


def _on(device: Any) -> Any:
    place = place_named(device)
    return torch.device("cpu") if place is None else place.cuda


def scatter(
    tensor: Any, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, streams: Any = None, *, out: Any = None
) -> Any:
    pieces = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return tuple(piece.to(_on(device), non_blocking=True) for piece, device in zip(pieces, devices, strict=False))


def broadcast(tensor: Any, devices: Any = None, *, out: Any = None) -> Any:
    return [tensor.to(_on(device)) for device in devices]


def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
    return [[tensor.detach().to(_on(device)) for tensor in tensors] for device in devices]


def reduce_add(inputs: Any, destination: Any = None) -> Any:
    target = inputs[0].device if destination is None else _on(destination)
    return functools.reduce(torch.add, [tensor.to(target) for tensor in inputs])


def reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> Any:
    return tuple(reduce_add(same, destination) for same in zip(*inputs, strict=True))


def gather(tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None) -> Any:
    target = _on(0 if destination is None else destination)
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    yield around(torch.autograd, "backward", functools.partial(_checked, "grad_tensors", 1))
    yield around(torch.autograd, "grad", functools.partial(_checked, "grad_outputs", 2))
    yield around(torch.autograd.function.BackwardCFunction, "apply", _custom)
    yield torch.Tensor, "grad", property(_grad.__get__, set_grad, _grad.__delete__)
    yield nn.Module, "_apply", apply
    yield nn.Parameter, "__new__", staticmethod(functools.partial(_new_parameter, nn.Parameter.__new__))
    yield around(UninitializedTensorMixin, "materialize", _materialize)
    for function in (scatter, broadcast, broadcast_coalesced, reduce_add, reduce_add_coalesced, gather):
        yield comm, function.__name__, function
        yield torch.cuda.comm, function.__name__, function
    # Gradient clipping and optimizers ask which classes and devices have kernels for lists of tensors.
    supported = [*foreach._get_foreach_kernels_supported_devices(), "lazy"]
    for home in (foreach, swa_utils):
        yield home, "_get_foreach_kernels_supported_devices", lambda: supported
    for owner in (optimizer, foreach):
        yield owner, "_foreach_supported_types", [*vars(owner)["_foreach_supported_types"], *VIRTUAL]
