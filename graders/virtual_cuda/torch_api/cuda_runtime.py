"""`torch.cuda.cudart()`: the functions of the CUDA runtime that torch hands on."""

from __future__ import annotations

import ctypes
import itertools
import types
from collections.abc import Iterator
from typing import Any, Final

import torch

from virtual_cuda.device.pinning import registered_memory
from virtual_cuda.device.state import now
from virtual_cuda.patching import Opening, Patch, torch_patches

_ERRORS: Final = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    400: "invalid resource handle",
    600: "device not ready",
    710: "device-side assert triggered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    900: "operation not permitted when stream is capturing",
}
_ALREADY_REGISTERED: Final = 712
_NOT_REGISTERED: Final = 713


class cudaError(int):
    """The result of a function of the CUDA runtime."""

    __module__ = "torch._C._cudart"
    success: Final = 0


def _register_memory(address: int, nbytes: int, flags: int) -> cudaError:
    """`cudaHostRegister`: count memory of the host as pinned, from this address on.

    Gives the number of an error, 0 for none, and raises nothing.
    """
    if address in registered_memory:
        return cudaError(_ALREADY_REGISTERED)
    registered_memory[address] = nbytes
    return cudaError(0)


def _unregister_memory(address: int) -> cudaError:
    """`cudaHostUnregister`: count memory of the host as pageable again.

    Gives the number of an error, 0 for none, and raises nothing.
    """
    if registered_memory.pop(address, None) is None:
        return cudaError(_NOT_REGISTERED)
    return cudaError(0)


# Addresses of streams that are not torch's.
_stream_addresses: Final = itertools.count(0x7D00_0000_0000, 0x100)


def _create_stream(address: int) -> cudaError:
    """`cudaStreamCreate`: write the address of a new stream to memory of the host.

    The 8 bytes at `address` are overwritten; a wrong address ends the process.
    """
    ctypes.c_ulonglong.from_address(address).value = next(_stream_addresses)
    return cudaError(0)


def _free_and_total(index: int) -> tuple[int, int]:
    """`cudaMemGetInfo`: the free and all bytes of a device.

    Raises IndexError for a device that is not there.
    """
    assert now.gpu is not None
    memory = now.gpu.devices[index].memory
    return memory.free, memory.total


@torch_patches()
def _runtime_patch(opening: Opening) -> Iterator[Patch]:
    """The patch of the module that `torch.cuda.cudart()` returns.

    `opening` is told to forget registered memory when a device closes.
    """
    opening.on_close.append(registered_memory.clear)
    runtime: Any = types.ModuleType("torch._C._cudart")
    runtime.cudaError = cudaError
    runtime.cudaGetErrorString = lambda code: _ERRORS.get(int(code), "unrecognized error code")
    runtime.cudaProfilerStart = lambda: cudaError(0)
    runtime.cudaProfilerStop = lambda: cudaError(0)
    runtime.cudaHostRegister = _register_memory
    runtime.cudaHostUnregister = _unregister_memory
    runtime.cudaStreamCreate = _create_stream
    runtime.cudaStreamDestroy = lambda stream: cudaError(0)
    runtime.cudaMemGetInfo = _free_and_total
    yield torch.cuda, "_cudart", runtime
