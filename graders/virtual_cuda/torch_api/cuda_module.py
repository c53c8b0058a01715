"""`torch.cuda` and `torch.accelerator` on a machine with virtual GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import forked_process_error, invalid_ordinal_error
from virtual_cuda.device.memory import Allocator
from virtual_cuda.device.state import VirtualGpu, index_of
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import placement
from virtual_cuda.patching import Opening, Patch, if_present, torch_patches
from virtual_cuda.torch_api.device_properties import (
    CudaDeviceProperties,
    capability_of,
    properties_of,
)

_index_of_accelerator: Final = find_internal(
    "torch.accelerator._utils._get_device_index", "torch.accelerator.get_device_capability"
)
# Functions that start CUDA, unlike those that ask whether there is a device, and how many.
_STARTING: Final = frozenset(
    (
        "current_device",
        "set_device",
        "_exchange_device",
        "_maybe_exchange_device",
        "synchronize",
        "get_device_name",
        "get_device_properties",
        "get_device_capability",
        "mem_get_info",
        "can_device_access_peer",
        "set_per_process_memory_fraction",
        "_accelerator_exchangeDevice",
        "_accelerator_maybeExchangeDevice",
        "_accelerator_setDeviceIndex",
        "_accelerator_getDeviceIndex",
        "_cuda_getDevice",
        "_cuda_setDevice",
        "_cuda_synchronize",
    )
)
# Percent of the time, degrees Celsius, milliwatts, megahertz: an idle H200.
_SENSORS: Final = {
    "utilization": 0,
    "memory_usage": 0,
    "temperature": 30,
    "power_draw": 75_000,
    "clock_rate": 1980,
}


def allocator_of(gpu: VirtualGpu, device: Any = None) -> Allocator:
    """The memory of a device, by number or name.

    Raises RuntimeError for one that is not there, and ValueError for what names no device of CUDA.
    """
    index = index_of(gpu, device)
    if not 0 <= index < len(gpu.devices):
        raise RuntimeError(f"Invalid device argument {index}: did you call init?")
    return gpu.devices[index].memory


def _allocator_setting(name: str) -> str | None:
    """What the environment says of the caching allocator under a name, or None."""
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        settings = os.environ.get(variable, "")
        match = re.search(rf"(?:^|,)\s*{name}:([^,]+)", settings)
        if match is not None:
            return match[1].strip()
    return None


def sync_debug_mode(mode: Any) -> int:
    """The number of a mode of `torch.cuda.set_sync_debug_mode`: 0, 1 or 2.

    Raises RuntimeError for a mode that is none.
    """
    names = {"default": 0, "warn": 1, "error": 2}
    if isinstance(mode, str):
        if mode not in names:
            raise RuntimeError(
                "invalid value of debug_mode, expected one of `default`, `warn`, `error`"
            )
        return names[mode]
    if mode not in names.values():
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    return int(mode)


def _as_tree(statistics: dict[str, Any]) -> dict[str, Any]:
    """The statistics as the allocator itself hands them out: `a.b.c` is `["a"]["b"]["c"]`."""
    tree: dict[str, Any] = {}
    for path, value in statistics.items():
        *keys, name = path.split(".")
        branch = tree
        for key in keys:
            branch = branch.setdefault(key, {})
        branch[name] = value
    return tree


class Devices:
    """The functions of `torch.cuda` and `torch.accelerator` that ask about or choose a device.

    `torch.accelerator` and some functions in C++ share them.
    """

    def __init__(self, gpu: VirtualGpu) -> None:
        self.use_device(gpu)

    def use_device(self, gpu: VirtualGpu) -> None:
        """Answer for another device from now on.

        The fraction of memory that the environment sets is applied to it. Raises RuntimeError for a
        wrong fraction, and ValueError for what is no number.
        """
        self.gpu = gpu
        self.process = os.getpid()
        self.was_started = False  # by a function that starts CUDA, as the first tensor does
        self.capability = capability_of(gpu)
        fraction = _allocator_setting("per_process_memory_fraction")
        if fraction is None:
            return
        if not 0 <= float(fraction) <= 1:
            raise RuntimeError("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
        for device in gpu.devices:
            device.memory.allowed = int(device.memory.total * float(fraction))

    # ---- starting CUDA ----

    def start_cuda(self) -> None:
        """`torch.cuda.init`: note that CUDA was started.

        Raises RuntimeError in a process that was forked.
        """
        if os.getpid() != self.process:
            raise forked_process_error()
        self.was_started = True

    def is_initialized(self) -> bool:
        """`torch.cuda.is_initialized`: True if the program has used the device.

        Some programs set up each process's GPU only if it has not.
        """
        if os.getpid() != self.process:
            return False
        if self.was_started or self.gpu.host_memory.used:
            return True
        return any(device.memory.blocks_ever for device in self.gpu.devices)

    def _start_and_call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function that starts CUDA, and note that it was started.

        Gives and raises what the function does.
        """
        self.was_started = True
        return function(*args, **kwargs)

    def _start_cuda_by(self, functions: dict[str, Any]) -> dict[str, Any]:
        """The functions by name, with those that start CUDA noting that it has been started."""
        noting = dict(functions)
        for name in _STARTING & functions.keys():
            noting[name] = partial(self._start_and_call, functions[name])
        return noting

    # ---- choosing a device ----

    def _is_there(self, device: Any) -> bool:
        """True if there is a device with this number or name.

        Raises ValueError for what names no device of CUDA.
        """
        return 0 <= index_of(self.gpu, device) < len(self.gpu.devices)

    def _require_device(self, device: Any) -> None:
        """Raise CUDA's error for a device that is not there."""
        if not self._is_there(device):
            raise invalid_ordinal_error()

    def set_device(self, device: Any) -> None:
        """`torch.cuda.set_device`: make a device the current one; a negative number is ignored.

        CUDA counts as started from then on. Raises CUDA's error for a device that is not there,
        ValueError for what names none, and RuntimeError in a forked process.
        """
        self.start_cuda()
        self.exchange_device(index_of(self.gpu, device))

    def exchange_device(self, index: int) -> int:
        """Make a device the current one; returns the number of the one before.

        A negative number changes nothing. Raises CUDA's error for one that is not there.
        """
        before = self.gpu.current
        if index >= 0:
            self._require_device(index)
            self.gpu.current = index
        return before

    def synchronize_device(self, device: Any = None) -> None:
        """Wait for a device: notes an explicit wait in the ledger.

        Raises CUDA's error for a device that is not there, ValueError for what names none, and
        RuntimeError at a wait that is refused or tells of a failed kernel.
        """
        self._require_device(device)
        # torch makes that GPU the current one, too.
        before = self.exchange_device(index_of(self.gpu, device))
        try:
            placement.record_waits("synchronize", explicit=True)
        finally:
            self.exchange_device(before)

    # ---- what a device is ----

    def properties(self, device: Any = None) -> CudaDeviceProperties:
        """`torch.cuda.get_device_properties`; raises AssertionError for a wrong number."""
        if not self._is_there(device):
            raise AssertionError("Invalid device id")
        return properties_of(self.gpu)

    def device_capability(self, device: Any = None) -> tuple[int, int]:
        """`torch.cuda.get_device_capability`; raises AssertionError for a wrong number."""
        self.properties(device)
        return self.capability

    def supported_dtypes(self, index: int) -> dict[str, Any]:
        """What `torch.accelerator.get_device_capability` tells: CUDA can hold every dtype.

        Raises CUDA's error for a device that is not there.
        """
        self._require_device(index)
        dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
        return {"supported_dtypes": dtypes}

    def accelerator_capability(self, device: Any = None, /) -> dict[str, Any]:
        """`torch.accelerator.get_device_capability`.

        torch's own would remember the answer beyond the virtual device.
        """
        return self.supported_dtypes(_index_of_accelerator(device, optional=True))

    def can_access_peer(self, device: Any, peer_device: Any) -> bool:
        """`torch.cuda.can_device_access_peer`: True for two different devices.

        Raises AssertionError for a wrong number, and ValueError for what names no device.
        """
        if not self._is_there(device):
            raise AssertionError("Invalid device id")
        if not self._is_there(peer_device):
            raise AssertionError("Invalid peer device id")
        return index_of(self.gpu, device) != index_of(self.gpu, peer_device)

    def sensor_value(self, value: int, device: Any = None) -> int:
        """The value of a sensor; raises AssertionError for a device that is not there."""
        self.properties(device)
        return value

    # ---- memory ----

    def memory_of(self, device: Any = None) -> Allocator:
        """The memory of a device; raises RuntimeError for one that is not there."""
        return allocator_of(self.gpu, device)

    def set_memory_fraction(self, fraction: Any, device: Any = None) -> None:
        """`torch.cuda.set_per_process_memory_fraction`: limit the memory that a device gives.

        Raises TypeError and ValueError for what is no fraction, and RuntimeError for a device that
        is not there.
        """
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if fraction < 0 or fraction > 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        memory = self.memory_of(device)
        memory.allowed = int(memory.total * fraction)

    def memory_fraction(self, device: Any = None) -> float:
        """`torch.cuda.get_per_process_memory_fraction`; raises RuntimeError for a wrong device."""
        memory = self.memory_of(device)
        return memory.allowed / memory.total

    def empty_caches(self) -> None:
        """Give the cached memory of all devices back to the driver."""
        for device in self.gpu.devices:
            device.memory.empty_cache()

    def free_and_total(self, device: Any = None) -> tuple[int, int]:
        """`torch.cuda.mem_get_info`, which asks the driver: free bytes, and all.

        Raises CUDA's error for a device that is not there, and ValueError for what names none.
        """
        self._require_device(device)
        memory = self.memory_of(device)
        return memory.free, memory.total

    def list_processes(self, device: Any = None) -> str:
        """`torch.cuda.list_gpu_processes`: this process, and the memory that it uses, as a text.

        Raises RuntimeError for a device that is not there, and ValueError for what names none.
        """
        megabytes = self.memory_of(device).reserved / 2**20
        index = index_of(self.gpu, device)
        process = os.getpid()
        return f"GPU:{index}\nprocess {process:>10d} uses {megabytes:>12.3f} MB GPU memory"

    def set_sync_debug(self, debug_mode: Any) -> None:
        """`torch.cuda.set_sync_debug_mode`; raises RuntimeError for a mode that is none."""
        self.gpu.sync_debug = sync_debug_mode(debug_mode)

    # ---- all functions by their names in torch ----

    def _shared_functions(self) -> dict[str, Any]:
        """Functions that `torch.cuda` and `torch.accelerator` both have; made anew at each call."""
        return {
            "is_available": lambda: True,
            "device_count": lambda: len(self.gpu.devices),
            "synchronize": self.synchronize_device,
            "memory_allocated": lambda device=None: self.memory_of(device).live,
            "max_memory_allocated": lambda device=None: self.memory_of(device).peak,
            "memory_reserved": lambda device=None: self.memory_of(device).reserved,
            "max_memory_reserved": lambda device=None: self.memory_of(device).peak_reserved,
            "reset_peak_memory_stats": lambda device=None: self.memory_of(device).reset_peaks(),
            "reset_accumulated_memory_stats": lambda device=None: self.memory_of(
                device
            ).reset_totals(),
            "memory_stats": lambda device=None: self.memory_of(device).statistics(),
        }

    def _cuda_functions(self) -> dict[str, Any]:
        """The functions of `torch.cuda`, and one value."""
        functions = {
            **self._shared_functions(),
            "get_device_capability": self.device_capability,
            "current_device": lambda: self.gpu.current,
            "set_device": self.set_device,
            "_exchange_device": self.exchange_device,
            "_maybe_exchange_device": self.exchange_device,
            "_lazy_init": self.start_cuda,
            "init": self.start_cuda,
            "is_initialized": self.is_initialized,
            # torch would keep it until CUDA starts.
            "_lazy_call": lambda callable, **kwargs: callable(),
            # Checkpointing asks here whether the device has generators to restore.
            "_initialized": True,
            "_is_in_bad_fork": lambda: os.getpid() != self.process,
            "get_device_name": lambda device=None: self.properties(device).name,
            "get_device_properties": self.properties,
            "is_bf16_supported": lambda including_emulation=True: (
                including_emulation or self.capability >= (8, 0)
            ),
            "is_tf32_supported": lambda: self.capability >= (8, 0),
            "get_arch_list": lambda: ["sm_{}{}".format(*self.capability)],
            "can_device_access_peer": self.can_access_peer,
            "set_sync_debug_mode": self.set_sync_debug,
            "get_sync_debug_mode": lambda: self.gpu.sync_debug,
            "mem_get_info": self.free_and_total,
            "set_per_process_memory_fraction": self.set_memory_fraction,
            "get_per_process_memory_fraction": self.memory_fraction,
            "memory_stats_as_nested_dict": lambda device=None: _as_tree(
                self.memory_of(device).statistics()
            ),
            "ipc_collect": lambda: None,
            "list_gpu_processes": self.list_processes,
            "get_allocator_backend": lambda: _allocator_setting("backend") or "native",
            "device_memory_used": lambda device=None: self.memory_of(device).reserved,
        }
        for name, value in _SENSORS.items():
            functions[name] = partial(self.sensor_value, value)
        return functions

    def _accelerator_functions(self) -> dict[str, Any]:
        """The functions of `torch.accelerator`."""
        return {
            **self._shared_functions(),
            "get_device_capability": self.accelerator_capability,
            # torch.cuda has its own, which a history of memory shows.
            "empty_cache": self.empty_caches,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: self.gpu.current,
            "current_device_idx": lambda: self.gpu.current,
            "get_memory_info": lambda device=None: (
                self.memory_of(device).free,
                self.memory_of(device).total,
            ),
        }

    def _accelerator_functions_in_cpp(self) -> dict[str, Any]:
        """What `torch.accelerator` calls in C++."""
        return {
            "_accelerator_exchangeDevice": self.exchange_device,
            "_accelerator_maybeExchangeDevice": self.exchange_device,
            "_accelerator_setDeviceIndex": self.set_device,
            "_accelerator_getDeviceIndex": lambda: self.gpu.current,
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_getDeviceCapability": self.supported_dtypes,
        }

    def _cuda_functions_in_cpp(self) -> dict[str, Any]:
        """What a build with CUDA has in C++; a build without gets it, too."""
        return {
            "_cuda_getDevice": lambda: self.gpu.current,
            "_cuda_setDevice": self.exchange_device,
            "_cuda_synchronize": self.synchronize_device,
            "_cuda_emptyCache": self.empty_caches,
            "_cuda_memoryStats": lambda index: _as_tree(self.memory_of(index).statistics()),
            "_cuda_resetPeakMemoryStats": lambda index: self.memory_of(index).reset_peaks(),
            "_cuda_resetAccumulatedMemoryStats": lambda index: self.memory_of(index).reset_totals(),
            "_cuda_attach_out_of_memory_observer": lambda observer: self.gpu.oom_observers.append(
                observer
            ),
            "_cuda_getCurrentBlasHandle": lambda: id(self.gpu),
            "_cuda_getCurrentSolverHandle": lambda: id(self.gpu) + 8,
            "_cuda_getDeviceCount": lambda: len(self.gpu.devices),
            "_cuda_cudaCachingAllocator_enable": lambda enabled: None,
            "_CudaDeviceProperties": CudaDeviceProperties,
        }

    def patches(self) -> Iterator[Patch]:
        """The patches of `torch.cuda`, `torch.accelerator` and the functions of C++ they call.

        What a build with CUDA has is added where it is missing; of the rest, what this release
        lacks is left out.
        """
        cuda = self._start_cuda_by(self._cuda_functions())
        for name, function in self._start_cuda_by(self._cuda_functions_in_cpp()).items():
            yield torch._C, name, function
        for name, function in cuda.items():
            yield torch.cuda, name, function
            yield if_present(torch.cuda.memory, name, function)
        for name, function in self._accelerator_functions().items():
            yield if_present(torch.accelerator, name, function)
        in_cpp = self._start_cuda_by(self._accelerator_functions_in_cpp())
        for name, function in in_cpp.items():
            yield if_present(torch._C, name, function)


def _is_acceptable_for_cudnn(tensor: Any) -> bool:
    """`torch.backends.cudnn.is_acceptable`."""
    if not torch.backends.cudnn.enabled or not tensor.is_cuda:
        return False
    return tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


@torch_patches()
def _cuda_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of `torch.cuda`, of cuDNN, and of what tells of a build with CUDA.

    `opening` is told to answer for each later device. Raises RuntimeError where the environment
    sets a wrong fraction of memory.
    """
    devices = Devices(opening.gpu)
    opening.on_next_device.append(devices.use_device)
    yield from devices.patches()
    yield torch.backends.cuda, "is_built", lambda: True
    yield torch.version, "cuda", torch.version.cuda or "13.0"
    yield torch.backends.cudnn, "is_available", lambda: True
    yield torch.backends.cudnn, "version", lambda: 91900
    yield torch.backends.cudnn, "is_acceptable", _is_acceptable_for_cudnn
    # If True, torch would ask for cuDNN's layout of the weights.
    yield torch, "_use_cudnn_rnn_flatten_weight", lambda: False
