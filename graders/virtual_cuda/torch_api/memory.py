"""The functions of C++ that `torch.cuda.memory` and the CUDA runtime module call.

They are about snapshots, history, pools and pinned memory. A segment is memory that the allocator
has from the driver; a block is the part of one that a tensor has.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import types
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.cuda.memory

from virtual_cuda.device.layout import NO_POOL, History, Pool, kept, unsplit
from virtual_cuda.device.pinning import registered_memory
from virtual_cuda.device.state import Block, VirtualGpu
from virtual_cuda.ops.dispatch import allocate
from virtual_cuda.patching import Opening, Patch, torch_patches

_SETTINGS: Final[dict[str, Any]] = {
    "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
    "expandable_segments": False, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False, "graph_capture_record_stream_reuse": False, "max_round_threshold": -1,
    "max_cached_size": -1, "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
}  # fmt: skip
# They take blocks of CUDA's own allocator; in a build that has them they would end a process
# without a GPU.
_REFUSED: Final = """
    _cuda_getCheckpointState _cuda_setCheckpointPoolState _cuda_checkPoolLiveAllocations
    _construct_CUDA_Tensor_From_Storage_And_Metadata _free_And_Remove_DeleterFn
""".split()
pool_numbers: Final = itertools.count(1)  # of memory pools and of CUDA graphs' own


class Memory:
    """The functions of C++ about memory, for the device that is open."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.raw: dict[int, Block] = {}  # by address: blocks that were allocated without a tensor
        self.use(gpu)

    def use(self, gpu: VirtualGpu) -> None:
        """Answer for another device from now on."""
        self.gpu = gpu
        self.metadata = ""

    # ---- history and snapshots ----

    def record(
        self, enabled: str | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = 1,
        clear_history: bool = False, compile_context: bool = False, annotations: bool = False, skipped: Any = (),
        pinned: bool = False, of_devices: bool = True,
    ) -> None:  # fmt: skip
        """Start or stop recording the history of every device's memory.

        `enabled=None` stops it. Raises RuntimeError for a word that CUDA does not know.
        """
        # Since torch 2.15: only pinned memory of the host, which has no history here.
        if not of_devices:
            enabled = None
        for name, value, allowed in (
            ("enabled", enabled, ("state", "all")),
            ("context", context, ("state", "alloc", "all")),
            ("stacks", stacks, ("python", "all")),
        ):
            if value is not None and value not in allowed:
                raise RuntimeError(
                    f"expected state to be {' or '.join(repr(a) for a in allowed)}, got {name}={value!r}"
                )
        # A new history, which may go on from the one before.
        for device in self.gpu.devices:
            memory = device.memory
            layout = device.memory.make_layout()
            before = layout.history
            if enabled is None:
                layout.history = None
            else:
                for block in device.live_blocks():
                    if block.size:
                        layout.spot(block)
                layout.history = History(context, max_entries if enabled == "all" else 1, skipped)
                layout.history.metadata = self.metadata
                if before is not None and not clear_history:
                    layout.history.entries.extend(before.entries)
            memory.give_addresses(enabled is not None or bool(layout.pools))

    def record_legacy(
        self, enabled: bool, context: bool = True, most: int = 1, of_events: bool = False, cpp: bool = False,
        clear_history: bool = False, compile_context: bool = False, annotations: bool = False, skipped: Any = (),
    ) -> None:  # fmt: skip
        chosen = "all" if of_events else "state" if context else None
        self.record("all" if enabled else None, chosen, "all", most, clear_history, skipped=skipped)

    def set_metadata(self, metadata: str) -> None:
        self.metadata = metadata
        for device in self.gpu.devices:
            if (history := device.memory.make_layout().history) is not None:
                history.metadata = metadata

    def snapshot(self, wanted: Any = None) -> dict[str, Any]:
        """The segments and blocks of all devices, and the history of each.

        `wanted` is the id of a pool, whose segments alone are shown, and perhaps whether traces are
        wanted; (0, 0) and None stand for everything. The snapshot is noted in the history.
        """
        pool = NO_POOL if wanted is None else tuple(wanted[:2])
        segments: list[dict[str, Any]] = []
        traces: list[list[dict[str, Any]]] = []
        for device in self.gpu.devices:
            memory = device.memory
            layout = device.memory.make_layout()
            found = layout.snapshot(device.live_blocks(), memory.reserved)
            segments += [s for s in found if pool in (NO_POOL, s["segment_pool_id"])]
            traces.append(layout.traces() if wanted is None or len(wanted) < 3 or wanted[2] else [])
            if layout.history is not None:
                layout.history.note("snapshot", 0, memory.live)
        settings = {"allocator_settings": {**_SETTINGS}, "external_annotations": []}
        return {"segments": segments, "device_traces": traces, **settings}

    def traceback(self, address: int) -> list[dict[str, Any]] | None:
        layouts = (device.memory.make_layout() for device in self.gpu.devices)
        return next(
            (frames for layout in layouts if (frames := layout.frames_at(address)) is not None),
            None,
        )

    # ---- memory without tensors, and pools ----

    def allocate(self, size: int, stream: int) -> int:
        """Allocate memory without a tensor; returns its address.

        Raises ValueError for a negative size, and OutOfMemoryError.
        """
        if size < 0:
            raise ValueError(
                f"Invalid memory size: {size}. caching_allocator_alloc requires a non-negative size."
            )
        block = allocate(self.gpu.devices[self.gpu.current], size)
        address = block.device.memory.make_layout().spot(block, size).address
        self.raw[address] = block
        return address

    def begin_pool(self, index: int, pool: Pool, thread: int | None = None) -> None:
        memory = self.gpu.devices[index].memory
        memory.make_layout().pools.append((pool, thread))
        memory.give_addresses(True)
        _uses[pool] = _uses.get(pool, 1) + 1

    def end_pool(self, index: int, pool: Pool) -> None:
        memory = self.gpu.devices[index].memory
        layout = memory.make_layout()
        found = [device for device, (begun, _) in enumerate(layout.pools) if begun == pool]
        if found:
            del layout.pools[found[-1]]
        memory.give_addresses(layout.history is not None or bool(layout.pools))

    def patches(self) -> Iterator[Patch]:
        """The patches of memory's functions in C++, and of `MemPool`."""
        internals = {
            "_cuda_record_memory_history": self.record,
            "_cuda_record_memory_history_legacy": self.record_legacy,
            "_cuda_memorySnapshot": self.snapshot,
            "_cuda_allocationTraceback": self.traceback,
            "_cuda_setMemoryMetadata": self.set_metadata,
            "_cuda_getMemoryMetadata": lambda: self.metadata,
            "_cuda_cudaCachingAllocator_raw_alloc": self.allocate,
            "_cuda_cudaCachingAllocator_raw_delete": lambda address: (
                self.raw.pop(address, None) and None
            ),
            "_cuda_hostMemoryStats": lambda: self.gpu.host_memory.statistics(),
            "_cuda_resetPeakHostMemoryStats": lambda: self.gpu.host_memory.reset("peak"),
            "_cuda_resetAccumulatedHostMemoryStats": lambda: self.gpu.host_memory.reset(
                "allocated", "freed"
            ),
            "_host_emptyCache": lambda: self.gpu.host_memory.empty_cache(),
            "_accelerator_emptyHostCache": lambda: self.gpu.host_memory.empty_cache(),
            "_cuda_clearCublasWorkspaces": lambda: None,  # a product here needs none
        }
        yield from ((torch._C, name, value) for name, value in internals.items())
        for name, function in {
            "_cuda_beginAllocateCurrentThreadToPool": lambda i, pool: self.begin_pool(
                i, pool, threading.get_ident()
            ),
            "_cuda_beginAllocateCurrentStreamToPool": self.begin_pool,
            "_cuda_beginAllocateToPool": self.begin_pool,
            "_cuda_endAllocateToPool": self.end_pool,
            "_cuda_releasePool": lambda index, pool: _uses.update({pool: _uses.get(pool, 2) - 1}),
        }.items():
            yield torch.cuda.memory, name, function
            yield torch._C, name, function
        yield from ((torch._C, name, partial(_refuse, name)) for name in _REFUSED)
        for home in (torch.cuda, torch.cuda.memory):
            yield home, "MemPool", MemPool


