"""Tensors without values, for runs that only ask how much memory and time a program needs.

On the device, the inner tensor is then one of torch's device "meta": it has a shape, a dtype and
strides. On the host, a tensor without values is an ordinary tensor of zeros. Its memory is that of
a mapping which nobody has written to, so that it takes none, and its storage is noted here.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.state import META, Assumption, now
from virtual_cuda.internals import find_internal
from virtual_cuda.recorder import site

# Tensors of the host that are made by a factory have values up to so many bytes.
LARGE: Final = 4 << 20
# Refers to a storage without keeping it alive; as long as there is one, no other storage gets its
# address.
_StorageReference: Final = find_internal(
    "torch.multiprocessing.reductions.StorageWeakRef", "a run without values"
)
_prints: Final[list[Any]] = []  # tensors that are made into texts, one inside another
_MANY_NOTED: Final = 4096
WHAT_IS_READ: Final = "read a value that is not known, and got 0"
WHAT_IS_READ_FROM_ZEROS: Final = "read a value that is not known, and got what zeros lead to"


class _StoragesWithoutValues:
    """The storages of the host that have no values."""

    def __init__(self) -> None:
        """Begin with none."""
        self.by_address: dict[int, Any] = {}
        self.most = _MANY_NOTED  # are kept before those of storages that are gone are removed

    def add(self, storage: Any) -> None:
        """Note a storage."""
        if len(self.by_address) >= self.most:
            for address, reference in list(self.by_address.items()):
                if reference.expired():
                    del self.by_address[address]
            self.most = max(_MANY_NOTED, 2 * len(self.by_address))
        self.by_address[storage._cdata] = _StorageReference(storage)

    def has(self, storage: Any) -> bool:
        """True for a storage that was noted."""
        return storage._cdata in self.by_address


_storages: Final = _StoragesWithoutValues()


def note_assumption(what: str) -> None:
    """Note for the report what a program did with a value that was not there, and on which line."""
    gpu = now.gpu
    if gpu is not None:
        code, offset = site()
        gpu.assumptions.append(Assumption(what, code, offset))


def note_read(is_zero: bool = True) -> None:
    """Note that the program reads a value, and gets 0, or else what zeros have led to."""
    note_assumption(WHAT_IS_READ if is_zero else WHAT_IS_READ_FROM_ZEROS)


def is_printing() -> bool:
    """True while a tensor is made into a text."""
    return bool(_prints)


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Note whatever values are read inside the `with` block as one line that prints them.

    In a run without values, that replaces what else is noted there for the report; otherwise
    nothing is done.
    """
    gpu = now.gpu
    if gpu is None or gpu.values:
        yield
        return
    count = len(gpu.assumptions)
    _prints.append(gpu)
    try:
        yield
    finally:
        _prints.pop()
    if len(gpu.assumptions) > count:
        del gpu.assumptions[count:]
        note_assumption("printed a tensor that has no values, as zeros")


# ---- tensors of the host -------------------------------------------------------------------------


def lacks_values(tensor: Any) -> bool:
    """True for a tensor of the host that has no values."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    return _storages.has(tensor.untyped_storage())


def forget_values(tensor: torch.Tensor) -> None:
    """Note that a tensor of the host has no values from now on, nor any other of its storage."""
    if tensor.layout is torch.strided:
        _storages.add(tensor.untyped_storage())


def shape_only(tensor: Any) -> Any:
    """A tensor of "meta" with the shape, strides and dtype of a tensor; other values unchanged."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        return tensor
    if tensor.layout is not torch.strided:
        return tensor.to(META)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def on_host_without_values(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the host with the shape, strides and dtype of one of "meta"; all are zeros.

    If it is strided, it is noted that it has no values, and a large one takes no memory.
    """
    if tensor.layout is not torch.strided:
        return torch.zeros(tensor.shape, dtype=tensor.dtype, layout=tensor.layout)
    nbytes = tensor.untyped_storage().nbytes()
    if nbytes < LARGE:
        count = math.ceil(nbytes / tensor.element_size())
        flat = torch.zeros(count, dtype=tensor.dtype)
    else:
        flat = torch.frombuffer(_unwritten_memory(nbytes), dtype=tensor.dtype)
    result = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    forget_values(result)
    return result


def _unwritten_memory(nbytes: int) -> mmap.mmap:
    """Memory that reads as zeros, and that the system hands out when it is first written to."""
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
