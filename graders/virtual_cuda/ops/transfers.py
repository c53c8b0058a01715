"""Copies between host and device, and whether the host waits for them."""

from __future__ import annotations

from typing import Any, Final

import torch

from virtual_cuda.device.state import Place, is_pinned, place_of
from virtual_cuda.device.tensor import VIRTUAL, wrap
from virtual_cuda.ops import elementwise
from virtual_cuda.ops.dispatch import allocate, deliver, open_place, shut, write
from virtual_cuda.ops.placement import HOST, record_copy
from virtual_cuda.ops.registry import operator

aten: Final = torch.ops.aten


def to_device(
    tensor: torch.Tensor, place: Place, non_blocking: bool, dtype: Any = None, memory_format: Any = None
) -> Any:
    """A new device tensor with the values of a host tensor (no autograd: the caller has seen to that)."""
    if place.shut:
        raise shut(place)
    if dtype is None and memory_format is None:
        inner = tensor.clone()
    else:
        inner = torch.ops.aten._to_copy.default(tensor, dtype=dtype, memory_format=memory_format)
    shell = deliver(inner, place, "aten._to_copy.default")
    record_copy("to_device", tensor, is_pinned(tensor), non_blocking, HOST, place.label)
    return shell


def _to_copy(func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    options = dict(kwargs)
    device = options.pop("device", None)
    non_blocking = options.pop("non_blocking", False)
    options.pop("pin_memory", None)
    if type(source) not in VIRTUAL:
        target = place_of(device)
        assert target is not None
        return to_device(source, target, non_blocking, options.get("dtype"), options.get("memory_format"))
    place, inner = open_place(source), source._inner
    target = place if device is None else place_of(device)
    if target is None and device.type != "cpu":
        return func(inner, device=device, **options)
    out = elementwise.to_copy(inner, **options)
    if target is None:
        write(str(func), place, 0)
        record_copy("to_host", inner, False, non_blocking, place.label, HOST)
        return out
    block = allocate(target, out.untyped_storage().nbytes())
    write(str(func), target, out.nbytes)
    if target is not place:
        record_copy("between_devices", inner, False, non_blocking, place.label, target.label)
    return wrap(out, block)


def _copy_(func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    on_device, from_device = type(target) in VIRTUAL, type(source) in VIRTUAL
    place = open_place(target if on_device else source)
    if not on_device:
        elementwise.copy_(target, source._inner)
        write(str(func), place, 0)
        record_copy("to_host", source._inner, is_pinned(target), non_blocking, place.label, HOST)
        return target
    if not from_device:
        target._inner.copy_(source)
        write(str(func), place, 0)
        record_copy("to_device", source, is_pinned(source), non_blocking, HOST, place.label)
        return target
    elementwise.copy_(target._inner, source._inner)
    write(str(func), place, 0)
    other = source._block.place
    if other is not place:
        record_copy("between_devices", source._inner, False, non_blocking, other.label, place.label)
    return target


def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    """`aten::_copy_from`, which is how C++ copies out of a device it has no kernels for."""
    return _copy_(aten.copy_.default, (target, source, non_blocking), {})


operator("_to_copy", plan=_to_copy, kernel=elementwise.to_copy)
operator("copy_", plan=_copy_, kernel=elementwise.copy_)
