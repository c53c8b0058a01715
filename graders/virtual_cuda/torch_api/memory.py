"""The functions of C++ that `torch.cuda.memory` calls: snapshots, history, pools.

A segment is memory that the allocator has from the driver; a block is the part of one that a tensor
has.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.cuda.memory

from virtual_cuda.device.layout import NO_POOL, History, Pool, held_pools, unsplit_pools
from virtual_cuda.device.state import Block, VirtualDevice, VirtualGpu
from virtual_cuda.ops.dispatch import allocate
from virtual_cuda.ops.workspaces import (
    CUBLAS,
    CUBLASLT,
    clear_product_workspaces,
    cublas_workspace_size,
    cublaslt_workspace_size,
)
from virtual_cuda.patching import Opening, Patch, torch_patches

# What the allocator is set to, as a snapshot shows it.
_SETTINGS: Final[dict[str, Any]] = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "pinned_num_register_threads": 1,
    "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False,
    "graph_capture_record_stream_reuse": False,
    "max_round_threshold": -1,
    "max_cached_size": -1,
    "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
}
# They take blocks of CUDA's own allocator; in a build that has them they would end a process
# without a GPU.
_REFUSED: Final = (
    "_cuda_getCheckpointState",
    "_cuda_setCheckpointPoolState",
    "_cuda_checkPoolLiveAllocations",
    "_construct_CUDA_Tensor_From_Storage_And_Metadata",
    "_free_And_Remove_DeleterFn",
)
# The words that `_record_memory_history` knows, by argument.
_WORDS: Final = {
    "enabled": ("state", "all"),
    "context": ("state", "alloc", "all"),
    "stacks": ("python", "all"),
}
pool_numbers: Final = itertools.count(1)  # of memory pools and of CUDA graphs' own
_uses_of_pools: Final[dict[Pool, int]] = {}  # how many hold a pool; 1 where nothing is said


class MemoryFunctions:
    """The functions of C++ about memory, for the device that is open."""

    def __init__(self, gpu: VirtualGpu) -> None:
        # By address: blocks that were allocated without a tensor.
        self.raw_blocks: dict[int, Block] = {}
        self.use_device(gpu)

    def use_device(self, gpu: VirtualGpu) -> None:
        """Answer for another device from now on."""
        self.gpu = gpu
        self.metadata = ""

    # ---- history and snapshots ----

    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = 1,
        clear_history: bool = False,
        compile_context: bool = False,
        annotations: bool = False,
        skipped: Any = (),
        pinned: bool = False,
        of_devices: bool = True,
    ) -> None:
        """Start or stop recording the history of every device's memory.

        `enabled=None` stops it. `context` says whose calling frames are kept, `skipped` which
        actions are left out. While it is on, every block gets an address. Raises RuntimeError for a
        word that CUDA does not know.
        """
        # Since torch 2.15: only pinned memory of the host, which has no history here.
        if not of_devices:
            enabled = None
        _require_known_word("enabled", enabled)
        _require_known_word("context", context)
        _require_known_word("stacks", stacks)
        for device in self.gpu.devices:
            layout = device.memory.make_layout()
            before = layout.history
            if enabled is None:
                layout.history = None
            else:
                for block in device.live_blocks():
                    if block.size:
                        layout.spot_of(block)
                # A new history, which may go on from the one before.
                history = History(context, max_entries if enabled == "all" else 1, skipped)
                history.metadata = self.metadata
                if before is not None and not clear_history:
                    history.entries.extend(before.entries)
                layout.history = history
            device.memory.give_addresses(enabled is not None or bool(layout.pools))

    def record_history_legacy(
        self,
        enabled: bool,
        context: bool = True,
        max_entries: int = 1,
        of_events: bool = False,
        cpp: bool = False,
        clear_history: bool = False,
        compile_context: bool = False,
        annotations: bool = False,
        skipped: Any = (),
    ) -> None:
        """Start or stop recording the history of every device's memory, by the arguments of old.

        `enabled` False stops it. `context` keeps the calling frames of blocks, and `of_events`
        those of every event. While it is on, every block gets an address.
        """
        kind = "state" if context else None
        if of_events:
            kind = "all"
        state = "all" if enabled else None
        self.record_history(state, kind, "all", max_entries, clear_history, skipped=skipped)

    def set_metadata(self, metadata: str) -> None:
        """Have the history's next entries tell this text."""
        self.metadata = metadata
        for device in self.gpu.devices:
            history = device.memory.make_layout().history
            if history is not None:
                history.metadata = metadata

    def take_snapshot(self, wanted: Any = None) -> dict[str, Any]:
        """The segments and blocks of all devices, and the history of each.

        `wanted` is the id of a pool, whose segments alone are shown, and perhaps whether traces are
        wanted; (0, 0) and None stand for everything. Blocks without an address are given one, and
        the snapshot is noted in the history.
        """
        pool = NO_POOL
        with_traces = True
        if wanted is not None:
            pool = tuple(wanted[:2])
            with_traces = len(wanted) < 3 or wanted[2]
        segments: list[dict[str, Any]] = []
        traces: list[list[dict[str, Any]]] = []
        for device in self.gpu.devices:
            layout = device.memory.make_layout()
            for segment in layout.snapshot(device.live_blocks(), device.memory.reserved):
                if pool in (NO_POOL, segment["segment_pool_id"]):
                    segments.append(segment)
            traces.append(layout.traces() if with_traces else [])
            if layout.history is not None:
                layout.history.note("snapshot", 0, device.memory.live)
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": dict(_SETTINGS),
            "external_annotations": [],
        }

    def traceback_of(self, address: int) -> list[dict[str, Any]] | None:
        """The frames that allocated the block at an address, or None if they are not known."""
        for device in self.gpu.devices:
            frames = device.memory.make_layout().frames_at(address)
            if frames is not None:
                return frames
        return None

    # ---- memory without tensors, and pools ----

    def allocate_raw(self, size: int, stream: int) -> int:
        """Allocate memory without a tensor on the current device; returns its address.

        It stays until `free_raw`; the stream is ignored. Raises ValueError for a negative size, and
        torch's OutOfMemoryError.
        """
        if size < 0:
            raise ValueError(
                f"Invalid memory size: {size}. "
                "caching_allocator_alloc requires a non-negative size."
            )
        block = allocate(self.current_device(), size)
        address = block.memory.make_layout().spot_of(block, size).address
        self.raw_blocks[address] = block
        return address

    def free_raw(self, address: int) -> None:
        """Free memory of `allocate_raw`; does nothing for another address."""
        self.raw_blocks.pop(address, None)

    def begin_pool(self, index: int, pool: Pool, thread: int | None = None) -> None:
        """Allocate in a pool from now on, on one device, in one thread or, for None, in all.

        Every block gets an address meanwhile. Raises IndexError for a device that is not there.
        """
        memory = self.gpu.devices[index].memory
        memory.make_layout().pools.append((pool, thread))
        memory.give_addresses(True)
        _uses_of_pools[pool] = _uses_of_pools.get(pool, 1) + 1

    def begin_pool_in_thread(self, index: int, pool: Pool) -> None:
        """Allocate in a pool from now on, on one device, in this thread.

        Raises IndexError for a device that is not there.
        """
        self.begin_pool(index, pool, threading.get_ident())

    def end_pool(self, index: int, pool: Pool) -> None:
        """End the last `begin_pool` of a pool; nothing ends if there is none.

        Raises IndexError for a device that is not there.
        """
        memory = self.gpu.devices[index].memory
        layout = memory.make_layout()
        for position in reversed(range(len(layout.pools))):
            begun, _ = layout.pools[position]
            if begun == pool:
                del layout.pools[position]
                break
        memory.give_addresses(layout.history is not None or bool(layout.pools))

    def release_pool(self, index: int, pool: Pool) -> None:
        """Count one use of a pool less."""
        _uses_of_pools[pool] = _uses_of_pools.get(pool, 2) - 1

    # ---- workspaces of libraries ----

    def current_device(self) -> VirtualDevice:
        """The current device."""
        return self.gpu.devices[self.gpu.current]

    def set_workspace_size(self, library: str, size: int) -> None:
        """Set how many bytes a new workspace of a library has."""
        self.gpu.workspace_sizes[library] = size

    def patches(self) -> Iterator[Patch]:
        """The patches of memory's functions in C++, and of `MemPool`."""
        in_cpp = {
            "_cuda_record_memory_history": self.record_history,
            "_cuda_record_memory_history_legacy": self.record_history_legacy,
            "_cuda_memorySnapshot": self.take_snapshot,
            "_cuda_allocationTraceback": self.traceback_of,
            "_cuda_setMemoryMetadata": self.set_metadata,
            "_cuda_getMemoryMetadata": lambda: self.metadata,
            "_cuda_cudaCachingAllocator_raw_alloc": self.allocate_raw,
            "_cuda_cudaCachingAllocator_raw_delete": self.free_raw,
            "_cuda_hostMemoryStats": lambda: self.gpu.host_memory.statistics(),
            "_cuda_resetPeakHostMemoryStats": lambda: self.gpu.host_memory.reset("peak"),
            "_cuda_resetAccumulatedHostMemoryStats": lambda: self.gpu.host_memory.reset(
                "allocated", "freed"
            ),
            "_host_emptyCache": lambda: self.gpu.host_memory.empty_cache(),
            "_accelerator_emptyHostCache": lambda: self.gpu.host_memory.empty_cache(),
            "_cuda_clearCublasWorkspaces": lambda: clear_product_workspaces(self.gpu),
            "_cuda_getCublasWorkspaceSize": lambda: cublas_workspace_size(self.current_device()),
            "_cuda_getCublasLtWorkspaceSize": lambda: cublaslt_workspace_size(
                self.current_device()
            ),
            "_cuda_setCublasWorkspaceSize": partial(self.set_workspace_size, CUBLAS),
            "_cuda_setCublasLtWorkspaceSize": partial(self.set_workspace_size, CUBLASLT),
        }
        for name, function in in_cpp.items():
            yield torch._C, name, function
        of_pools = {
            "_cuda_beginAllocateCurrentThreadToPool": self.begin_pool_in_thread,
            "_cuda_beginAllocateCurrentStreamToPool": self.begin_pool,
            "_cuda_beginAllocateToPool": self.begin_pool,
            "_cuda_endAllocateToPool": self.end_pool,
            "_cuda_releasePool": self.release_pool,
        }
        for name, function in of_pools.items():
            yield torch.cuda.memory, name, function
            yield torch._C, name, function
        for name in _REFUSED:
            yield torch._C, name, partial(_refuse_call, name)
        for module in (torch.cuda, torch.cuda.memory):
            yield module, "MemPool", MemPool


