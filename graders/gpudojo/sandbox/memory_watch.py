"""Measures from /proc how much memory each child holds, and how long it waited for a processor."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpudojo.sandbox.real_gpus import CUDA_DEVICE_BYTES, CUDA_HOST_BYTES, GpuMemoryWatch

# Fields of /proc/PID/status: memory of a process's own, and all that is read.
OWN_MEMORY: Final = ("RssAnon", "RssShmem", "VmSwap", "HugetlbPages")
STATUS_FIELDS: Final = ("PPid", "NSpid", "Threads", "RssFile", *OWN_MEMORY)

# The numbers in fields of /proc/PID/status, by field.
Status = Mapping[str, list[int]]


class Usage(NamedTuple):
    """What a child uses together with all processes it has started. Memory is in bytes."""

    host: int = 0
    mapped: int = 0  # of files and devices: with CUDA also memory that host and GPU share
    device: int = 0
    threads: int = 0  # in all these processes
    processes: int = 0
    # Seconds that its first process could have run while others had the processors.
    waited: float = 0.0


class MemoryLimits(NamedTuple):
    """Bytes that a child may hold: of the host, and of a GPU if it uses one."""

    host: int
    device: int = 0

    def over_device(self, usage: Usage) -> bool:
        """True if a child that uses a GPU holds too much of its memory."""
        return bool(self.device) and usage.device > self.device + CUDA_DEVICE_BYTES

    def over_host(self, usage: Usage) -> bool:
        """True if the child holds too much memory of the host."""
        if self.device:
            return usage.host + usage.mapped > self.host + CUDA_HOST_BYTES
        return usage.host > self.host


class MemoryWatch:
    """Measures the children of this process, each with all processes it has started.

    Memory that they share with this process does not count. Process namespaces do not matter:
    /proc is the one this process started with, and counts in its own numbers.
    """

    def __init__(self, gpu: GpuMemoryWatch | None = None) -> None:
        """Take note of what this process holds now: children that are forked later share it."""
        own = status_of("self")
        # The number of this process in each namespace, from the outermost to its own.
        self._numbers = own.get("NSpid", [])
        self._shared = _bytes_in(own, *OWN_MEMORY)
        self._shared_mapped = _bytes_in(own, "RssFile")
        self._gpu = gpu

    def usages(self) -> dict[int, Usage]:
        """What each child uses, by its process number in this process's namespace.

        Empty where there is no /proc. Raises OSError if /proc cannot be listed.
        """
        if not self._numbers:
            return {}  # there is no /proc
        device_bytes = self._gpu.bytes_by_process() if self._gpu is not None else {}
        statuses = statuses_of_all()
        owners = _Owners(self._numbers, statuses)
        usages: dict[int, Usage] = {}
        for pid, status in statuses.items():
            child = owners.child_of(pid)
            if child is None:
                continue
            # Add this process to what was counted for its child so far.
            before = usages.get(child, Usage())
            waited = before.waited
            if status["PPid"][0] == self._numbers[0]:
                waited += waiting_seconds(pid)
            own = max(0, _bytes_in(status, *OWN_MEMORY) - self._shared)
            mapped = max(0, _bytes_in(status, "RssFile") - self._shared_mapped)
            usages[child] = Usage(
                host=before.host + own,
                mapped=before.mapped + mapped,
                device=before.device + device_bytes.get(pid, 0),
                threads=before.threads + status.get("Threads", [1])[0],
                processes=before.processes + 1,
                waited=waited,
            )
        return usages


class _Owners:
    """Finds the child of this process that a process belongs to."""

    def __init__(self, numbers: list[int], statuses: Mapping[int, Status]) -> None:
        self._numbers = numbers  # of this process, from the outermost namespace to its own
        self._statuses = statuses
        self._known: dict[int, int | None] = {}

    def child_of(self, pid: int) -> int | None:
        """The number, in this process's namespace, of the child that a process belongs to.

        Returns None for a process of no child. What was found is remembered.
        """
        if pid not in self._known:
            self._known[pid] = None  # ends the search where parents form a loop
            self._known[pid] = self._find_child(pid)
        return self._known[pid]

    def _find_child(self, pid: int) -> int | None:
        """Search among the parents of a process for a child of this one.

        Returns the child's number in this process's namespace, or None.
        """
        if pid not in self._statuses:
            return None
        status = self._statuses[pid]
        parent = status["PPid"][0]
        if parent == self._numbers[0]:
            depth = len(self._numbers)
            numbers = status["NSpid"]
            if len(numbers) >= depth:
                return numbers[depth - 1]
            return None
        if parent:
            return self.child_of(parent)
        return None


def statuses_of_all() -> dict[int, Status]:
    """The status of every process in /proc that is still there, by its number there.

    Raises OSError if /proc cannot be listed.
    """
    statuses: dict[int, Status] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            status = status_of(name)
            if "PPid" in status:
                statuses[int(name)] = status
    return statuses


def status_of(name: str) -> Status:
    """Fields of a process, by its name in /proc, with their numbers. Empty if it does not exist."""
    try:
        with open(f"/proc/{name}/status", encoding="ascii", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:
        return {}
    status = {}
    for line in lines:
        field, _, value = line.partition(":")
        if field in STATUS_FIELDS:
            status[field] = [int(word) for word in value.split() if word.isdigit()]
    return status


def waiting_seconds(pid: int) -> float:
    """How long a process could have run while other processes had the processors.

    The kernel counts this for the first thread. Time in which other threads of the same process
    ran is subtracted. 0.0 if the kernel does not say.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran, waited = (int(word) / 1e9 for word in file.read().split()[:2])
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b")")[2].split()
        user_ticks, system_ticks = map(int, after_name[11:13])
    except (OSError, ValueError):
        return 0.0
    all_threads = (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")
    other_threads = max(0.0, all_threads - ran)
    return max(0.0, waited - other_threads)


def _bytes_in(status: Status, *fields: str) -> int:
    """The sum of fields that the kernel gives in KiB, in bytes."""
    kibibytes = sum(status.get(field, [0])[0] for field in fields)
    return kibibytes << 10
