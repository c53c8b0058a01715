"""Storages, saving and loading, DLPack, and tensors that other processes share.

A storage is the memory behind tensors; DLPack is how libraries hand tensors to each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch
import torch.utils.dlpack

from virtual_cuda.device.hidden import hidden_attribute
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.state import CUDA, Block, VirtualDevice, open_device_named
from virtual_cuda.device.tensor import VIRTUAL, Parameter, Tensor, update_shell, wrap
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import Direction
from virtual_cuda.ops import placement
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    record_operation,
    require_open_device,
    wrap_result,
)
from virtual_cuda.ops.registry import operator
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.torch_api.student_classes import student_class

_CUDA: Final = torch.utils.dlpack.DLDeviceType.kDLCUDA


class PyCapsule:
    """What `to_dlpack` hands out for a device tensor; it can be taken in once."""

    def __init__(self, tensor: Any) -> None:
        self.tensor: Any = tensor


def _exported(tensor: Any) -> Any:
    """A tensor over the same memory, to be handed out.

    Raises BufferError for one that requires gradients, has the conjugate bit, or is not strided.
    """
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.layout is not torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")
    return wrap(tensor._inner, tensor._block)


def _dlpack(self: Any, **kwargs: Any) -> Any:
    """`Tensor.__dlpack__`, which always raises BufferError.

    Every library that is not torch asks it. All there can be here are libraries of the host, NumPy
    above all.
    """
    _exported(self)
    raise BufferError("Unsupported device in DLTensor.")


def _to_dlpack(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return (
        PyCapsule(_exported(tensor))
        if type(tensor) in VIRTUAL
        else original(tensor, *args, **kwargs)
    )


def _from_dlpack(original: Any, ext_tensor: Any, **kwargs: Any) -> Any:
    """The tensor in a capsule of ours, or a device tensor over another one's memory.

    Any other object is torch's. Raises RuntimeError for a capsule that was taken in before, and
    BufferError: see `_exported`.
    """
    if type(ext_tensor) in VIRTUAL:
        taken = _exported(ext_tensor)
    elif isinstance(ext_tensor, PyCapsule):
        taken = ext_tensor.tensor
        ext_tensor.tensor = None
        if taken is None:
            raise RuntimeError(
                "from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed only once"
            )
    else:
        return original(ext_tensor, **kwargs)
    device = kwargs.get("device")
    moved = taken if device is None else taken.to(device)
    return moved.clone() if kwargs.get("copy") and moved is taken else moved


Tensor.__dlpack__ = _dlpack  # type: ignore[method-assign]
Tensor.__dlpack_device__ = lambda self: (_CUDA, self._block.device.index)  # type: ignore[method-assign,attr-defined]


aten: Final = torch.ops.aten
_Base: Final[Any] = torch.UntypedStorage
_Raw: Final[Any] = _Base.__mro__[1]  # the class in C that torch.UntypedStorage adds its methods to
_copy: Final = _Raw.copy_
host_set: Final[Any] = torch.Tensor.set_
_new: Final = _Raw.__new__
_is_lazy_clone: Final = find_internal("torch._C._is_cow_tensor", otherwise=lambda tensor: False)
_data_address: Final = find_internal("torch._C._data_address", "const_data_ptr of a lazy clone")
_reduce_tensor: Final = find_internal("torch.Tensor._reduce_ex_internal", "saving a tensor")
_set_from_file: Final = find_internal(
    "torch.UntypedStorage._set_from_file", "reading a storage from a file"
)
_rebuild_parameter: Final = find_internal("torch._utils._rebuild_parameter", "saving a parameter")
_rebuild_parameter_with_state: Final = find_internal(
    "torch._utils._rebuild_parameter_with_state", "saving a parameter with attributes"
)
_rebuild_from_type: Final = find_internal(
    "torch._tensor._rebuild_from_type_v2", "saving a tensor with attributes"
)


def _address(block: Block, offset: int) -> int:
    """The device's address of a byte in a block; 0 for a block without bytes."""
    return block.device.memory.make_layout().spot(block).address + offset if block.size else 0