def _require_known_word(argument: str, word: str | None) -> None:
    """Raise RuntimeError for a word that `_record_memory_history` does not know; None is known."""
    known = _WORDS[argument]
    if word is not None and word not in known:
        words = " or ".join(repr(each) for each in known)
        raise RuntimeError(f"expected state to be {words}, got {argument}={word!r}")


def _refuse_call(name: str, *args: Any) -> None:
    """Raise NotImplementedError for a function that only CUDA's own allocator has."""
    raise NotImplementedError(
        f"torch._C.{name} needs CUDA's own allocator, which the virtual device does not have"
    )


class MemPool:
    """`torch.cuda.MemPool`: what is allocated in it has segments of its own."""

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        """Make a pool, which counts as held until this object goes.

        With `no_split`, each block gets a segment of its own. The other arguments have no effect.
        """
        self.allocator = allocator
        self.id: Pool = (0, next(pool_numbers))
        held_pools.add(self.id)
        if no_split:
            unsplit_pools.add(self.id)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Let the pool go: its segments may be given back."""
        # At the interpreter's exit the names of this module are None.
        if is_finalizing():
            return
        held_pools.discard(self.id)
        unsplit_pools.discard(self.id)

    def use_count(self) -> int:
        return _uses_of_pools.get(self.id, 1)

    def snapshot(self, include_traces: bool = True) -> Any:
        return torch.cuda.memory_snapshot(self.id)


MemPool.__module__ = "torch.cuda.memory"


@torch_patches()
def _memory_patches(opening: Opening) -> Iterator[Patch]:
    """The patches of memory's functions.

    `opening` is told to free what they hold when a device closes, and to answer for each later
    device.
    """
    functions = MemoryFunctions(opening.gpu)
    opening.on_close.extend((_uses_of_pools.clear, functions.raw_blocks.clear))
    opening.on_next_device.append(functions.use_device)
    yield from functions.patches()
