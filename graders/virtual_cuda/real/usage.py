"""Counts the memory of a real device that is in use."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from virtual_cuda.patching import Patch


def storage_behind(tensor: torch.Tensor) -> Any:
    """The storage of a tensor; None where it has none of its own (sparse tensors)."""
    return tensor.untyped_storage() if tensor.layout is torch.strided else None


class MemoryUsage:
    """The memory of a kind of device. This one is Metal's: its allocator keeps no peak of its own."""

    def __init__(self) -> None:
        self.highest = 0

    def take(self, tensor: torch.Tensor) -> int:
        """The bytes that are new in a tensor that an operator has made."""
        storage = storage_behind(tensor)
        return 0 if storage is None else int(storage.nbytes())

    def live(self, index: int) -> int:
        """The bytes in use on a device."""
        now = int(torch.mps.current_allocated_memory())
        self.highest = max(self.highest, now)
        return now

    def peaks(self) -> dict[str, int]:
        """The most bytes in use at once, by device."""
        return {"mps:0": self.highest}

    def patches(self) -> Iterator[Patch]:
        """What has to be patched for the peaks to be right."""
        yield from ()


class CudaUsage(MemoryUsage):
    """As CUDA's caching allocator counts it, temporaries inside an operator included, since the device was opened."""

    def __init__(self) -> None:
        torch.cuda.init()
        self.devices = range(torch.cuda.device_count())
        self.peak = dict.fromkeys(self.devices, 0)
        self.before = dict.fromkeys(self.devices, 0)
        for index in self.devices:
            _take_workspaces(index)
            self.before[index] = self.live(index)
            torch.cuda.reset_peak_memory_stats(index)

    def live(self, index: int) -> int:
        return max(0, _allocated(index)["current"] - self.before[index])

    def note_peak(self) -> None:
        for index in self.devices:
            self.peak[index] = max(self.peak[index], _allocated(index)["peak"] - self.before[index])

    def peaks(self) -> dict[str, int]:
        self.note_peak()
        return {f"cuda:{index}": peak for index, peak in self.peak.items()}

    def patches(self) -> Iterator[Patch]:
        """A student who measures a peak resets it first; the ledger's own peak must not be lost by that."""
        original = torch.cuda.reset_peak_memory_stats

        def reset(*args: Any, **kwargs: Any) -> None:
            self.note_peak()
            original(*args, **kwargs)

        yield torch.cuda, "reset_peak_memory_stats", reset
        yield torch.cuda.memory, "reset_peak_memory_stats", reset


def _allocated(index: int) -> dict[str, int]:
    # torch.cuda.memory_allocated sorts two hundred figures to give one.
    figures: dict[str, int] = torch._C._cuda_memoryStats(index)["allocated_bytes"]["all"]
    return figures


def _take_workspaces(index: int) -> None:
    """cuBLAS takes 32 MiB with its first product in each thread; taken now, no line of the student's is charged."""
    with torch.inference_mode(False), torch.enable_grad():
        row = torch.ones(1, 16, device=f"cuda:{index}", requires_grad=True)
        total = torch.nn.functional.linear(row, torch.ones(16, 16, device=row.device), row[0]).sum()
        torch.autograd.backward(total)


class HostUsage(MemoryUsage):
    """The storages that operators made since the device was opened, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.known: dict[int, Any] = {}

    def take(self, tensor: torch.Tensor) -> int:
        storage = storage_behind(tensor)
        if storage is None or storage._cdata in self.known:
            return 0
        key, size = storage._cdata, int(storage.nbytes())

        def gone(_: Any) -> None:
            del self.known[key]
            self.now -= size

        # A storage's Python object lives as long as the storage does, however often it is fetched anew.
        self.known[key] = weakref.ref(storage, gone)
        self.now += size
        self.highest = max(self.highest, self.now)
        return size

    def live(self, index: int) -> int:
        return self.now

    def peaks(self) -> dict[str, int]:
        return {"cpu": self.highest}


USAGE = {"cuda": CudaUsage, "mps": MemoryUsage, "cpu": HostUsage}  # by kind of device
