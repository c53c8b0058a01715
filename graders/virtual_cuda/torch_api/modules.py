"""Patches of `torch.nn`: moving modules, DataParallel, gradients."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.cuda.nccl
import torch.optim.swa_utils
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin, is_lazy  # type: ignore[attr-defined]

from virtual_cuda.device.cuda_errors import without_lazy
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.state import now, open_device_named
from virtual_cuda.device.tensor import VIRTUAL, Tensor
from virtual_cuda.internals import find_internal
from virtual_cuda.lacking import Lacking
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.tensor_types import detach_as, device_class, host_class

# torch.optim hides its submodules behind functions of the same names.
optimizer: Final = sys.modules["torch.optim.optimizer"]
swa_utils: Final = sys.modules["torch.optim.swa_utils"]
_grad: Final[Any] = torch.Tensor.grad
foreach: Final = find_internal("torch.utils._foreach_utils")  # where it lacks, nothing is patched
_wraps_tensors: Final = find_internal(
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass", otherwise=lambda tensor: False
)


def set_grad(self: Any, gradient: Any) -> None:
    """Give a tensor a gradient.

    Raises RuntimeError where the two do not fit, with the name that students know for the device.
    """
    try:
        _grad.__set__(self, gradient)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


def _new_parameter(original: Any, cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """`nn.Parameter(data)`, where data may be on the device."""
    if type(data) not in VIRTUAL:
        return original(host_class(cls), data, requires_grad)
    return detach_as(device_class(cls), data, requires_grad)


def exchange(tensor: Any, fresh: Any, requires_grad: bool) -> Any:
    """Give `tensor` the content of `fresh`, which is on another device.

    Returns `tensor`, or a new one where C++ holds the old one: the new one is then put into every
    list and dict that had the old one. Attributes that Python has set are kept.
    """
    if isinstance(tensor, nn.Parameter):
        other = nn.Parameter(fresh, requires_grad=requires_grad)
        if host_class(type(tensor)) not in (torch.Tensor, nn.Parameter):  # a student's class
            other.__class__ = (device_class if type(other) in VIRTUAL else host_class)(type(tensor))
    else:
        other = fresh.requires_grad_(requires_grad)
    extra = {k: v for k, v in tensor.__dict__.items() if k not in HIDDEN_IN_TENSORS}
    both = [(each, type(each), each.__dict__) for each in (tensor, other)]
    try:
        torch.utils.swap_tensors(tensor, other)
        kept = tensor
    except RuntimeError:
        # torch has exchanged these before it found that a profiler holds the C++ tensor.
        for (
            each,
            kind,
            names,
        ) in both:
            each.__class__ = kind
            each.__dict__ = names
        # A graph or a weak reference holds the C++ tensor. Put the new one wherever Python holds
        # the old one.
        for holder in gc.get_referrers(tensor):
            if isinstance(holder, (dict, list)):
                for key, value in list(
                    holder.items() if isinstance(holder, dict) else enumerate(holder)
                ):
                    if value is tensor:
                        holder[key] = other
                if isinstance(holder, dict) and any(key is tensor for key in holder):
                    holder[other] = holder.pop(tensor)
        kept = other
    kept.__dict__.update(extra)
    return kept


def _stays(parameter: Any, moved: Any) -> bool:
    """True if a parameter that moves stays the same object, with new content.

    If not, the module gets a new parameter, as one that leaves "meta" does.
    """
    if torch.__future__.get_swap_module_params_on_conversion():
        return True
    alike = (parameter.device.type == "meta") is (moved.device.type == "meta")
    return alike and not torch.__future__.get_overwrite_module_params_on_conversion()


def _consists_of_others(parameter: Any, moved: Any) -> bool:
    """True if a parameter is fake or of a class that wraps tensors.

    torch exchanges these as a whole.
    """
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return _wraps_tensors(moved) or (fake is not None and isinstance(parameter, fake.FakeTensor))


_apply: Final = find_internal("torch.nn.Module._apply", "moving a module")


def apply(self: Any, function: Any, recurse: bool = True) -> Any:
    """`Module._apply` for host and device parameters alike."""
    if now.gpu is None:  # see `Opening.lasting`
        return _apply(self, function, recurse)
    if recurse:
        for child in self.children():
            child._apply(function)
    for key, parameter in self._parameters.items():
        if parameter is None:
            continue
        if is_lazy(parameter):
            _moves_later(parameter, function)
            continue
        # A parameter, and its gradient: moved without history.
        gradient = parameter.grad
        with torch.no_grad():
            moved = function(parameter)
        stays = _stays(parameter, moved)
        if moved is parameter and stays:
            continue
        moved_gradient = None
        if gradient is not None:
            with torch.no_grad():
                moved_gradient = function(gradient).requires_grad_(gradient.requires_grad)
        # How the parameter gets its new content: as a new object, swapped, in place, exchanged.
        if not stays:
            self._parameters[key] = nn.Parameter(moved, parameter.requires_grad)
            self._parameters[key].grad = moved_gradient
            continue
        if _consists_of_others(parameter, moved):
            _swap(f"{self._get_name()}.{key}", parameter, moved, moved_gradient)
            continue
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
    # Buffers are simply replaced.
    for key, buffer in self._buffers.items():
        if is_lazy(buffer):
            _moves_later(buffer, function)
        elif buffer is not None:
            self._buffers[key] = function(buffer)
    return self


def _swap(name: str, parameter: Any, moved: Any, gradient: Any) -> None:
    """Give a parameter the content `moved` and the gradient `gradient`.

    The old gradient is taken away first, because it would prevent that. Raises RuntimeError, with
    the parameter's name, where torch cannot exchange them.
    """
    before = parameter.grad
    parameter.grad = None
    try:
        torch.utils.swap_tensors(parameter, nn.Parameter(moved, parameter.requires_grad))
    except Exception as error:
        parameter.grad = before
        raise RuntimeError(f"_apply(): Couldn't swap {name}") from error
    parameter.grad = gradient


def _moves_later(tensor: Any, function: Any) -> None:
    """Note where a parameter or buffer without a shape will be; its dtype changes at once."""
    device = tensor.__dict__.get("_goes_to", tensor.data.device)
    data = tensor.data
    moved = function(torch.empty(0, dtype=data.dtype, device=device))
    if moved.dtype is not data.dtype:
        tensor.data = data.to(moved.dtype)
    tensor.__dict__["_goes_to"] = moved.device


def _materialize(
    original: Any, self: Any, shape: Any, device: Any = None, dtype: Any = None
) -> None:
    """Give a parameter without a shape its memory, where its module was moved to.

    A `LazyLinear` has such parameters before its first batch.
    """
    device = device or self.__dict__.pop("_goes_to", None)
    if device is None or device.type != "cuda":
        original(self, shape, device, dtype)
        return
    fresh = torch.empty(shape, device=device, dtype=dtype or self.data.dtype)
    self.__class__ = self.cls_to_become
    exchange(self, fresh, self.requires_grad)


# ---- torch.cuda.comm: torch's own functions check most arguments, and call these in C++ ----------


def _on(index: int | None) -> Any:
    device = (
        None
        if index is not None and index < 0
        else open_device_named("cuda" if index is None else index)
    )
    return torch.device("cpu") if device is None else device.cuda


def _check_device(kind: str, index: int, tensor: Any) -> None:
    if not tensor.is_cuda:
        raise RuntimeError(f"Expected all {kind} at index {index} has device '{tensor.device}'")


def _scatter(
    tensor: Any, devices: Any, chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> Any:
    """`torch._C._scatter`: copies of the parts of a tensor, one on each device."""
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(devices):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    pieces = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else tensor.split(list(chunk_sizes), dim)
    )
    return [
        piece.to(_on(device), non_blocking=True)
        for piece, device in zip(pieces, devices, strict=False)
    ]


def _scatter_out(tensor: Any, out: Any, dim: int = 0, streams: Any = None) -> Any:
    """`torch._C._scatter_out`: copies the parts of a tensor into the tensors of `out`."""
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    dim = dim % tensor.dim()
    shape = list(tensor.shape)
    for index, target in enumerate(out):
        _check_device("output tensors to be CUDA tensors, but output tensor", index, target)
        if not _alike(list(target.shape), shape, dim):
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {list(target.shape)}. Expected same shape except "
                f"for scatter dim {dim} as the source tensor: {shape}"
            )
    sizes = [target.shape[dim] for target in out]
    if sum(sizes) != shape[dim]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at "
            f"dim {dim}. Expected {shape[dim]}, but got total size {sum(sizes)}"
        )
    for piece, target in zip(tensor.split(sizes, dim), out, strict=True):
        target.copy_(piece, non_blocking=True)
    return out


def _alike(shape: list[int], other: list[int], dim: int) -> bool:
    """True if two shapes differ in the dimension `dim` at most."""
    return len(shape) == len(other) and all(
        a == b for i, (a, b) in enumerate(zip(shape, other, strict=True)) if i != dim
    )


def _broadcast(tensor: Any, devices: Any) -> Any:
    return [tensor.to(_on(device), non_blocking=True) for device in devices]


def _broadcast_out(tensor: Any, out: Any) -> Any:
    """`torch._C._broadcast_out`: copies a tensor into each tensor of `out`."""
    for index, target in enumerate(out):
        _check_device("output tensors to be CUDA tensors, but output tensor", index, target)
        if target.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, but output "
                f"tensor at index {index} has shape {list(target.shape)}"
            )
    return [target.copy_(tensor, non_blocking=True) for target in out]


def _broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
    if any(tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    return [
        list(tensors),
        *([tensor.detach().to(_on(device)) for tensor in tensors] for device in devices[1:]),
    ]


def _gather(tensors: Any, dim: int = 0, destination: Any = None) -> Any:
    _gathered(tensors, dim)
    return torch.cat([tensor.to(_on(destination)) for tensor in tensors], dim)


def _gather_out(tensors: Any, out: Any, dim: int = 0) -> Any:
    """`torch._C._gather_out`: copies tensors into the parts of `out`."""
    expected = _gathered(tensors, dim)
    if list(out.shape) != expected:
        raise RuntimeError(
            f"Expected out tensor to have shape {expected}, but got {list(out.shape)}"
        )
    for piece, source in zip(out.split([t.shape[dim] for t in tensors], dim), tensors, strict=True):
        piece.copy_(source, non_blocking=True)
    return out


def _gathered(tensors: Any, dim: int) -> list[int]:
    """The shape of tensors that are joined along a dimension.

    Raises RuntimeError, as C++ does, for tensors that do not fit together.
    """
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    shape = list(tensors[0].shape)
    dim = dim % len(shape) if shape else 0
    for index, tensor in enumerate(tensors):
        _check_device("input tensors to be CUDA tensors, but tensor", index, tensor)
        if tensor.dim() != len(shape):
            raise RuntimeError(
                f"Expected all input tensors to have the same number of dimensions, but tensor at index {index}has "
                f"{tensor.dim()} dimensions, (expected {len(shape)})"
            )
        if not _alike(list(tensor.shape), shape, dim):
            expected = [tensor.shape[dim] if i == dim else size for i, size in enumerate(shape)]
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, but expected {expected}"
            )
    return [
        sum(t.shape[dim] for t in tensors) if i == dim else size for i, size in enumerate(shape)
    ]


class _GradAttribute(property):
    """Replaces `Tensor.grad`.

    `torch._dynamo` asks the attributes of tensors for their class and name.
    """

    __objclass__ = torch.Tensor.__base__
    __name__ = "grad"


def _parse_to(original: Any, *args: Any, **kwargs: Any) -> Any:
    """The arguments of `Module.to`, read by torch.

    A number is a GPU's, which C++ would look for, so it is replaced by the device.
    """
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        args = (torch.device("cuda", args[0]), *args[1:])
    if isinstance(number := kwargs.get("device"), int) and not isinstance(number, bool):
        kwargs["device"] = torch.device("cuda", number)
    return original(*args, **kwargs)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of modules, parameters and `torch.cuda.comm`."""
    yield around(find_internal("torch._C._nn"), "_parse_to", _parse_to)
    yield torch.Tensor, "grad", _GradAttribute(_grad.__get__, set_grad, _grad.__delete__)
    yield nn.Module, "_apply", apply
    yield (
        nn.Parameter,
        "__new__",
        staticmethod(functools.partial(_new_parameter, nn.Parameter.__new__)),
    )
    yield around(UninitializedTensorMixin, "materialize", _materialize)
    for function in (
        _scatter,
        _scatter_out,
        _broadcast,
        _broadcast_out,
        _broadcast_coalesced,
        _gather,
        _gather_out,
    ):
        yield torch._C, function.__name__, function
    yield torch.cuda.nccl, "is_available", lambda tensors: False  # `reduce_add` adds then
    yield from _kernels_for_lists()


def _kernels_for_lists() -> Iterator[Patch]:
    """The patches that let lists of device tensors be used as on a GPU.

    Gradient clipping and optimizers ask which classes and devices have kernels for such lists.
    """
    devices = "_get_foreach_kernels_supported_devices"
    for home in (foreach, swa_utils):
        yield around(home, devices, lambda original: [*original(), "lazy"])
    types = "_foreach_supported_types"
    for home in (foreach, optimizer):
        if not isinstance(home, Lacking) and hasattr(home, types):
            yield home, types, [*getattr(home, types), *VIRTUAL]
