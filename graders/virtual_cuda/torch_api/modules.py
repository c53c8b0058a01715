"""Patches of `torch.nn`: moving modules, parameters, gradients."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.optim.swa_utils
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin, is_lazy  # type: ignore[attr-defined]

from virtual_cuda.device.cuda_errors import without_lazy
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.state import now
from virtual_cuda.device.tensor import VIRTUAL, Tensor
from virtual_cuda.internals import find_internal
from virtual_cuda.lacking import Lacking
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.student_classes import detach_as, device_class, host_class

# torch.optim hides its submodules behind functions of the same names.
_optimizer: Final = sys.modules["torch.optim.optimizer"]
_swa_utils: Final = sys.modules["torch.optim.swa_utils"]
_grad: Final[Any] = torch.Tensor.grad
_foreach_utils: Final = find_internal(
    "torch.utils._foreach_utils"
)  # may lack: then no list is patched
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
    """`nn.Parameter(data)`, where data may be on the device; `cls` is the class to make.

    `original` is `nn.Parameter.__new__`. Raises what that raises.
    """
    if type(data) not in VIRTUAL:
        return original(host_class(cls), data, requires_grad)
    return detach_as(device_class(cls), data, requires_grad)


def give_content(tensor: Any, content: Any, requires_grad: bool) -> Any:
    """Give `tensor` the values, memory and device of `content`, which is on another device.

    Returns `tensor`, or a new one where C++ holds the old one: the new one is then put into every
    list and dict that had the old one. Attributes that Python has set are kept. Raises RuntimeError
    where integers are to require gradients.
    """
    other = _as_kind_of(tensor, content, requires_grad)
    attributes = {
        name: value for name, value in tensor.__dict__.items() if name not in HIDDEN_IN_TENSORS
    }
    classes = type(tensor), type(other)
    names = tensor.__dict__, other.__dict__
    try:
        torch.utils.swap_tensors(tensor, other)
        result = tensor
    except RuntimeError:
        # A graph, a weak reference or a profiler holds the C++ tensor. torch has exchanged
        # classes and attributes before it found that.
        tensor.__class__, other.__class__ = classes
        tensor.__dict__, other.__dict__ = names
        _replace_in_containers(tensor, other)
        result = other
    result.__dict__.update(attributes)
    return result


def _as_kind_of(tensor: Any, content: Any, requires_grad: bool) -> Any:
    """`content` as a parameter of the class of `tensor`, if that is a parameter.

    Else it is `content` itself, which requires gradients from then on or not. Raises RuntimeError
    for gradients of integers.
    """
    if not isinstance(tensor, nn.Parameter):
        return content.requires_grad_(requires_grad)
    parameter = nn.Parameter(content, requires_grad=requires_grad)
    if host_class(type(tensor)) not in (torch.Tensor, nn.Parameter):  # a student's class
        if type(parameter) in VIRTUAL:
            class_there = device_class
        else:
            class_there = host_class
        parameter.__class__ = class_there(type(tensor))
    return parameter


def _replace_in_containers(tensor: Any, other: Any) -> None:
    """Put `other` into every list and dict that has `tensor`, as a value or as a key."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, dict):
            pairs = list(holder.items())
        elif isinstance(holder, list):
            pairs = list(enumerate(holder))
        else:
            continue
        for key, value in pairs:
            if value is tensor:
                holder[key] = other
        if isinstance(holder, dict) and any(key is tensor for key in holder):
            holder[other] = holder.pop(tensor)


def _keeps_identity(parameter: Any, moved: Any) -> bool:
    """True if a parameter that moves stays the same object, with new content.

    If not, the module gets a new parameter, as one that leaves "meta" does.
    """
    if torch.__future__.get_swap_module_params_on_conversion():
        return True
    if (parameter.device.type == "meta") is not (moved.device.type == "meta"):
        return False
    return not torch.__future__.get_overwrite_module_params_on_conversion()


def _consists_of_others(parameter: Any, moved: Any) -> bool:
    """True if a parameter is fake or of a class that wraps tensors.

    torch exchanges these as a whole.
    """
    if _wraps_tensors(moved):
        return True
    fake_tensors = sys.modules.get("torch._subclasses.fake_tensor")
    return fake_tensors is not None and isinstance(parameter, fake_tensors.FakeTensor)


_apply: Final = find_internal("torch.nn.Module._apply", "moving a module")


def _apply_to_module(module: Any, function: Any, recurse: bool = True) -> Any:
    """`Module._apply` for host and device parameters alike.

    Has `function` move or convert every parameter, gradient and buffer, and returns the module.
    Raises RuntimeError where torch cannot swap a parameter, and what `function` raises.
    """
    if now.gpu is None:  # the patches may stay in place after a device has closed
        return _apply(module, function, recurse)
    if recurse:
        for child in module.children():
            child._apply(function)
    for key, parameter in module._parameters.items():
        if parameter is not None:
            _apply_to_parameter(module, key, parameter, function)
    # Buffers are simply replaced.
    for key, buffer in module._buffers.items():
        if is_lazy(buffer):
            _note_move_of_lazy_tensor(buffer, function)
        elif buffer is not None:
            module._buffers[key] = function(buffer)
    return module


