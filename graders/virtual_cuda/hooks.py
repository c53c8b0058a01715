"""For graders: what a program needs that watches other code on a device.

docs/virtual-cuda.md says what each name is for. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from virtual_cuda.lazy_names import find_lazily

if TYPE_CHECKING:
    from virtual_cuda.__main__ import run_script as run_script
    from virtual_cuda.clock.advice import what_limits as what_limits
    from virtual_cuda.clock.gpu_models import USUAL_GPU as USUAL_GPU
    from virtual_cuda.clock.lanes import CYCLES_PER_SECOND as CYCLES_PER_SECOND
    from virtual_cuda.clock.to_scale import lanes_to_scale as lanes_to_scale
    from virtual_cuda.clock.to_scale import modelled_trace as modelled_trace
    from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS as HIDDEN_IN_TENSORS
    from virtual_cuda.device.tensor import Parameter as Parameter
    from virtual_cuda.device.tensor import Tensor as Tensor
    from virtual_cuda.device.tensor import operator_hooks as operator_hooks
    from virtual_cuda.device_kinds import DEVICE_CHOICES as DEVICE_CHOICES
    from virtual_cuda.device_kinds import DEVICE_KINDS as DEVICE_KINDS
    from virtual_cuda.device_kinds import DEVICE_TYPES as DEVICE_TYPES
    from virtual_cuda.device_kinds import REAL_GPUS as REAL_GPUS
    from virtual_cuda.devices import choose_device as choose_device
    from virtual_cuda.devices import keep_patches as keep_patches
    from virtual_cuda.estimate.command import run_estimate as run_estimate
    from virtual_cuda.imported_names import patch_imported_names as patch_imported_names
    from virtual_cuda.libraries import from_library as from_library
    from virtual_cuda.libraries import installed_folders as installed_folders
    from virtual_cuda.modelled_time import ModelledTime as ModelledTime
    from virtual_cuda.modelled_time import modelled_time as modelled_time
    from virtual_cuda.patching import Patch as Patch
    from virtual_cuda.patching import find_patch as find_patch
    from virtual_cuda.patching import patch as patch
    from virtual_cuda.real import device_count as device_count
    from virtual_cuda.real import device_failure as device_failure
    from virtual_cuda.real import limit_memory as limit_memory
    from virtual_cuda.recorder import nothing_above as nothing_above
    from virtual_cuda.sizes import ITEM_SIZES as ITEM_SIZES
    from virtual_cuda.sizes import format_size as format_size
    from virtual_cuda.sizes import parse_size as parse_size
    from virtual_cuda.torch_api.compatibility import default_device as default_device
    from virtual_cuda.torch_api.compatibility import forget_default_device as forget_default_device
    from virtual_cuda.torch_api.other_machines import no_accelerator as no_accelerator
    from virtual_cuda.torch_api.other_machines import virtual_mps as virtual_mps
    from virtual_cuda.torch_api.unrecorded_writes import WriteWatch as WriteWatch
    from virtual_cuda.torch_api.unrecorded_writes import watch_writes as watch_writes

# The module of this package in which each name is defined.
_HOMES: Final = {
    "CYCLES_PER_SECOND": "clock.lanes",
    "DEVICE_CHOICES": "device_kinds",
    "DEVICE_KINDS": "device_kinds",
    "DEVICE_TYPES": "device_kinds",
    "HIDDEN_IN_TENSORS": "device.hidden_names",
    "ITEM_SIZES": "sizes",
    "ModelledTime": "modelled_time",
    "Parameter": "device.tensor",
    "Patch": "patching",
    "REAL_GPUS": "device_kinds",
    "Tensor": "device.tensor",
    "USUAL_GPU": "clock.gpu_models",
    "WriteWatch": "torch_api.unrecorded_writes",
    "choose_device": "devices",
    "default_device": "torch_api.compatibility",
    "device_count": "real",
    "device_failure": "real",
    "find_patch": "patching",
    "forget_default_device": "torch_api.compatibility",
    "format_size": "sizes",
    "from_library": "libraries",
    "installed_folders": "libraries",
    "keep_patches": "devices",
    "lanes_to_scale": "clock.to_scale",
    "limit_memory": "real",
    "modelled_time": "modelled_time",
    "modelled_trace": "clock.to_scale",
    "no_accelerator": "torch_api.other_machines",
    "nothing_above": "recorder",
    "operator_hooks": "device.tensor",
    "parse_size": "sizes",
    "patch": "patching",
    "patch_imported_names": "imported_names",
    "run_estimate": "estimate.command",
    "run_script": "__main__",
    "virtual_mps": "torch_api.other_machines",
    "watch_writes": "torch_api.unrecorded_writes",
    "what_limits": "clock.advice",
}
__all__ = list(_HOMES)
if not TYPE_CHECKING:
    # A type checker that saw it would take every name for one that is there.
    __getattr__ = find_lazily(__name__, _HOMES)
