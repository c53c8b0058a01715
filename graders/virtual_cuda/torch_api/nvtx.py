"""NVTX and the CUDA profiler, on a machine where no tool listens."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.cuda.nvtx
import torch.cuda.profiler

from virtual_cuda.patching import Opening, Patch, torch_patches

_NO_TRACKING: Final = -2  # NVTX_NO_PUSH_POP_TRACKING
# NVTX's library when no tool listens.
_LIBRARY: Final = types.SimpleNamespace(
    rangePushA=lambda message: _NO_TRACKING,
    rangePop=lambda: _NO_TRACKING,
    rangeStartA=lambda message: 0,
    rangeEnd=lambda range_id: None,
    markA=lambda message: None,
    deviceRangeStart=lambda message, stream: object(),
    deviceRangeEnd=lambda handle, stream: None,
)


def _enter_emit(emit: Any) -> Any:
    """`emit_nvtx.__enter__`: waits for the device, and notes that it was entered.

    Returns the context, None if it is disabled. Raises RuntimeError if it was entered before, and
    what a wait raises.
    """
    if not emit.enabled:
        return None
    if emit.entered:
        raise RuntimeError("NVTX annotation context manager is not reentrant")
    emit.entered = True
    torch.cuda.synchronize()
    return emit


def _exit_emit(emit: Any, *error: Any) -> Any:
    """`emit_nvtx.__exit__`: waits for the device; False, so that errors of the block are raised.

    Raises what a wait raises.
    """
    if not emit.enabled:
        return None
    torch.cuda.synchronize()
    return False


@torch_patches()
def _nvtx_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of NVTX and the CUDA profiler."""
    yield torch.cuda.nvtx, "_nvtx", _LIBRARY
    yield torch.autograd.profiler.emit_nvtx, "__enter__", _enter_emit
    yield torch.autograd.profiler.emit_nvtx, "__exit__", _exit_emit
    yield torch.cuda.profiler, "start", lambda: None
    yield torch.cuda.profiler, "stop", lambda: None
