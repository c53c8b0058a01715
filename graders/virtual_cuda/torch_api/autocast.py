"""Patches of autocast: the ledger knows its dtype, and weights that were cast are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from virtual_cuda.ops.autocast import forget_cast_weights
from virtual_cuda.ops.dispatch import thread_state
from virtual_cuda.patching import Opening, Patch, around, torch_patches
from virtual_cuda.recorder import autocast_patches


def _clear_both_caches(original: Callable[[], None]) -> None:
    """Forget the weights that were cast, in torch's cache, by `original`, and in ours."""
    forget_cast_weights()
    original()


@torch_patches()
def _autocast_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of autocast. Cast weights are also forgotten when the device closes."""
    opening.on_close.append(forget_cast_weights)
    yield from autocast_patches(thread_state, "cuda")
    yield around(torch, "clear_autocast_cache", _clear_both_caches)
