"""Where student code runs: the virtual CUDA device, a real device, or the plain CPU.

The names below are fetched when they are first asked for: torch comes with them, and much of this package (the
ledger, patching) is used by code that must not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graders.bench.opening import Bench, open
    from graders.bench.real import RealDevice, real_device
    from graders.bench.virtual import VirtualGpu, virtual_cuda
    from graders.bench.virtual.mps import no_accelerator, virtual_mps

__all__ = [
    "Bench",
    "RealDevice",
    "VirtualGpu",
    "no_accelerator",
    "open",
    "real_device",
    "virtual_cuda",
    "virtual_mps",
]

_HOMES = {
    "Bench": "opening",
    "open": "opening",
    "RealDevice": "real",
    "real_device": "real",
    "VirtualGpu": "virtual",
    "virtual_cuda": "virtual",
    "no_accelerator": "virtual.mps",
    "virtual_mps": "virtual.mps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
