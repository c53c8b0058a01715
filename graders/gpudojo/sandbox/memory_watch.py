"""Measures the memory of all processes of a submission."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpudojo.sandbox.gpus import CUDA_DEVICE_BYTES, CUDA_HOST_BYTES, GpuMemoryWatch

FIELDS: Final = ("PPid", "NSpid", "RssAnon", "RssShmem", "RssFile")


class Usage(NamedTuple):
    """Bytes that a child holds together with all processes it has started."""

    host: int = 0
    mapped: int = 0  # of files and devices: with CUDA also memory that host and GPU share
    device: int = 0


class MemoryLimits(NamedTuple):
    """Bytes that a child may hold; of a GPU, where it uses one."""

    host: int
    device: int = 0

    def over_device(self, usage: Usage) -> bool:
        return bool(self.device) and usage.device > self.device + CUDA_DEVICE_BYTES

    def over_host(self, usage: Usage) -> bool:
        if self.device:
            return usage.host + usage.mapped > self.host + CUDA_HOST_BYTES
        return usage.host > self.host


class MemoryWatch:
    """Measures children of this process, each with all processes it has started, less what they share with this one.

    Process namespaces do not matter: /proc is the one this process started with, and counts in its own numbers.
    """

    def __init__(self, gpu: GpuMemoryWatch | None = None) -> None:
        own = _status("self")
        self._here = own.get("NSpid", [])  # this process, from the outermost namespace to its own
        self._shared, self._mapped = _private(own), _mapped(own)
        self._gpu = gpu

    def usages(self) -> dict[int, Usage]:
        """What each child holds, by the process number this process knows it by."""
        if not self._here:
            return {}
        on_gpu = self._gpu.held() if self._gpu is not None else {}
        found = {int(name): _status(name) for name in os.listdir("/proc") if name.isdigit()}
        found = {pid: status for pid, status in found.items() if "PPid" in status}
        owners: dict[int, int | None] = {}

        def child_of(pid: int) -> int | None:
            """The child that a process belongs to."""
            if pid not in owners:
                owners[pid] = None  # ends the search where parents form a loop
                parent = found[pid]["PPid"][0] if pid in found else 0
                if parent == self._here[0]:
                    numbers = found[pid]["NSpid"]
                    owners[pid] = numbers[len(self._here) - 1] if len(numbers) >= len(self._here) else None
                elif parent:
                    owners[pid] = child_of(parent)
            return owners[pid]

        usages: dict[int, Usage] = {}
        for pid, status in found.items():
            child = child_of(pid)
            if child is not None:
                host, mapped, device = usages.get(child, Usage())
                host += max(0, _private(status) - self._shared)
                mapped += max(0, _mapped(status) - self._mapped)
                usages[child] = Usage(host, mapped, device + on_gpu.get(pid, 0))
        return usages


def _private(status: Mapping[str, list[int]]) -> int:
    return sum(status.get(field, [0])[0] for field in ("RssAnon", "RssShmem")) << 10


def _mapped(status: Mapping[str, list[int]]) -> int:
    return status.get("RssFile", [0])[0] << 10


def _status(name: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/status", "rb") as file:
        for line in file:
            field, _, value = line.partition(b":")
            if (key := field.decode("ascii", "replace")) in FIELDS:
                found[key] = [int(word) for word in value.split() if word.isdigit()]
    return found
