"""`torch.cuda` and NVTX on a machine with virtual GPUs."""

from __future__ import annotations

import os
import re
import types
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.cuda.nvtx
import torch.cuda.profiler

from virtual_cuda.clock.gpu_models import gpu_named
from virtual_cuda.device.cuda_errors import forked_process_error, invalid_ordinal_error
from virtual_cuda.device.memory import Allocator
from virtual_cuda.device.state import VirtualGpu, index_of
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import placement
from virtual_cuda.ops.layers import channels_last
from virtual_cuda.patching import Opening, Patch, around, torch_patches

_index_of_accelerator: Final = find_internal(
    "torch.accelerator._utils._get_device_index", "torch.accelerator.get_device_capability"
)
_backends: Final = find_internal("torch._C._ConvBackend", "torch._C._select_conv_backend")
CAPABILITY: Final = (9, 0)
_PROPERTIES: Final[dict[str, Any]] = {
    "major": CAPABILITY[0], "minor": CAPABILITY[1], "gcnArchName": "", "uuid": uuid.UUID(int=0),
    "is_integrated": 0, "is_multi_gpu_board": 0, "multi_processor_count": 132, "warp_size": 32,
    "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "regs_per_multiprocessor": 65536,
    "L2_cache_size": 60 << 20, "shared_memory_per_block": 49152, "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472, "pci_bus_id": 0, "pci_device_id": 0, "pci_domain_id": 0,
}  # fmt: skip


class _CudaDeviceProperties(types.SimpleNamespace):
    """What `torch.cuda.get_device_properties` returns; it is printed as torch prints it."""

    def __repr__(self) -> str:
        shown = ("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id")
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            + ", ".join(f"{name}={getattr(self, name)}" for name in shown)
            + f", L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


_CudaDeviceProperties.__module__ = "torch._C"


# Functions that start CUDA, unlike those that ask whether there is a device, and how many.
_STARTING: Final = frozenset(
    """
    current_device set_device _exchange_device _maybe_exchange_device synchronize get_device_name get_device_properties
    get_device_capability mem_get_info can_device_access_peer set_per_process_memory_fraction
    _accelerator_exchangeDevice _accelerator_maybeExchangeDevice _accelerator_setDeviceIndex _accelerator_getDeviceIndex
    _cuda_getDevice _cuda_setDevice _cuda_synchronize
    """.split()
)
# Percent of the time, degrees Celsius, milliwatts, megahertz: an idle H200.
_SENSORS: Final = {
    "utilization": 0,
    "memory_usage": 0,
    "temperature": 30,
    "power_draw": 75_000,
    "clock_rate": 1980,
}


def _properties(gpu: VirtualGpu) -> dict[str, Any]:
    """The properties of the GPU that was chosen; without one, those of an H200."""
    if gpu.model is None:
        return {**_PROPERTIES, **gpu_named("H200").properties}
    major, minor = gpu.model.capability
    return {
        **_PROPERTIES,
        **gpu.model.properties,
        "major": major,
        "minor": minor,
        "multi_processor_count": gpu.model.sms,
        "L2_cache_size": gpu.model.l2,
    }


def allocator_of(gpu: VirtualGpu, device: Any = None) -> Allocator:
    """The memory of a device, by number or name; raises RuntimeError for one that is not there."""
    index = index_of(gpu, device)
    if not 0 <= index < len(gpu.devices):
        raise RuntimeError(f"Invalid device argument {index}: did you call init?")
    return gpu.devices[index].memory


def _allocator_setting(name: str) -> str | None:
    """What the environment says of the caching allocator under a name, or None."""
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        said = os.environ.get(variable, "")
        if said and (found := re.search(rf"(?:^|,)\s*{name}:([^,]+)", said)) is not None:
            return found[1].strip()
    return None


def sync_debug_mode(mode: Any) -> int:
    """The number of a mode of `torch.cuda.set_sync_debug_mode`; raises what that raises."""
    names = {"default": 0, "warn": 1, "error": 2}
    if isinstance(mode, str) and mode not in names:
        raise RuntimeError(
            "invalid value of debug_mode, expected one of `default`, `warn`, `error`"
        )
    if not isinstance(mode, str) and mode not in names.values():
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    return names[mode] if isinstance(mode, str) else int(mode)


