"""A CUDA device on a machine without a GPU, and a ledger of what code does on it or on a real device.

The public API is `__all__` of this module, of `virtual_cuda.ledger` and the classes of `virtual_cuda.errors`. All other
modules are private. Names are imported when they are first used, so that `import virtual_cuda` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virtual_cuda.__main__ import run_script
    from virtual_cuda.clock.advice import what_limits
    from virtual_cuda.clock.gpu_models import Gpu, gpu_named, gpus
    from virtual_cuda.clock.lanes import Interval, Times, times_of
    from virtual_cuda.clock.to_scale import modelled_trace, scaled
    from virtual_cuda.device.state import VirtualGpu
    from virtual_cuda.device.tensor import Parameter, Tensor, device_classes, operators_run
    from virtual_cuda.devices import (
        OpenDevice,
        choose_device,
        keep_patches,
        open_device,
        virtual_cuda,
    )
    from virtual_cuda.ledger import Ledger
    from virtual_cuda.patching import Patch, class_watch, patch, patch_imported_names
    from virtual_cuda.real import (
        RealDevice,
        device_count,
        device_failure,
        limit_memory,
        real_device,
    )
    from virtual_cuda.recorder import from_library, nothing_above, site
    from virtual_cuda.sizes import format_size, parse_size
    from virtual_cuda.torch_api.graphs import CUDAGraph
    from virtual_cuda.torch_api.other_machines import no_accelerator, virtual_mps
    from virtual_cuda.torch_api.streams import AnyEvent, Event, Stream, record_wait, wait_patch

__all__ = [
    "AnyEvent",
    "CUDAGraph",
    "Event",
    "Gpu",
    "Interval",
    "Ledger",
    "OpenDevice",
    "Parameter",
    "Patch",
    "RealDevice",
    "Stream",
    "Tensor",
    "Times",
    "VirtualGpu",
    "choose_device",
    "class_watch",
    "device_classes",
    "device_count",
    "device_failure",
    "format_size",
    "from_library",
    "gpu_named",
    "gpus",
    "keep_patches",
    "limit_memory",
    "modelled_trace",
    "no_accelerator",
    "nothing_above",
    "open_device",
    "operators_run",
    "parse_size",
    "patch",
    "patch_imported_names",
    "real_device",
    "record_wait",
    "run_script",
    "scaled",
    "site",
    "times_of",
    "virtual_cuda",
    "virtual_mps",
    "wait_patch",
    "what_limits",
]

_NAMES = {
    "__main__": "run_script",
    "clock.gpu_models": "Gpu gpu_named gpus",
    "clock.advice": "what_limits",
    "clock.lanes": "Interval Times times_of",
    "clock.to_scale": "modelled_trace scaled",
    "device.state": "VirtualGpu",
    "torch_api.graphs": "CUDAGraph",
    "torch_api.streams": "AnyEvent Event Stream record_wait wait_patch",
    "device.tensor": "Parameter Tensor device_classes operators_run",
    "devices": "OpenDevice choose_device keep_patches open_device virtual_cuda",
    "ledger": "Ledger",
    "real": "RealDevice device_count device_failure limit_memory real_device",
    "recorder": "from_library nothing_above site",
    "sizes": "format_size parse_size",
    "torch_api.other_machines": "no_accelerator virtual_mps",
    "patching": "Patch class_watch patch patch_imported_names",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except (AttributeError, ImportError) as error:
        from virtual_cuda.errors import (
            torch_lacks,
        )  # not at the top: every pytest run imports this module

        raise torch_lacks(error) or error from error
    globals()[name] = found
    return found
