"""Copies tensors to the device, from it and on it: `.to`, `.cuda`, `copy_`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device import pinning
from virtual_cuda.device.known_values import Certainty, is_small, known_values, learn_from_host
from virtual_cuda.device.no_values import forget_values, on_host_without_values, shape_only
from virtual_cuda.device.pinning import has_pinned_memory
from virtual_cuda.device.state import VirtualDevice, find_open_device, open_device_of
from virtual_cuda.device.tensor import VIRTUAL, wrap
from virtual_cuda.internals import find_internal, is_transformed
from virtual_cuda.ops import elementwise
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    put_on_device,
    record_operation,
    require_open_device,
    thread_state,
    work_of,
)
from virtual_cuda.ops.placement import HOST, record_copy
from virtual_cuda.ops.registry import operator
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import site

aten: Final = torch.ops.aten


# ---- the operators -------------------------------------------------------------------------------


def to_device(
    tensor: torch.Tensor,
    device: VirtualDevice,
    non_blocking: bool,
    dtype: Any = None,
    memory_format: Any = None,
) -> Any:
    """A new device tensor with the values of a host tensor.

    There is no autograd: the caller has seen to that. Allocates memory, and records the operator
    and the copy. Raises DeviceClosed or the error of what ended the device, torch's
    OutOfMemoryError, and RuntimeError at a wait that is refused or tells of a failed kernel.
    """
    if device.closed:
        raise closed_device_error(device)
    source = tensor
    if not device.gpu.values:
        source = shape_only(tensor)
    if dtype is None and memory_format is None:
        inner = source.clone()
    else:
        inner = aten._to_copy.default(source, dtype=dtype, memory_format=memory_format)
    if not device.gpu.values:
        learn_from_host(inner, tensor)
    shell = put_on_device(inner, device, "aten._to_copy.default")
    record_copy(
        tensor,
        HOST,
        device.label,
        pinned=has_pinned_memory(tensor),
        non_blocking=non_blocking,
    )
    return shell


def _run_to_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::_to_copy` from, to or on the device; gives the copy.

    Allocates the result's memory, and records the operator and the copy. Raises DeviceClosed or the
    error of what ended the device, torch's OutOfMemoryError, and RuntimeError at a wait that is
    refused or tells of a failed kernel.
    """
    source = args[0]
    options = dict(kwargs)
    device = options.pop("device", None)
    non_blocking = options.pop("non_blocking", False)
    options.pop("pin_memory", None)
    if type(source) not in VIRTUAL:
        target = open_device_of(device)
        assert target is not None
        dtype = options.get("dtype")
        return to_device(source, target, non_blocking, dtype, options.get("memory_format"))
    # From the device: to the host, to another device, or on it.
    source_device = require_open_device(source)
    if device is None:
        target = source_device
    else:
        target = open_device_of(device)
    if target is not None:
        return _copy_to_device(source, target, non_blocking, options)
    if device.type == "cpu":
        return _copy_to_host(source, non_blocking, options)
    return func(source._virtual_inner, device=device, **options)


def _copy_to_host(source: Any, non_blocking: bool, options: dict[str, Any]) -> torch.Tensor:
    """A host tensor with the values of a device tensor; records the operator and the copy.

    `options` are those of `aten::_to_copy`, without the device. The result of an asynchronous copy
    is counted as pinned. Raises DeviceClosed or the error of what ended the device, and
    RuntimeError at a wait that is refused or tells of a failed kernel.
    """
    device = require_open_device(source)
    inner = source._virtual_inner
    where = site()
    result = _copy_of_values(inner, options)
    if not device.gpu.values:
        result = _values_on_host(inner, result)
    work = (inner.dtype, None, inner.shape)
    record_operation("aten._to_copy.default", device, 0, work, where)
    record_copy(inner, device.label, HOST, non_blocking=non_blocking, where=where)
    if non_blocking:  # torch pins the result of such a copy, or it could not overlap
        return pinning.count_pinned_memory(result)
    return result


