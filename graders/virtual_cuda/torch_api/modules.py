"""Patches of `torch.nn`: moving modules, DataParallel, gradients."""

from __future__ import annotations

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
from virtual_cuda.device.tensor import VIRTUAL, Parameter
from virtual_cuda.patching import Opening, Patch, torch_patches

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


def _checked(original: Any, name: str, position: int) -> Any:
    """`torch.autograd.backward` or `grad`, whose gradients come by keyword or at a position."""

    def call(*args: Any, **kwargs: Any) -> Any:
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

    return call


def _device_of_edge(edge: Any) -> torch.device | None:
    node, index = edge
    if node is None:
        return None
    variable = getattr(node, "variable", None)
    if variable is not None:
        return torch.device(variable.device)
    device = node._input_metadata[index].device
    return torch.device("cuda", device.index) if device.type == "lazy" else device


def _custom(original: Any) -> Any:
    """A student's own `autograd.Function.backward`: what it returns must be where the inputs are."""

    def apply(self: Any, *args: Any) -> Any:
        given = original(self, *args)
        for index, (gradient, edge) in enumerate(zip(_listed(given), self.next_functions, strict=False)):
            device = _device_of_edge(edge)
            if device is not None and _elsewhere(gradient, device) and "cuda" in (device.type, gradient.device.type):
                raise RuntimeError(
                    f"Function {type(self).__name__} returned an invalid gradient at index {index} - "
                    f"expected device {device} but got {gradient.device}"
                )
        return given

    return apply


def _set_grad(self: Any, gradient: Any) -> None:
    """A host tensor is given a gradient; if that is on the device, C++ refuses it by the name it has for the device."""
    try:
        _grad.__set__(self, gradient)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


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
    total = inputs[0].to(target)
    for tensor in inputs[1:]:
        total = total + tensor.to(target)
    return total


def reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> Any:
    return tuple(reduce_add(same, destination) for same in zip(*inputs, strict=True))


def gather(tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None) -> Any:
    target = _on(0 if destination is None else destination)
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    custom = torch.autograd.function.BackwardCFunction
    yield torch.autograd, "backward", _checked(torch.autograd.backward, "grad_tensors", 1)
    yield torch.autograd, "grad", _checked(torch.autograd.grad, "grad_outputs", 2)
    yield custom, "apply", _custom(custom.apply)
    yield torch.Tensor, "grad", property(_grad.__get__, _set_grad, _grad.__delete__)
    yield nn.Module, "_apply", apply
    yield nn.Parameter, "__new__", staticmethod(new_parameter(nn.Parameter.__new__))
    yield UninitializedTensorMixin, "materialize", materialize(UninitializedTensorMixin.materialize)
    for function in (scatter, broadcast, broadcast_coalesced, reduce_add, reduce_add_coalesced, gather):
        yield comm, function.__name__, function
        yield torch.cuda.comm, function.__name__, function
    # Gradient clipping and optimizers ask which classes and devices have kernels for lists of tensors.
    supported = [*foreach._get_foreach_kernels_supported_devices(), "lazy"]
    for home in (foreach, swa_utils):
        yield home, "_get_foreach_kernels_supported_devices", lambda: supported
    for owner in (optimizer, foreach):
        yield owner, "_foreach_supported_types", [*vars(owner)["_foreach_supported_types"], *VIRTUAL]
