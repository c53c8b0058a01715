"""Which host tensors are page-locked? Pinning is recorded, not done: there is no device to lock pages for."""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch

_pinned: Final[dict[int, Any]] = {}


def is_pinned(tensor: torch.Tensor) -> bool:
    if not _pinned:
        return False
    kept = _pinned.get(tensor.untyped_storage()._cdata)
    return kept is not None and kept() is not None


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A pinned copy, or the tensor itself if it is pinned already."""
    if is_pinned(tensor):
        return tensor
    copy = tensor.detach().clone(memory_format=torch.preserve_format)
    _remember(copy)
    return copy


def _remember(tensor: torch.Tensor) -> None:
    storage: Any = tensor.untyped_storage()
    key = storage._cdata
    # The storage object is kept by the tensor, so that the weak reference lives exactly as long as the memory.
    tensor._pinned_storage = storage  # type: ignore[attr-defined]
    _pinned[key] = weakref.ref(storage, lambda _: _pinned.pop(key, None))


def forget_all() -> None:
    _pinned.clear()
