"""Storages on the device: the memory behind tensors, `untyped_storage()`, `set_`, `data_ptr`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.hidden import hidden_attribute
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
from virtual_cuda.device.state import CUDA, META, Block, VirtualDevice, find_open_device, now
from virtual_cuda.device.tensor import Tensor, update_shell, wrap
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import placement
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    record_operation,
    require_open_device,
)
from virtual_cuda.ops.registry import operator
from virtual_cuda.ops.whole_kernels import run_write_in_hooks
from virtual_cuda.patching import Opening, Patch, around, torch_patches

aten: Final = torch.ops.aten
_HostStorage: Final[Any] = torch.UntypedStorage
# The class in C that torch.UntypedStorage adds its methods to.
_StorageInC: Final[Any] = _HostStorage.__mro__[1]
_copy_on_host: Final = _StorageInC.copy_
_device_in_c: Final = _StorageInC.device.__get__  # the host, or "meta" without values
host_set: Final[Any] = torch.Tensor.set_
_is_lazy_clone: Final = find_internal("torch._C._is_cow_tensor", otherwise=lambda tensor: False)
_data_address: Final = find_internal("torch._C._data_address", "const_data_ptr of a lazy clone")
_set_from_file: Final = find_internal(
    "torch.UntypedStorage._set_from_file", "reading a storage from a file"
)


def _address_in(block: Block, offset: int) -> int:
    """The device's address of a byte in a block; 0 for a block without bytes.

    A block without an address is given one.
    """
    if not block.size:
        return 0
    return block.memory.make_layout().spot_of(block).address + offset


_attributes_of: Final = vars(torch.UntypedStorage)["__dict__"].__get__


class UntypedStorage(torch.UntypedStorage):
    """A storage on a virtual device."""

    # As in `Tensor`, whatever is put in their place in torch's class is not told of what is inside.
    __getattribute__ = object.__getattribute__
    __setattr__ = object.__setattr__

    _virtual_block: Block

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The attributes that a program has set; none of ours. It is a copy."""
        attributes = _attributes_of(self)
        return {name: attributes[name] for name in attributes if name not in HIDDEN_IN_TENSORS}

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA[self._virtual_block.device.index]

    def __getitem__(self, *args: Any, **kwargs: Any) -> Any:
        """A byte, for which the host waits; or for a slice a storage over the same memory.

        Raises IndexError for a place that is not there, and RuntimeError at a wait that is refused
        or tells of a failed kernel.
        """
        if not isinstance(args[0], slice):
            placement.record_waits("item")
            return _HostStorage.__getitem__(self, *args, **kwargs)
        part = _HostStorage.__getitem__(self, *args, **kwargs)
        return mark_as_on_device(part, self._virtual_block)

    def data_ptr(self) -> int:
        return _address_in(self._virtual_block, 0)

    def resize_(self, size: int) -> Any:
        """Give the storage another number of bytes, and its block as much memory; returns it.

        Raises torch's OutOfMemoryError.
        """
        super().resize_(size)
        self._virtual_block.resize(self.nbytes())
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
        return _HostStorage(0, device=self.device)

    def _write_file(self, *args: Any, **kwargs: Any) -> None:
        _HostStorage.cpu(self)._write_file(*args, **kwargs)

    def _set_from_file(self, *args: Any, **kwargs: Any) -> Any:
        """Fill the storage from a file, and return it; records the copy to the device.

        Raises what reading raises, and RuntimeError at a wait that is refused or tells of a failed
        kernel.
        """
        if has_no_memory(self):
            # What comes after it in the file is read next.
            _set_from_file(_HostStorage(self.nbytes()), *args, **kwargs)
            filled = self
        else:
            filled = _set_from_file(self, *args, **kwargs)
        device = self._virtual_block.device
        placement.record_copy(as_bytes(self), placement.HOST, device.label)
        return filled


UntypedStorage.__module__ = "torch.storage"


def mark_as_on_device(storage: Any, block: Block) -> Any:
    """Make a storage say that it is on the device, with its memory in `block`; returns it.

    Its class is changed for that.
    """
    if type(storage) is not UntypedStorage:
        storage.__class__ = UntypedStorage
    storage._virtual_block = block
    return storage


def storage_of(tensor: Any) -> Any:
    """`x.untyped_storage()`."""
    return mark_as_on_device(tensor._virtual_inner.untyped_storage(), tensor._virtual_block)


def data_ptr(tensor: Any) -> int:
    """`x.data_ptr()`."""
    inner = tensor._virtual_inner
    if not inner.numel():
        return 0
    offset = inner.storage_offset() * inner.element_size()
    return _address_in(tensor._virtual_block, offset)


# Of memory that lazy clones share: by its address on the host, the one on the device.
_shared_addresses: Final[dict[int, int]] = {}