def _apply_to_parameter(module: Any, key: str, parameter: Any, function: Any) -> None:
    """Have `function` move or convert a parameter of a module and its gradient, without history.

    `key` is the parameter's name in the module. It gets its new content in one of four ways: as a
    new object, swapped by torch, in place, or from a tensor on another device; if C++ holds it
    then, a new one takes its place in every list and dict. Raises RuntimeError where torch cannot
    swap it, and what `function` raises.
    """
    if is_lazy(parameter):
        _note_move_of_lazy_tensor(parameter, function)
        return
    gradient = parameter.grad
    with torch.no_grad():
        moved = function(parameter)
    keeps_identity = _keeps_identity(parameter, moved)
    if moved is parameter and keeps_identity:
        return
    moved_gradient = None
    if gradient is not None:
        with torch.no_grad():
            moved_gradient = function(gradient).requires_grad_(gradient.requires_grad)

    if not keeps_identity:
        module._parameters[key] = nn.Parameter(moved, parameter.requires_grad)
        module._parameters[key].grad = moved_gradient
    elif _consists_of_others(parameter, moved):
        _swap_parameter(f"{type(module).__name__}.{key}", parameter, moved, moved_gradient)
    elif isinstance(moved, Tensor) is isinstance(parameter, Tensor):
        parameter.data = moved
        if moved_gradient is not None:
            parameter.grad.data = moved_gradient
    else:
        parameter.grad = None
        result = give_content(parameter, moved, parameter.requires_grad)
        module._parameters[key] = result
        if gradient is not None and moved_gradient is not None:
            result.grad = give_content(gradient, moved_gradient, gradient.requires_grad)


def _swap_parameter(name: str, parameter: Any, moved: Any, gradient: Any) -> None:
    """Give a parameter the content `moved` and the gradient `gradient`.

    The old gradient is taken away first, because it would prevent that. Raises RuntimeError, with
    the parameter's name, where torch cannot exchange them.
    """
    before = parameter.grad
    parameter.grad = None
    try:
        torch.utils.swap_tensors(parameter, nn.Parameter(moved, parameter.requires_grad))
    except Exception as error:  # of any kind: torch raises the same error for all
        parameter.grad = before
        raise RuntimeError(f"_apply(): Couldn't swap {name}") from error
    parameter.grad = gradient


def _note_move_of_lazy_tensor(tensor: Any, function: Any) -> None:
    """Note where a parameter or buffer without a shape will be; its dtype changes at once.

    `function` is what moves tensors; it is tried on an empty one, and what it raises is raised.
    """
    data = tensor.data
    device = tensor.__dict__.get("_goes_to", data.device)
    moved = function(torch.empty(0, dtype=data.dtype, device=device))
    if moved.dtype is not data.dtype:
        tensor.data = data.to(moved.dtype)
    tensor.__dict__["_goes_to"] = moved.device


def _materialize_parameter(
    original: Any, parameter: Any, shape: Any, device: Any = None, dtype: Any = None
) -> None:
    """Give a parameter without a shape its memory, where its module was moved to.

    A `LazyLinear` has such parameters before its first batch. Its class changes to that of a plain
    parameter. Raises torch's OutOfMemoryError, and what `original` raises for the host.
    """
    device = device or parameter.__dict__.pop("_goes_to", None)
    if device is None or device.type != "cuda":
        original(parameter, shape, device, dtype)
        return
    content = torch.empty(shape, device=device, dtype=dtype or parameter.data.dtype)
    parameter.__class__ = parameter.cls_to_become
    give_content(parameter, content, parameter.requires_grad)


class _GradAttribute(property):
    """Replaces `Tensor.grad`.

    `torch._dynamo` asks the attributes of tensors for their class and name.
    """

    __objclass__ = torch.Tensor.__base__
    __name__ = "grad"


def _is_device_number(value: Any) -> bool:
    """True for the number of a GPU; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _parse_arguments_of_to(original: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch._C._nn._parse_to`: the arguments of `Module.to`, read by torch, the `original`.

    A number is a GPU's, which C++ would look for, so it is replaced by the device. Raises what
    torch raises for wrong arguments.
    """
    if args and _is_device_number(args[0]):
        args = (torch.device("cuda", args[0]), *args[1:])
    device: Any = kwargs.get("device")
    if _is_device_number(device):
        kwargs["device"] = torch.device("cuda", device)
    return original(*args, **kwargs)


@torch_patches()
def _module_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of modules, parameters and gradients."""
    yield around(find_internal("torch._C._nn"), "_parse_to", _parse_arguments_of_to)
    yield torch.Tensor, "grad", _GradAttribute(_grad.__get__, set_grad, _grad.__delete__)
    yield nn.Module, "_apply", _apply_to_module
    new_parameter = functools.partial(_new_parameter, nn.Parameter.__new__)
    yield nn.Parameter, "__new__", staticmethod(new_parameter)
    yield around(UninitializedTensorMixin, "materialize", _materialize_parameter)


@torch_patches()
def _patches_of_lists(opening: Opening) -> Iterator[Patch]:
    """The patches that let lists of device tensors be used as on a GPU.

    Gradient clipping and optimizers ask which classes and devices have kernels for such lists.
    """
    for module in (_foreach_utils, _swa_utils):
        name = "_get_foreach_kernels_supported_devices"
        yield around(module, name, lambda original: [*original(), "lazy"])
    for module in (_foreach_utils, _optimizer):
        name = "_foreach_supported_types"
        if not isinstance(module, Lacking) and hasattr(module, name):
            yield module, name, [*getattr(module, name), *VIRTUAL]