def _values_on_host(inner: torch.Tensor, planned: torch.Tensor) -> torch.Tensor:
    """The host's copy of an inner tensor without values, as `planned` on "meta".

    It has the values that are known. Where they are not certain, that is noted.
    """
    known = known_values(inner)
    if known is None:
        return on_host_without_values(planned)
    values, certainty = known
    result = torch.empty_strided(planned.shape, planned.stride(), dtype=planned.dtype)
    result.copy_(values)
    if certainty is not Certainty.CERTAIN:
        forget_values(result)
    return result


def _copy_to_device(
    source: Any, target: VirtualDevice, non_blocking: bool, options: dict[str, Any]
) -> Any:
    """A new device tensor with the values of another one, on the same device or on another.

    `options` are those of `aten::_to_copy`, without the device. Allocates memory, and records the
    operator and a copy between devices. Raises DeviceClosed or the error of what ended the source's
    device, and torch's OutOfMemoryError.
    """
    device = require_open_device(source)
    inner = source._virtual_inner
    where = site()
    result = _copy_of_values(inner, options)
    block = allocate(target, result.untyped_storage().nbytes())
    is_plain = result.dtype is inner.dtype and inner.is_contiguous()
    work = work_of(result, () if is_plain else (inner,))
    record_operation("aten._to_copy.default", target, result.nbytes, work, where)
    if target is not device:
        record_copy(inner, device.label, target.label, non_blocking=non_blocking, where=where)
    return wrap(result, block)