def _refuse(name: str, *args: Any) -> None:
    raise NotImplementedError(
        f"torch._C.{name} needs CUDA's own allocator, which the virtual device does not have"
    )


_uses: Final[dict[Pool, int]] = {}  # how many hold a pool; 1 where nothing is said


class MemPool:
    """`torch.cuda.MemPool`: what is allocated in it has segments of its own."""

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        self.allocator = allocator
        self.id: Pool = (0, next(pool_numbers))
        kept.add(self.id)
        if no_split:
            unsplit.add(self.id)

    def __del__(self) -> None:
        kept.discard(self.id)
        unsplit.discard(self.id)

    def use_count(self) -> int:
        return _uses.get(self.id, 1)

    def snapshot(self, include_traces: bool = True) -> Any:
        return torch.cuda.memory_snapshot(self.id)


MemPool.__module__ = "torch.cuda.memory"


# ---- the CUDA runtime ----------------------------------------------------------------------------

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


class cudaError(int):
    """The result of a function of the CUDA runtime."""

    __module__ = "torch._C._cudart"
    success: Final = 0


def _register(address: int, nbytes: int, flags: int) -> cudaError:
    if address in registered_memory:
        return cudaError(712)
    registered_memory[address] = nbytes
    return cudaError(0)


def _create_stream(address: int) -> cudaError:
    ctypes.c_ulonglong.from_address(address).value = next(_streams)
    return cudaError(0)


# Addresses of streams that are not torch's.
_streams: Final = itertools.count(0x7D00_0000_0000, 0x100)


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of memory's functions, and of the CUDA runtime module."""
    memory = Memory(opening.gpu)
    opening.on_close.extend((registered_memory.clear, _uses.clear, memory.raw.clear))
    opening.on_next_device.append(memory.use)
    yield from memory.patches()
    runtime: Any = types.ModuleType("torch._C._cudart")
    vars(runtime).update(
        cudaError=cudaError,
        cudaGetErrorString=lambda code: _ERRORS.get(int(code), "unrecognized error code"),
        cudaProfilerStart=lambda: cudaError(0),
        cudaProfilerStop=lambda: cudaError(0),
        cudaHostRegister=_register,
        cudaHostUnregister=lambda address: cudaError(
            713 if registered_memory.pop(address, None) is None else 0
        ),
        cudaStreamCreate=_create_stream,
        cudaStreamDestroy=lambda stream: cudaError(0),
        cudaMemGetInfo=lambda index: ((at := memory.gpu.devices[index].memory).free, at.total),
    )
    yield torch.cuda, "_cudart", runtime