def _as_tree(statistics: dict[str, Any]) -> dict[str, Any]:
    """The statistics as the allocator itself hands them out: `a.b.c` is `["a"]["b"]["c"]`."""
    found: dict[str, Any] = {}
    for path, value in statistics.items():
        *above, name = path.split(".")
        place = found
        for key in above:
            place = place.setdefault(key, {})
        place[name] = value
    return found


class Devices:
    """The functions of `torch.cuda` and `torch.accelerator` that ask about or choose a device."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.use(gpu)

    def use(self, gpu: VirtualGpu) -> None:
        """Answer for another device from now on.

        Raises RuntimeError where the environment sets a wrong fraction of memory.
        """
        self.gpu = gpu
        self.process = os.getpid()
        self.started = False  # by a function that starts CUDA, as the first tensor does
        self.capability = CAPABILITY if gpu.model is None else gpu.model.capability
        if (fraction := _allocator_setting("per_process_memory_fraction")) is not None:
            if not 0 <= float(fraction) <= 1:
                raise RuntimeError("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
            for device in gpu.devices:
                device.memory.allowed = int(device.memory.total * float(fraction))

    def initialize(self) -> None:
        if os.getpid() != self.process:
            raise forked_process_error()
        self.started = True

    def initialized(self) -> bool:
        """True if the program has used the device.

        Some programs set up each process's GPU only if it has not.
        """
        used = (
            self.started
            or self.gpu.host_memory.used
            or any(device.memory.blocks_ever for device in self.gpu.devices)
        )
        return used and os.getpid() == self.process

    def starting(self, functions: dict[str, Any]) -> dict[str, Any]:
        """The functions, with those that start CUDA noting that it has been started."""

        def starts(function: Any, *args: Any, **kwargs: Any) -> Any:
            self.started = True
            return function(*args, **kwargs)

        return {
            name: partial(starts, value) if name in _STARTING and callable(value) else value
            for name, value in functions.items()
        }

    def check(self, index: int) -> int:
        if not 0 <= index < len(self.gpu.devices):
            raise invalid_ordinal_error()
        return index

    def set_device(self, device: Any) -> None:
        self.initialize()
        self.exchange(index_of(self.gpu, device))

    def exchange(self, index: int) -> int:
        before = self.gpu.current
        if index >= 0:
            self.gpu.current = self.check(index)
        return before

    def properties(self, device: Any = None) -> Any:
        """`torch.cuda.get_device_properties`; raises AssertionError for a wrong number."""
        index = index_of(self.gpu, device)
        if not 0 <= index < len(self.gpu.devices):
            raise AssertionError("Invalid device id")
        memory = self.gpu.devices[0].memory.total
        return _CudaDeviceProperties(
            name=self.gpu.name, total_memory=memory, **_properties(self.gpu)
        )

    def dtypes(self, index: int) -> dict[str, Any]:
        """What `torch.accelerator.get_device_capability` tells.

        CUDA can hold every dtype.
        """
        self.check(index)
        return {
            "supported_dtypes": {
                value for value in vars(torch).values() if isinstance(value, torch.dtype)
            }
        }

    def dtypes_of(self, device: Any = None, /) -> dict[str, Any]:
        """`torch.accelerator.get_device_capability`.

        torch's own would remember the answer beyond the virtual device.
        """
        return self.dtypes(_index_of_accelerator(device, optional=True))

    def synchronize(self, device: Any = None) -> None:
        """Wait for a device: notes an explicit wait in the ledger."""
        # torch makes that GPU the current one, too.
        before = self.exchange(self.check(index_of(self.gpu, device)))
        try:
            placement.record_waits("synchronize", explicit=True)
        finally:
            self.exchange(before)

    def set_fraction(self, fraction: Any, device: Any = None) -> None:
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if fraction < 0 or fraction > 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        memory = allocator_of(self.gpu, device)
        memory.allowed = int(memory.total * fraction)

    def sensor(self, value: int, device: Any = None) -> int:
        self.properties(device)  # raises where there is no such device
        return value

    def empty_cache(self) -> None:
        for device in self.gpu.devices:
            device.memory.empty_cache()

    def _shared(self) -> dict[str, Any]:
        """Functions that `torch.cuda` and `torch.accelerator` both have; made anew at each call."""

        def of(device: Any) -> Allocator:
            return allocator_of(self.gpu, device)

        return {
            "is_available": lambda: True,
            "device_count": lambda: len(self.gpu.devices),
            "synchronize": self.synchronize,
            "memory_allocated": lambda device=None: of(device).live,
            "max_memory_allocated": lambda device=None: of(device).peak,
            "memory_reserved": lambda device=None: of(device).reserved,
            "max_memory_reserved": lambda device=None: of(device).peak_reserved,
            "reset_peak_memory_stats": lambda device=None: of(device).reset_peaks(),
            "memory_stats": lambda device=None: of(device).statistics(),
            "get_device_capability": lambda device=None: (
                self.properties(device) and self.capability
            ),
        }

    def reaches(self, device: Any, peer_device: Any) -> bool:
        """`torch.cuda.can_device_access_peer`."""
        for given, words in (
            (device, "Invalid device id"),
            (peer_device, "Invalid peer device id"),
        ):
            if not 0 <= index_of(self.gpu, given) < len(self.gpu.devices):
                raise AssertionError(words)
        return index_of(self.gpu, device) != index_of(self.gpu, peer_device)

    def free_and_total(self, device: Any = None) -> tuple[int, int]:
        """`torch.cuda.mem_get_info`, which asks the driver."""
        if not 0 <= index_of(self.gpu, device) < len(self.gpu.devices):
            raise invalid_ordinal_error()
        memory = allocator_of(self.gpu, device)
        return memory.free, memory.total

    def patches(self) -> Iterator[Patch]:
        """The patches of `torch.cuda`, `torch.accelerator` and the functions of C++ they call."""

        def at(device: Any) -> int:
            return index_of(self.gpu, device)

        def of(device: Any) -> Allocator:
            return allocator_of(self.gpu, device)

        cuda = {
            **self._shared(),
            "current_device": lambda: self.gpu.current,
            "set_device": self.set_device,
            "_exchange_device": self.exchange,
            "_maybe_exchange_device": self.exchange,
            "_lazy_init": self.initialize,
            "init": self.initialize,
            "is_initialized": self.initialized,
            "_lazy_call": lambda callable, **kwargs: (
                callable()
            ),  # torch would keep it until CUDA starts
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
            "can_device_access_peer": self.reaches,
            "set_sync_debug_mode": lambda debug_mode: setattr(
                self.gpu, "sync_debug", sync_debug_mode(debug_mode)
            ),
            "get_sync_debug_mode": lambda: self.gpu.sync_debug,
            "reset_accumulated_memory_stats": lambda device=None: of(device).reset_accumulated(),
            "mem_get_info": self.free_and_total,
            "set_per_process_memory_fraction": self.set_fraction,
            "get_per_process_memory_fraction": lambda device=None: (
                of(device).allowed / of(device).total
            ),
            "memory_stats_as_nested_dict": lambda device=None: _as_tree(of(device).statistics()),
            "ipc_collect": lambda: None,
            "list_gpu_processes": lambda device=None: (
                f"GPU:{at(device)}\nprocess {os.getpid():>10d} uses {of(device).reserved / 2**20:>12.3f} MB GPU memory"
            ),
            "get_allocator_backend": lambda: _allocator_setting("backend") or "native",
            # The sensors of a GPU that does nothing, in the units of NVML.
            "device_memory_used": lambda device=None: of(device).reserved,
            **{name: partial(self.sensor, value) for name, value in _SENSORS.items()},
        }
        accelerator = {
            **self._shared(),
            "get_device_capability": self.dtypes_of,
            # torch.cuda has its own, which a history of memory shows.
            "empty_cache": self.empty_cache,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: self.gpu.current,
            "current_device_idx": lambda: self.gpu.current,
            "reset_accumulated_memory_stats": lambda device=None: of(device).reset_accumulated(),
            "get_memory_info": lambda device=None: (of(device).free, of(device).total),
        }
        internals = {
            "_accelerator_exchangeDevice": self.exchange,
            "_accelerator_maybeExchangeDevice": self.exchange,
            "_accelerator_setDeviceIndex": self.set_device,
            "_accelerator_getDeviceIndex": lambda: self.gpu.current,
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_getDeviceCapability": self.dtypes,
        }
        compiled = {  # what a build with CUDA has
            "_cuda_getDevice": lambda: self.gpu.current,
            "_cuda_setDevice": self.exchange,
            "_cuda_synchronize": self.synchronize,
            "_cuda_emptyCache": self.empty_cache,
            "_cuda_memoryStats": lambda index: _as_tree(of(index).statistics()),
            "_cuda_resetPeakMemoryStats": lambda index: of(index).reset_peaks(),
            "_cuda_resetAccumulatedMemoryStats": lambda index: of(index).reset_accumulated(),
            "_cuda_attach_out_of_memory_observer": lambda observer: self.gpu.oom_observers.append(
                observer
            ),
            "_cuda_getCurrentBlasHandle": lambda: id(self.gpu),
            "_cuda_getCurrentSolverHandle": lambda: id(self.gpu) + 8,
            "_cuda_getDeviceCount": lambda: len(self.gpu.devices),
            "_cuda_cudaCachingAllocator_enable": lambda enabled: None,
            "_CudaDeviceProperties": _CudaDeviceProperties,
        }
        compiled, cuda, internals = map(self.starting, (compiled, cuda, internals))
        yield from ((torch._C, name, value) for name, value in compiled.items())
        yield from ((torch.cuda, name, value) for name, value in cuda.items())
        for home, functions in (
            (torch.cuda.memory, cuda),
            (torch.accelerator, accelerator),
            (torch._C, internals),
        ):
            yield from (
                (home, name, value) for name, value in functions.items() if hasattr(home, name)
            )
        yield torch.backends.cuda, "is_built", lambda: True
        yield torch.version, "cuda", torch.version.cuda or "13.0"
        yield torch.backends.cudnn, "is_available", lambda: True
        yield torch.backends.cudnn, "version", lambda: 91900
        yield torch.backends.cudnn, "is_acceptable", _acceptable
        # If True, torch would ask for cuDNN's layout of the weights.
        yield (
            torch,
            "_use_cudnn_rnn_flatten_weight",
            lambda: False,
        )


def _acceptable(tensor: Any) -> bool:
    usual = tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    return bool(torch.backends.cudnn.enabled and tensor.is_cuda and usual)


def _convolution_backend(
    original: Any, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, bias_sizes: Any = None,
) -> Any:  # fmt: skip
    """The name of the kernel that would compute a convolution on a GPU, as C++ has it.

    `torch.backends.cudnn.enabled` decides, too. Raises RuntimeError for an empty input that CUDA
    refuses.
    """
    if type(input) not in VIRTUAL:
        return original(
            input,
            weight,
            bias,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            bias_sizes,
        )
    kinds = _backends
    dims = max(input.dim() - 2, 2)
    channels = input.shape[1]
    if 0 in input.shape:
        if input.shape[0] and channels:
            shape = list(input.shape)
            raise RuntimeError(
                f"Only zero batch or zero channel inputs are supported, but got input shape: {shape}"
            )
        return kinds.Empty
    # First the depthwise kernels, then cuDNN, then the slow ones.
    cudnn = torch.backends.cudnn.enabled and all(
        more < step for more, step in zip(output_padding, stride, strict=True)
    )
    last = input.dtype is not torch.float64 and (channels_last(input) or channels_last(weight))
    if not transposed and channels == groups > 1 and weight.shape[0] % channels == 0:
        return kinds.Cudnn if cudnn and last else getattr(kinds, f"CudaDepthwise{dims}d")
    if cudnn:
        return kinds.CudnnTranspose if transposed else kinds.Cudnn
    slow = (
        "SlowTranspose"
        if transposed
        else "SlowDilated"
        if dims == 3 or max(dilation) > 1
        else "Slow"
    )
    return getattr(kinds, f"{slow}{dims}d")


# NVTX's library when no tool listens; -2 is NVTX_NO_PUSH_POP_TRACKING.
_NVTX: Final = types.SimpleNamespace(
    rangePushA=lambda message: -2,
    rangePop=lambda: -2,
    rangeStartA=lambda message: 0,
    rangeEnd=lambda range_id: None,
    markA=lambda message: None,
    deviceRangeStart=lambda message, stream: object(),
    deviceRangeEnd=lambda handle, stream: None,
)


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


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of `torch.cuda`, NVTX and the CUDA profiler."""
    devices = Devices(opening.gpu)
    opening.on_next_device.append(devices.use)
    yield from devices.patches()
    emit: Any = torch.autograd.profiler.emit_nvtx
    yield around(torch._C, "_select_conv_backend", _convolution_backend)
    yield torch.cuda.nvtx, "_nvtx", _NVTX
    yield emit, "__enter__", _enter
    yield emit, "__exit__", _leave
    yield torch.cuda.profiler, "start", lambda: None
    yield torch.cuda.profiler, "stop", lambda: None