def _copy_of_values(inner: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """A copy of an inner tensor, with the dtype and layout that `aten::_to_copy` is asked for."""
    if _is_copied_as_it_is(inner, options):
        return inner.clone()
    result: torch.Tensor = elementwise.to_copy_as_cuda(inner, **options)
    return result


def _is_copied_as_it_is(inner: torch.Tensor, options: dict[str, Any]) -> bool:
    """True if a copy with these options of `aten::_to_copy` has the same bytes, in order."""
    if options.get("dtype") not in (None, inner.dtype):
        return False
    if inner.is_conj() or inner.is_neg():
        return False
    return options.get("memory_format") is None and inner.is_contiguous()


def _run_copy(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::copy_` where one of the two tensors is on the device, and return the target.

    Writes the values of the second argument into the first, and records the operator and the copy.
    Raises DeviceClosed or the error of what ended the device, RuntimeError for shapes that do not
    fit, and RuntimeError at a wait that is refused or tells of a failed kernel.
    """
    target: Any = args[0]
    source: Any = args[1]
    if len(args) > 2:
        non_blocking = args[2]
    else:
        non_blocking = kwargs.get("non_blocking", False)
    to_host = type(target) not in VIRTUAL
    from_host = type(source) not in VIRTUAL
    device = require_open_device(source if to_host else target)
    if not isinstance(source, torch.Tensor):  # a number, which is a scalar of the host
        source = torch.scalar_tensor(source, dtype=target.dtype)
    if to_host:
        if device.gpu.values:
            elementwise.copy_as_cuda(target, source._virtual_inner)
        else:
            _copy_known_values(target, source._virtual_inner)
        record_operation("aten.copy_.default", device, 0)
        record_copy(
            source._virtual_inner,
            device.label,
            HOST,
            pinned=has_pinned_memory(target),
            non_blocking=non_blocking,
        )
        return target
    if from_host:
        if device.gpu.values:
            target._virtual_inner.copy_(source)
        else:
            target._virtual_inner.copy_(shape_only(source))
        record_operation("aten.copy_.default", device, 0)
        record_copy(
            source,
            HOST,
            device.label,
            pinned=has_pinned_memory(source),
            non_blocking=non_blocking,
        )
        return target
    # Between tensors of devices.
    written = target._virtual_inner
    read = source._virtual_inner
    if _is_written_already(written, read):
        return target
    elementwise.copy_as_cuda(written, read)
    work = _work_of_copy(written, read)
    record_operation("aten.copy_.default", device, 0, work)
    source_device = source._virtual_block.device
    if source_device is not device:
        record_copy(read, source_device.label, device.label, non_blocking=non_blocking)
    return target


def _is_written_already(written: torch.Tensor, read: torch.Tensor) -> bool:
    """True if `read` is the memory of `written` in another shape, so that nothing is to be copied.

    `torch.matmul(out=…)` writes into such a view of its result. C++ does not know that both tensors
    share their memory on the device, and would have the view copied where a GPU copies nothing.
    """
    if written.shape == read.shape or written.numel() != read.numel():
        return False
    if written.untyped_storage()._cdata != read.untyped_storage()._cdata:
        return False
    is_same_part = written.storage_offset() == read.storage_offset()
    return is_same_part and written.is_contiguous() and read.is_contiguous()


def _copy_known_values(target: torch.Tensor, inner: torch.Tensor) -> None:
    """Copy the known values of an inner tensor to a target on the host.

    A small target gets zeros for unknown ones. Unless the values are certain, it is noted that the
    target has none any more.
    """
    known = known_values(inner)
    if known is not None:
        target.copy_(known[0])
    elif is_small(inner):
        target.zero_()
    if known is None or known[1] is not Certainty.CERTAIN:
        forget_values(target)


def _work_of_copy(written: torch.Tensor, read: torch.Tensor) -> Any:
    """What the modelled clock has to know of a copy on the device: dtype and shapes.

    The tensors are the inner ones of target and source.
    """
    is_in_order = written.is_contiguous() and read.is_contiguous()
    if is_in_order and written.dtype is read.dtype:
        return work_of(written, ())
    return work_of(None, (written, read))


def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """`aten::_copy_from`, which is how C++ copies out of a device it has no kernels for.

    Writes into the target and returns it. Records the operator and the copy. Raises DeviceClosed or
    the error of what ended the device, RuntimeError for shapes that do not fit, and RuntimeError at
    a wait that is refused or tells of a failed kernel.
    """
    return _run_copy(aten.copy_.default, (target, source, non_blocking), {})


operator("_to_copy", plan=_run_to_copy, kernel=elementwise.to_copy_as_cuda)
operator("copy_", plan=_run_copy, kernel=elementwise.copy_as_cuda)


# ---- Tensor.to and Tensor.cuda -------------------------------------------------------------------

# Where this torch lacks one of these, a tensor is copied as if there were no profiler, mode or
# transform.
_transform: Final = find_internal("torch._C._functorch.maybe_current_level", otherwise=lambda: None)
_unwrap: Final = find_internal("torch._C._functorch.get_unwrapped", "copying inside torch.func")
_is_profiler_enabled: Final = find_internal(
    "torch._C._autograd._profiler_enabled", otherwise=lambda: False
)
_count_of_dispatch_modes: Final = find_internal(
    "torch._C._len_torch_dispatch_stack", otherwise=lambda: 0
)
_without_dispatch_modes: Final = find_internal(
    "torch.utils._python_dispatch._disable_current_modes", otherwise=contextlib.nullcontext
)


def _can_skip_cpp(tensor: Any) -> bool:
    """True if nobody would notice that a host tensor is copied without asking C++.

    Autograd, a profiler, modes and transforms see the operators that a copy consists of.
    """
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return False
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    if tensor.requires_grad and torch.is_grad_enabled():
        return False
    if torch.is_inference_mode_enabled() or _is_profiler_enabled():
        return False
    return not _count_of_dispatch_modes() and _transform() is None


def _asks_for_plain_copy(tensor: Any, args: Any, kwargs: Any) -> bool:
    """True if the arguments of `.to`, the first of which is the device, ask for nothing else.

    They are (device) as students write it, or (device, dtype or None, non_blocking) as
    `nn.Module.to` does. From the host it is a copy, also where none is asked for.
    """
    if kwargs.keys() - {"non_blocking", "copy"}:
        return False
    if len(args) == 3:
        return args[1] is None or args[1] == tensor.dtype
    return len(args) == 1


def _copy_or_convert(original: Any, tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Copy or convert a host or device tensor, as `Tensor.to`, the `original`, does.

    Copies are recorded. A plain host tensor goes to the device without autograd's help; C++ is
    asked for all others, with the name that it has for the device. Raises CUDA's error for a device
    that is not there, torch's OutOfMemoryError, RuntimeError at a wait that is refused or tells of
    a failed kernel, and what `Tensor.to` raises.
    """
    device = None
    if args:
        device = find_open_device(args[0])
    if device is not None:
        if _asks_for_plain_copy(tensor, args, kwargs) and _can_skip_cpp(tensor):
            by_position = len(args) == 3 and args[2]
            non_blocking = kwargs.get("non_blocking", by_position)
            return to_device(tensor, device, non_blocking)
        # Where there is another text, C++ shall refuse what was written.
        has_other_text = any(isinstance(other, str) for other in args[1:])
        if not has_other_text:
            args = (device.lazy, *args[1:])
    # The device as C++ knows it.
    named = find_open_device(kwargs.get("device"))
    if named is not None:
        kwargs["device"] = named.lazy
        device = named
    if "tensor" in kwargs:
        args = (kwargs.pop("tensor"), *args)
    is_like_device_tensor = bool(args) and type(args[0]) in VIRTUAL
    goes_to_device = device is not None or is_like_device_tensor
    if not goes_to_device or type(tensor) in VIRTUAL or tensor.layout is not torch.strided:
        return original(tensor, *args, **kwargs)
    return _copy_with_strides(original, tensor, args, kwargs)


def _copy_with_strides(original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
    """Call `Tensor.to` of a host tensor for the device, and give its result.

    C++ does not say which strides the copy shall have: `thread_state.strides` tells meanwhile.
    Raises what `Tensor.to`, the `original`, raises.
    """
    if _keeps_strides(tensor, kwargs.get("memory_format")):
        thread_state.strides = _strides_of_copy(tensor)
    else:
        thread_state.strides = None
    try:
        return original(tensor, *args, **kwargs)
    finally:
        thread_state.strides = None


def _keeps_strides(tensor: Any, memory_format: Any) -> bool:
    """True if a copy of this tensor has the strides of an empty tensor that is like it.

    Of a class that wraps tensors only those inside are copied, which may have any strides.
    """
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    return memory_format is None or memory_format is torch.preserve_format


def _strides_of_copy(tensor: torch.Tensor) -> Any:
    """The strides that a copy of this tensor has.

    Transforms of torch.func copy the tensor inside, which may have more dimensions.
    """
    while _transform() is not None and is_transformed(tensor):
        tensor = _unwrap(tensor)
    if not _count_of_dispatch_modes():
        return torch.empty_like(tensor, device="meta").stride()
    with _without_dispatch_modes():
        return torch.empty_like(tensor, device="meta").stride()


def _copy_to_cuda(
    tensor: Any,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: Any = torch.preserve_format,
) -> Any:
    """`Tensor.cuda`: the tensor on a GPU, the current one by default.

    A copy is recorded. Raises TypeError for what is no device, RuntimeError for one that is no GPU
    or is not there and at a wait that is refused or tells of a failed kernel, and torch's
    OutOfMemoryError.
    """
    if isinstance(device, (bool, float)):
        raise TypeError(
            "cuda(): argument 'device' (position 1) must be torch.device, "
            f"not {type(device).__name__}"
        )
    if device is None:
        device = "cuda"
    elif not isinstance(device, int) and torch.device(device).type != "cuda":
        raise RuntimeError("Invalid device, must be cuda device")
    return tensor.to(device, non_blocking=non_blocking, memory_format=memory_format)


@torch_patches()
def _copying_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of methods that copy and pin tensors.

    `opening` is told to forget the pinned tensors when a device closes.
    """
    opening.on_close.append(pinning.pinned_storages.clear)
    yield around(torch.Tensor, "to", _copy_or_convert)
    yield torch.Tensor, "cuda", _copy_to_cuda
    yield torch.Tensor, "pin_memory", lambda self, device=None: pinning.pin(self)
    yield torch.Tensor, "is_pinned", lambda self, device=None: pinning.has_pinned_memory(self)
