"""A CUDA device on a machine without a GPU, and a ledger of what code does there.

Real devices can be recorded in the same ledger.

The public API is `__all__` of this module, of `virtual_cuda.ledger` and of `virtual_cuda.hooks`
(for graders), and the classes of `virtual_cuda.errors`. All other modules are private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from virtual_cuda.lazy_names import find_lazily

if TYPE_CHECKING:
    from virtual_cuda.clock.gpu_models import Gpu as Gpu
    from virtual_cuda.clock.gpu_models import gpu_named as gpu_named
    from virtual_cuda.clock.gpu_models import gpus as gpus
    from virtual_cuda.clock.lanes import Times as Times
    from virtual_cuda.clock.lanes import times_of as times_of
    from virtual_cuda.device.state import VirtualGpu as VirtualGpu
    from virtual_cuda.devices import OpenDevice as OpenDevice
    from virtual_cuda.devices import open_device as open_device
    from virtual_cuda.devices import virtual_cuda as virtual_cuda
    from virtual_cuda.ledger import Ledger as Ledger
    from virtual_cuda.real import RealDevice as RealDevice
    from virtual_cuda.real import real_device as real_device

# The module of this package in which each name is defined.
_HOMES: Final = {
    "Gpu": "clock.gpu_models",
    "Ledger": "ledger",
    "OpenDevice": "devices",
    "RealDevice": "real",
    "Times": "clock.lanes",
    "VirtualGpu": "device.state",
    "gpu_named": "clock.gpu_models",
    "gpus": "clock.gpu_models",
    "open_device": "devices",
    "real_device": "real",
    "times_of": "clock.lanes",
    "virtual_cuda": "devices",
}
__all__ = list(_HOMES)
if not TYPE_CHECKING:
    # A type checker that saw it would take every name for one that is there.
    __getattr__ = find_lazily(__name__, _HOMES)
