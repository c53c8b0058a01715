"""What do marks for a profiler of the device's maker do? Nothing, as on a GPU that no such profiler watches."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.cuda.nvtx
import torch.cuda.profiler

_NOT_TRACKED: Final = -2  # NVTX_NO_PUSH_POP_TRACKING: what the library answers when no tool listens


class _Unwatched:
    """NVTX's library without a tool."""

    def rangePushA(self, message: str) -> int:
        return _NOT_TRACKED

    def rangePop(self) -> int:
        return _NOT_TRACKED

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, range_id: int) -> None:
        return None

    def markA(self, message: str) -> None:
        return None

    def deviceRangeStart(self, message: str, stream: Any) -> Any:
        return object()

    def deviceRangeEnd(self, handle: Any, stream: Any) -> None:
        return None


def _enter(self: Any) -> Any:
    if not self.enabled:
        return None
    if self.entered:
        raise RuntimeError("NVTX annotation context manager is not reentrant")
    self.entered = True
    torch.cuda.synchronize()
    return self


def _leave(self: Any, *error: Any) -> Any:
    if not self.enabled:
        return None
    torch.cuda.synchronize()
    return False


def patches() -> list[tuple[Any, str, Any]]:
    emit: Any = torch.autograd.profiler.emit_nvtx
    return [
        (torch.cuda.nvtx, "_nvtx", _Unwatched()),
        (emit, "__enter__", _enter),
        (emit, "__exit__", _leave),
        (torch.cuda.profiler, "start", lambda: None),
        (torch.cuda.profiler, "stop", lambda: None),
    ]
