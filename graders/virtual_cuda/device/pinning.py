"""The tensors of the host that are pinned, and how one becomes so.

Pinned memory is host memory that the GPU can copy by itself, while the host goes on.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch

from virtual_cuda.device.state import CPU, now

# Weak references to pinned storages, by the address of the storage; emptied when the device closes.
pinned_storages: Final[dict[int, Any]] = {}
# address -> bytes that cudaHostRegister has pinned
registered_memory: Final[dict[int, int]] = {}

SPARSE_LAYOUTS: Final = frozenset(
    [
        torch.sparse_coo,
        torch.sparse_csr,
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
    ]
)


def parts_of_sparse(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that a sparse tensor is made of, its values last."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = [tensor.ccol_indices(), tensor.row_indices()]
    else:
        indices = [tensor.crow_indices(), tensor.col_indices()]
    return [*indices, tensor.values()]


def has_pinned_memory(tensor: torch.Tensor) -> bool:
    """True if the memory of a host tensor is pinned; of a sparse tensor, that of its values."""
    if not pinned_storages and not registered_memory:
        return False
    if tensor.layout in SPARSE_LAYOUTS:
        tensor = parts_of_sparse(tensor)[-1]
    storage = pinned_storages.get(tensor.untyped_storage()._cdata)
    if storage is not None and storage() is not None:
        return True
    for address, nbytes in registered_memory.items():
        offset = tensor.data_ptr() - address
        if 0 <= offset < nbytes:
            return True
    return False


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy with the same strides, or the tensor itself if it is pinned already.

    The copy is counted in the pinned memory of the open GPU.
    """
    if has_pinned_memory(tensor):
        return tensor
    if tensor.layout in SPARSE_LAYOUTS:
        return _pin_sparse(tensor)
    copy = tensor.clone(memory_format=torch.preserve_format)
    if tensor.is_nested:
        return count_pinned_memory(copy)
    strides = tensor.stride()
    if copy.stride() != strides:
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=CPU)
        copy.copy_(tensor)
    return count_pinned_memory(copy)


def _pin_sparse(tensor: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of pinned copies of the parts, which it keeps alive.

    The copies are counted in the pinned memory of the open GPU.
    """
    copies = [pin(part) for part in parts_of_sparse(tensor)]
    make: Any = torch.sparse_compressed_tensor
    options: dict[str, Any] = {"layout": tensor.layout}
    if tensor.layout is torch.sparse_coo:
        make = torch.sparse_coo_tensor
        options = {"is_coalesced": tensor.is_coalesced()}
    copy: torch.Tensor = make(*copies, tensor.shape, **options, check_invariants=False)
    copy._pinned_storage = copies  # type: ignore[attr-defined]
    return copy


def count_pinned_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Count the memory of a tensor as pinned until it is freed, and return the tensor.

    Nobody else may hold the tensor's memory yet. The tensor gets an attribute that keeps its
    storage.
    """
    storage: Any = tensor.untyped_storage()
    key = storage._cdata
    gpu = now.gpu
    if gpu is None:
        size = 0
    else:
        size = gpu.host_memory.take(storage.nbytes())

    def forget(_: object) -> None:
        pinned_storages.pop(key, None)
        if gpu is not None:
            gpu.host_memory.give(size)

    # The tensor keeps the storage object: the weak reference lives exactly as long as the memory.
    tensor._pinned_storage = storage  # type: ignore[attr-defined]
    pinned_storages[key] = weakref.ref(storage, forget)
    return tensor
