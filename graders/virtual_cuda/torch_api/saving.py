"""Saving, loading and sending device tensors to other processes: all that pickle does."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch

from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.no_values import on_host_without_values
from virtual_cuda.device.state import find_open_device
from virtual_cuda.device.tensor import VIRTUAL, Parameter, Tensor
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import require_open_device, wrap_result
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.storage import host_set, mark_as_on_device
from virtual_cuda.torch_api.student_classes import student_class

_reduce_plain: Final = find_internal("torch.Tensor._reduce_ex_internal", "saving a tensor")
_rebuild_parameter: Final = find_internal("torch._utils._rebuild_parameter", "saving a parameter")
_rebuild_parameter_with_state: Final = find_internal(
    "torch._utils._rebuild_parameter_with_state", "saving a parameter with attributes"
)
_rebuild_from_type: Final = find_internal(
    "torch._tensor._rebuild_from_type_v2", "saving a tensor with attributes"
)
_REQUIRES_GRAD: Final = 4  # where _rebuild_tensor_v2 and _v3 take it


# ---- saving --------------------------------------------------------------------------------------


def _reduce_tensor(tensor: Any, protocol: Any) -> Any:
    """What pickle saves of a device tensor: a function and its arguments.

    Replaces `Tensor.__reduce_ex__` and that of `Parameter`, because the tensor's class is not what
    it says. Warns of the hooks of a plain tensor, which are not saved. In a run without values,
    zeros are saved. Raises DeviceClosed or the error of what ended the device, and what torch
    raises for a tensor that cannot be saved.
    """
    require_open_device(tensor)
    attributes = {
        name: value for name, value in tensor.__dict__.items() if name not in HIDDEN_IN_TENSORS
    }
    if isinstance(tensor, Parameter):
        hooks: OrderedDict[Any, Any] = OrderedDict()
        arguments = (tensor.detach(), tensor.requires_grad, hooks)
        if not attributes:
            return _rebuild_parameter, arguments
        return _rebuild_parameter_with_state, (*arguments, attributes)
    function, arguments = _reduce_values(tensor, protocol)
    cls = student_class(type(tensor))
    if cls is torch.Tensor and not attributes:
        return function, arguments
    return _rebuild_from_type, (function, cls, arguments, attributes)


def _reduce_values(tensor: Any, protocol: Any) -> Any:
    """The function and the arguments that rebuild a tensor's values, without its class.

    Warns of hooks, which are not saved. The storage says from now on that it is on the device.
    Raises what torch raises for a tensor that cannot be saved.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        return _reduce_plain(tensor, protocol)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    inner = tensor._virtual_inner.detach()
    if inner.is_meta:
        inner = on_host_without_values(inner)
    # From now on the storage behind the inner tensor says where it lives.
    mark_as_on_device(inner.untyped_storage(), tensor._virtual_block)
    function, arguments = _reduce_plain(inner, protocol)
    arguments = list(arguments)
    arguments[_REQUIRES_GRAD] = tensor.requires_grad
    return function, tuple(arguments)


Tensor.__reduce_ex__ = _reduce_tensor  # type: ignore[method-assign]


def _set_metadata(original: Any, tensor: Any, metadata: Any) -> None:
    """Give a tensor that was loaded its conjugate and negative bits, by `original`.

    Of a device tensor, the inner one gets them, too.
    """
    if type(tensor) in VIRTUAL:
        original(tensor._virtual_inner, metadata)
    original(tensor, metadata)


@torch_patches()
def _loading_patches(opening: Opening) -> Iterator[Patch]:
    """The patch of what `torch.load` calls; left out where this torch lacks it."""
    yield around(find_internal("torch._utils"), "set_tensor_metadata", _set_metadata)


# ---- other processes -----------------------------------------------------------------------------


def _reduce_for_process(tensor: Any) -> Any:
    """What another process is sent to see the same memory: a function and its arguments.

    That process needs the device, too. The memory becomes shared. Raises DeviceClosed or the error
    of what ended the device, and RuntimeError for a tensor with a history.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        # It refuses, in torch's own words.
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    device = require_open_device(tensor)
    inner = tensor._virtual_inner
    view = inner.storage_offset(), inner.size(), inner.stride()
    is_parameter = isinstance(tensor, Parameter)
    return _receive_tensor, (
        *_reduce_host_storage(inner.untyped_storage()),
        inner.dtype,
        view,
        device.label,
        is_parameter,
        tensor.requires_grad,
    )


def _reduce_host_storage(storage: Any) -> Any:
    """What another process is sent to see the memory of a storage, which becomes shared.

    It is what torch sends for one of the host, also where this one says that it is on the device:
    its class is the host's meanwhile. Raises what torch raises where memory cannot be shared.
    """
    cls = type(storage)
    storage.__class__ = torch.UntypedStorage
    try:
        return torch.multiprocessing.reductions.reduce_storage(storage)
    finally:
        storage.__class__ = cls


def _receive_tensor(
    rebuild_storage: Any,
    arguments: Any,
    dtype: torch.dtype,
    view: Any,
    label: str,
    is_parameter: bool,
    requires_grad: bool,
) -> Any:
    """The device tensor that another process has sent: see `_reduce_for_process`.

    `rebuild_storage` with `arguments` gives its storage; `view` are its offset, size and strides
    there, and `label` is its device. Raises RuntimeError where this process has no such virtual
    device open, and torch's OutOfMemoryError.
    """
    device = find_open_device(label)
    if device is None:
        raise RuntimeError(
            f"a tensor of {label} was received, but this process has no virtual CUDA device open"
        )
    storage = rebuild_storage(*arguments)
    inner = host_set(torch.empty(0, dtype=dtype, device="cpu"), storage, *view)
    tensor, _ = wrap_result(inner, device, {})
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


for _cls in (Tensor, Parameter):
    ForkingPickler.register(_cls, _reduce_for_process)