class UntypedStorage(torch.UntypedStorage):
    """A storage on a virtual device."""

    # As in `Tensor`, whatever is put in their place in torch's class is not told of what is inside.
    __getattribute__ = object.__getattribute__
    __setattr__ = object.__setattr__

    _block: Block

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA[self._block.device.index]

    def __getitem__(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(args[0], slice):
            placement.record_waits("item")
            return _Base.__getitem__(self, *args, **kwargs)
        return on_device(_Base.__getitem__(self, *args, **kwargs), self._block)

    def data_ptr(self) -> int:
        return _address(self._block, 0)

    def resize_(self, size: int) -> Any:
        super().resize_(size)
        self._block.resize(self.nbytes())
        return self

    def is_shared(self) -> bool:
        return True  # device memory is shared between processes by handle, never copied

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def _shared_decref(self) -> Any:
        return self

    def _share_fd_cpu_(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("_share_fd_: only available on CPU")

    def _share_filename_cpu_(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("_share_filename_: only available on CPU")

    def new(self) -> Any:
        return _Base(0, device=self.device)

    def _write_file(self, *args: Any, **kwargs: Any) -> None:
        _Base.cpu(self)._write_file(*args, **kwargs)

    def _set_from_file(self, *args: Any, **kwargs: Any) -> Any:
        filled = _set_from_file(self, *args, **kwargs)
        placement.record_copy(
            "to_device", as_bytes(self), False, False, "cpu", self._block.device.label
        )
        return filled


UntypedStorage.__module__ = "torch.storage"


def on_device(storage: Any, block: Block) -> Any:
    """The storage itself, which says from now on that it is on the device."""
    if type(storage) is not UntypedStorage:
        storage.__class__ = UntypedStorage
    storage._block = block
    return storage


def storage_of(tensor: Any) -> Any:
    """`x.untyped_storage()`."""
    return on_device(tensor._inner.untyped_storage(), tensor._block)


def data_ptr(tensor: Any) -> int:
    """`x.data_ptr()`."""
    inner = tensor._inner
    return (
        _address(tensor._block, inner.data_ptr() - _Raw.data_ptr(inner.untyped_storage()))
        if inner.numel()
        else 0
    )


# Of memory that lazy clones share: where it is on the host -> on the device.
_lent: Final[dict[int, int]] = {}


def const_data_ptr(tensor: Any) -> int:
    """`x.const_data_ptr()`: unlike `data_ptr`, it leaves a lazy clone a clone."""
    inner = tensor._inner
    if not inner.numel() or not _is_lazy_clone(inner):
        return data_ptr(tensor)
    return _lent[_data_address(inner)] + int(inner.storage_offset()) * int(inner.element_size())


def _lazy_clone(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::_lazy_clone`: a tensor that shares memory until one of the two is written to.

    The host's kernels copy it then.
    """
    (tensor,) = args
    device = require_open_device(tensor)
    inner = tensor._inner
    if not _is_lazy_clone(inner):
        _lent[inner.untyped_storage().data_ptr()] = _address(tensor._block, 0)
    clone = func(inner)
    block = allocate(device, inner.untyped_storage().nbytes())
    record_operation(str(func), device, 0)
    return wrap(clone, block)


operator("_lazy_clone", plan=_lazy_clone)


def as_bytes(storage: Any) -> torch.Tensor:
    """A host tensor over the bytes of a storage, which it shares."""
    return host_set(torch.empty(0, dtype=torch.uint8, device="cpu"), storage)  # type: ignore[no-any-return]


def _make(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Make a storage, as `torch.UntypedStorage(..., device="cuda")` does.

    Raises DeviceClosed and OutOfMemoryError.
    """
    open_device = None if device is None else open_device_named(device)
    if open_device is None:
        if device is not None:
            kwargs["device"] = device
        return _new(_Base if cls is UntypedStorage else cls, *args, **kwargs)
    if open_device.closed:
        raise closed_device_error(open_device)
    nbytes = (
        args[0]
        if args and isinstance(args[0], int)
        else len(args[0])
        if args
        else kwargs.get("size", 0)
    )
    block = allocate(open_device, nbytes)
    return on_device(_new(_Base, *args, **kwargs), block)


def _copy_(self: Any, source: Any, non_blocking: Any = False) -> Any:
    """`storage.copy_(other)`.

    Records the copy where it leads from one device to another.
    """
    # C++ asks for the same class only of what it cannot convert; both are host storages to it.
    raw = source._untyped_storage if isinstance(source, torch.storage.TypedStorage) else source
    target = _place(self)
    origin = _place(raw)
    _copy(self, raw, bool(non_blocking))
    if target is not origin:
        ends = [placement.HOST if device is None else device.label for device in (origin, target)]
        direction: Direction = "between_devices"
        if target is None:
            direction = "to_host"
        elif origin is None:
            direction = "to_device"
        placement.record_copy(direction, as_bytes(raw), False, bool(non_blocking), *ends)
    return self


def _place(storage: Any) -> VirtualDevice | None:
    return storage._block.device if type(storage) is UntypedStorage else None


def _elsewhere(target: Any, storage: Any) -> RuntimeError:
    return RuntimeError(
        f'Attempted to set the storage of a tensor on device "{target.device}" to a storage on different device '
        f'"{storage.device}".  This is no longer allowed; the devices must match.'
    )


def _set_on_host(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`x.set_(storage)`; raises RuntimeError if a host tensor is given a storage of the device.

    C++ takes such a storage for the host's.
    """
    source = args[0] if args else kwargs.get("source")
    raw = source._untyped_storage if isinstance(source, torch.storage.TypedStorage) else source
    if type(raw) is UntypedStorage and not isinstance(self, Tensor):
        raise _elsewhere(self, raw)
    return host_set(self, *args, **kwargs)


def _set_(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::set_`: give a device tensor other memory.

    Raises RuntimeError for memory on another device.
    """
    target, source, *rest = args
    storage = storage_of(source) if isinstance(source, Tensor) and rest else source
    if (
        isinstance(storage, torch.Tensor) is not isinstance(storage, Tensor)
        or storage.device != target.device
    ):
        raise _elsewhere(target, storage)
    device = require_open_device(target)
    host_set(
        target._inner, storage._inner if isinstance(storage, Tensor) else storage, *rest, **kwargs
    )
    target._block = storage._block
    if not isinstance(storage, Tensor):
        record_operation(str(func), device, 0)
    update_shell(target)
    return target


def _set_nothing(func: Any, args: Any, kwargs: Any) -> Any:
    (target,) = args
    target._inner.set_()
    target._block = allocate(target._block.device, 0)
    update_shell(target)
    return target


operator("set_", plan=_set_nothing)
operator("set_.source_Storage", "set_.source_Storage_storage_offset", plan=_set_)
operator("set_.source_Tensor", "set_.source_Tensor_storage_offset", plan=_set_)
# Asked by `x.data = y` of two device tensors; nothing runs on a device for it.
operator("_has_compatible_shallow_copy_type", plan=lambda func, args, kwargs: True)
# Asked by forward-mode differentiation, also of tensors on two devices.
operator("_has_same_storage_numel", plan=lambda func, args, kwargs: func(*placement.inner_of(args)))

# Forward-mode differentiation makes zeros that have no memory. The key that stands for them is off
# while an inner kernel runs, and the kernel would read from nowhere: the process dies. So they are
# real zeros here.
operator("_efficientzerotensor", kernel=aten.zeros.default)

Tensor.untyped_storage = storage_of  # type: ignore[method-assign,assignment]


_REQUIRES_GRAD: Final = 4  # where _rebuild_tensor_v2 and _v3 take it


def _reduce(self: Any, protocol: Any) -> Any:
    """What pickle saves of a device tensor: a function and its arguments.

    Replaces `Tensor.__reduce_ex__` and that of `Parameter`, because the tensor's class is not what
    it says. Raises DeviceClosed.
    """
    require_open_device(self)
    state = {name: value for name, value in self.__dict__.items() if name not in HIDDEN_IN_TENSORS}
    if isinstance(self, Parameter):
        given = (self.detach(), self.requires_grad, OrderedDict())  # type: ignore[var-annotated]
        if not state:
            return _rebuild_parameter, given
        return _rebuild_parameter_with_state, (*given, state)
    function, rebuilt = _parts(self, protocol)
    cls = student_class(type(self))
    if cls is torch.Tensor and not state:
        return function, rebuilt
    return _rebuild_from_type, (function, cls, rebuilt, state)


def _parts(tensor: Any, protocol: Any) -> Any:
    """The function and the arguments that rebuild a tensor's values, without its class."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return _reduce_tensor(tensor, protocol)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    storage_of(tensor)  # from now on the storage behind the inner tensor says where it lives
    function, given = _reduce_tensor(tensor._inner.detach(), protocol)
    given = list(given)
    given[_REQUIRES_GRAD] = tensor.requires_grad
    return function, tuple(given)


Tensor.__reduce_ex__ = _reduce  # type: ignore[method-assign]


def _shared(tensor: Any) -> Any:
    """What another process is sent to see the same memory: a function and its arguments.

    That process needs the device, too. Raises DeviceClosed, and RuntimeError for a tensor with a
    history.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        # It refuses, in torch's own words.
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    device = require_open_device(tensor)
    inner = tensor._inner
    place_in_memory = inner.storage_offset(), inner.size(), inner.stride()
    return _taken_in, (
        *_as_of_the_host(inner.untyped_storage()),
        inner.dtype,
        place_in_memory,
        device.label,
        isinstance(tensor, Parameter),
        tensor.requires_grad,
    )


def _as_of_the_host(storage: Any) -> Any:
    """What another process is sent to see the memory of a storage.

    It is what torch sends for one of the host, also where this one says that it is on the device.
    """
    kind = type(storage)
    storage.__class__ = _Base
    try:
        return torch.multiprocessing.reductions.reduce_storage(storage)
    finally:
        storage.__class__ = kind


def _taken_in(
    rebuild: Any,
    shared: Any,
    dtype: torch.dtype,
    where: Any,
    label: str,
    parameter: bool,
    requires_grad: bool,
) -> Any:
    """The device tensor that another process has sent.

    Raises RuntimeError where this process has no virtual device open.
    """
    device = open_device_named(label)
    if device is None:
        raise RuntimeError(
            f"a tensor of {label} was received, but this process has no virtual CUDA device open"
        )
    inner = host_set(torch.empty(0, dtype=dtype, device="cpu"), rebuild(*shared), *where)
    tensor, _ = wrap_result(inner, device, {})
    return (
        torch.nn.Parameter(tensor, requires_grad)
        if parameter
        else tensor.requires_grad_(requires_grad)
    )


for _kind in (Tensor, Parameter):
    ForkingPickler.register(_kind, _shared)


def _set_metadata(original: Any, tensor: Any, metadata: Any) -> None:
    """Give a tensor that was loaded its conjugate and negative bits."""
    if type(tensor) in VIRTUAL:
        original(tensor._inner, metadata)
    original(tensor, metadata)


def _wrapped(original: Any, self: Any, storage: Any) -> Any:
    """A typed storage like `self` around an untyped one."""
    if type(storage) is not UntypedStorage:
        return original(self, storage)
    typed: Any = torch.storage.TypedStorage
    if type(self) is typed:
        return typed(wrap_storage=storage, dtype=self.dtype, _internal=True)
    return type(self)(wrap_storage=storage)


def _share_cuda(original: Any, self: Any, *args: Any) -> Any:
    if type(self) is not UntypedStorage:
        raise RuntimeError("_share_cuda_: only available on CUDA")
    return original(self, *args)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of storages, DLPack and loading."""
    yield around(torch.storage.TypedStorage, "_new_wrapped_storage", _wrapped)
    dlpack: Any = torch.utils.dlpack
    for home in (torch, dlpack):
        yield around(home, "from_dlpack", _from_dlpack)
        yield around(home, "to_dlpack", _to_dlpack)
    yield torch.UntypedStorage, "__new__", staticmethod(_make)
    yield torch.UntypedStorage, "copy_", _copy_
    yield torch.Tensor, "set_", _set_on_host
    yield around(torch.UntypedStorage, "_share_cuda_", _share_cuda)
    for name in ("_is_cow_tensor", "_storage_address", "_data_address"):
        yield around(
            torch._C,
            name,
            lambda original, tensor: original(hidden_attribute(tensor, "_inner", tensor)),
        )
    yield around(find_internal("torch._utils"), "set_tensor_metadata", _set_metadata)
    yield around(
        torch, "is_storage", lambda original, obj: type(obj) is UntypedStorage or original(obj)
    )