def const_data_ptr(tensor: Any) -> int:
    """`x.const_data_ptr()`: unlike `data_ptr`, it leaves a lazy clone a clone."""
    inner = tensor._virtual_inner
    if not inner.numel() or not _is_lazy_clone(inner):
        return data_ptr(tensor)
    address = _shared_addresses[_data_address(inner)]
    return address + int(inner.storage_offset()) * int(inner.element_size())


def _run_lazy_clone(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::_lazy_clone`: a tensor that shares memory until one of the two is written to.

    The host's kernels copy it then. The operator is recorded, and the address of the shared memory
    is remembered. Raises DeviceClosed or the error of what ended the device, and torch's
    OutOfMemoryError.
    """
    (tensor,) = args
    device = require_open_device(tensor)
    inner = tensor._virtual_inner
    if not _is_lazy_clone(inner):
        _shared_addresses[inner.untyped_storage().data_ptr()] = _address_in(
            tensor._virtual_block, 0
        )
    clone = func(inner)
    block = allocate(device, inner.untyped_storage().nbytes())
    record_operation(str(func), device, 0)
    return wrap(clone, block)


operator("_lazy_clone", plan=_run_lazy_clone)


def has_no_memory(storage: Any) -> bool:
    """True for a storage of a device without values: it has a size alone."""
    is_meta: bool = _device_in_c(storage) == META
    return is_meta


def _is_on_meta(storage: Any) -> bool:
    """True for a storage on "meta" for the program, and not only inside of a run without values."""
    if type(storage) is UntypedStorage or not has_no_memory(storage):
        return False
    return now.gpu is None or now.gpu.values


def as_bytes(storage: Any) -> torch.Tensor:
    """A host tensor over the bytes of a storage, which it shares; a "meta" one for a size alone."""
    device = _device_in_c(storage)
    return host_set(torch.empty(0, dtype=torch.uint8, device=device), storage)  # type: ignore[no-any-return]


def _make_storage(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Make a storage, as `torch.UntypedStorage(..., device="cuda")` does; `cls` is that class.

    Raises DeviceClosed or the error of what ended the device, CUDA's error for a device that is not
    there, and torch's OutOfMemoryError.
    """
    if device is None:
        open_device = None
    else:
        open_device = find_open_device(device)
    if open_device is None:
        if device is not None:
            kwargs["device"] = device
        if cls is UntypedStorage:
            host_class = _HostStorage
        else:
            host_class = cls
        return _StorageInC.__new__(host_class, *args, **kwargs)
    if open_device.closed:
        raise closed_device_error(open_device)
    # A size, or the bytes themselves.
    if args:
        nbytes = args[0]
    else:
        nbytes = kwargs.get("size", 0)
    if not isinstance(nbytes, int):
        nbytes = len(nbytes)
    block = allocate(open_device, nbytes)
    if open_device.inside == META:
        storage = _StorageInC.__new__(_HostStorage, nbytes, device=META)
    else:
        storage = _StorageInC.__new__(_HostStorage, *args, **kwargs)
    return mark_as_on_device(storage, block)


def _untyped_storage_of(storage: Any) -> Any:
    """The untyped storage in a typed one; any other object as it is."""
    if isinstance(storage, torch.storage.TypedStorage):
        return storage._untyped_storage
    return storage


def _device_of_storage(storage: Any) -> VirtualDevice | None:
    """The device of a storage, or None if it is the host's."""
    if type(storage) is UntypedStorage:
        return storage._virtual_block.device
    return None


def _copy_storage(storage: Any, source: Any, non_blocking: Any = False) -> Any:
    """`storage.copy_(other)`: writes the bytes of `source` into the storage, and returns it.

    Records the copy where it leads from one device to another. Raises RuntimeError for another size
    and at a wait that is refused or tells of a failed kernel, and NotImplementedError for a source
    on "meta", which has no bytes.
    """
    # C++ asks for the same class only of what it cannot convert; both are host storages to it.
    untyped = _untyped_storage_of(source)
    if _is_on_meta(untyped):
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if not has_no_memory(storage) and not has_no_memory(untyped):
        run_write_in_hooks(functools.partial(_copy_on_host, storage, untyped, bool(non_blocking)))
    target = _device_of_storage(storage)
    origin = _device_of_storage(untyped)
    if target is origin:
        return storage
    placement.record_copy(
        as_bytes(untyped),
        placement.HOST if origin is None else origin.label,
        placement.HOST if target is None else target.label,
        non_blocking=bool(non_blocking),
    )
    return storage


def _storage_elsewhere_error(target: Any, storage: Any) -> RuntimeError:
    """The error for a tensor that is given a storage on another device."""
    return RuntimeError(
        f'Attempted to set the storage of a tensor on device "{target.device}" to a storage on '
        f'different device "{storage.device}".  This is no longer allowed; the devices must match.'
    )


def _set_on_host(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """`x.set_(storage)`; raises RuntimeError if a host tensor is given a storage of the device.

    C++ takes such a storage for the host's. Otherwise gives and raises what torch's own method
    does.
    """
    if args:
        source = args[0]
    else:
        source = kwargs.get("source")
    untyped = _untyped_storage_of(source)
    if type(untyped) is UntypedStorage and not isinstance(tensor, Tensor):
        raise _storage_elsewhere_error(tensor, untyped)
    return host_set(tensor, *args, **kwargs)


def _run_set_operator(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::set_`: give a device tensor the memory of a tensor or storage, and return it.

    `args` are the tensor, the source, and perhaps offset, size and strides. Raises RuntimeError for
    memory on another device, DeviceClosed or the error of what ended the device, and
    torch's OutOfMemoryError for a view that needs more memory.
    """
    target, source, *view = args
    if isinstance(source, Tensor) and view:
        source = storage_of(source)
    is_host_tensor = isinstance(source, torch.Tensor) and not isinstance(source, Tensor)
    if is_host_tensor or source.device != target.device:
        raise _storage_elsewhere_error(target, source)
    device = require_open_device(target)
    inner = target._virtual_inner
    if isinstance(source, Tensor):
        host_set(inner, source._virtual_inner, *view, **kwargs)
    else:
        host_set(inner, source, *view, **kwargs)
        record_operation(str(func), device, 0)
    target._virtual_block = source._virtual_block
    update_shell(target)
    return target


def _run_set_to_nothing(func: Any, args: Any, kwargs: Any) -> Any:
    """Run `aten::set_` without a source: the device tensor has no memory afterwards; returns it.

    Raises torch's OutOfMemoryError.
    """
    (target,) = args
    target._virtual_inner.set_()
    target._virtual_block = allocate(target._virtual_block.device, 0)
    update_shell(target)
    return target


operator("set_", plan=_run_set_to_nothing)
operator("set_.source_Storage", "set_.source_Storage_storage_offset", plan=_run_set_operator)
operator("set_.source_Tensor", "set_.source_Tensor_storage_offset", plan=_run_set_operator)
# Asked by `x.data = y` of two device tensors; nothing runs on a device for it.
operator("_has_compatible_shallow_copy_type", plan=lambda func, args, kwargs: True)
# Asked by forward-mode differentiation, also of tensors on two devices.
operator("_has_same_storage_numel", plan=lambda func, args, kwargs: func(*placement.inner_of(args)))

# Forward-mode differentiation makes zeros that have no memory. The key that stands for them is off
# while an inner kernel runs, and the kernel would read from nowhere: the process dies. So they are
# real zeros here.
operator("_efficientzerotensor", kernel=aten.zeros.default)

Tensor.untyped_storage = storage_of  # type: ignore[method-assign,assignment]


def _wrap_in_typed_storage(original: Any, typed: Any, storage: Any) -> Any:
    """A typed storage like `typed` around an untyped one; torch's own, by `original`, on a host."""
    if type(storage) is not UntypedStorage:
        return original(typed, storage)
    plain: Any = torch.storage.TypedStorage
    if type(typed) is plain:
        return plain(wrap_storage=storage, dtype=typed.dtype, _internal=True)
    return type(typed)(wrap_storage=storage)


def _share_cuda(original: Any, storage: Any, *args: Any) -> Any:
    """`UntypedStorage._share_cuda_`; raises RuntimeError for a storage of the host.

    Gives what `original`, torch's own, gives for one of the device.
    """
    if type(storage) is not UntypedStorage:
        raise RuntimeError("_share_cuda_: only available on CUDA")
    return original(storage, *args)


def _ask_inner_tensor(original: Any, tensor: Any) -> Any:
    """Call a function of C++ about memory, `original`, with the inner tensor of a device tensor.

    Any other value is handed on as it is. Gives the answer.
    """
    return original(hidden_attribute(tensor, "_virtual_inner", tensor))


def _is_storage(original: Any, obj: Any) -> bool:
    """`torch.is_storage`, the `original`, which knows storages of the device, too."""
    return type(obj) is UntypedStorage or original(obj)


@torch_patches()
def _storage_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of storages; what this torch lacks is left out."""
    yield around(torch.storage.TypedStorage, "_new_wrapped_storage", _wrap_in_typed_storage)
    yield torch.UntypedStorage, "__new__", staticmethod(_make_storage)
    yield torch.UntypedStorage, "copy_", _copy_storage
    yield around(torch.UntypedStorage, "_share_cuda_", _share_cuda)
    yield torch.Tensor, "set_", _set_on_host
    for name in ("_is_cow_tensor", "_storage_address", "_data_address"):
        yield around(torch._C, name, _ask_inner_tensor)
    yield around(torch, "is_storage", _is_storage)
