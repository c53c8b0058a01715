"""Where student code runs: the virtual CUDA device, a real device, or the plain CPU.

The names below are fetched when they are first asked for: torch comes with them, and much of this package (the
ledger, patching) is used by code that must not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virtual_cuda.device.context import virtual_cuda
    from virtual_cuda.device.state import VirtualGpu
    from virtual_cuda.devices import Bench, open
    from virtual_cuda.real.session import RealDevice, real_device
    from virtual_cuda.torch_api.mps import no_accelerator, virtual_mps

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
    "Bench": "devices",
    "open": "devices",
    "RealDevice": "real.session",
    "real_device": "real.session",
    "VirtualGpu": "device.state",
    "virtual_cuda": "device.context",
    "no_accelerator": "torch_api.mps",
    "virtual_mps": "torch_api.mps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
