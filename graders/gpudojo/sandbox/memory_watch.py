"""Measures the memory of all processes of a submission."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpudojo.sandbox.gpus import DEVICE_AROUND, HOST_AROUND, DeviceScales

FIELDS: Final = ("PPid", "NSpid", "RssAnon", "RssShmem", "RssFile")


class Load(NamedTuple):
    """Bytes that a child holds with all it has started."""

    host: int = 0
    mapped: int = 0  # of files and devices: with CUDA that is also memory which host and GPU share
    device: int = 0


class Allowed(NamedTuple):
    """Bytes that it may hold; of a GPU, where it uses one."""

    host: int
    device: int = 0

    def too_much_there(self, load: Load) -> bool:
        return bool(self.device) and load.device > self.device + DEVICE_AROUND

    def too_much_here(self, load: Load) -> bool:
        if self.device:
            return load.host + load.mapped > self.host + HOST_AROUND
        return load.host > self.host


class Scales:
    """Weighs children of this process with all that they have started. What they share with this process is not theirs.

    A process namespace hides nothing here: /proc is the one this process found, and counts in numbers of its own.
    """

    def __init__(self, devices: DeviceScales | None = None) -> None:
        own = _status("self")
        self.here = own.get("NSpid", [])  # this process, from the outermost namespace to its own
        self.shared, self.mapped = _held(own), _mapped(own)
        self.devices = devices

    def heavy(self, limits: Mapping[int, int]) -> list[int]:
        """Those of these children that hold more bytes of the host than they may."""
        loads = self.loads()
        return [child for child, limit in limits.items() if loads.get(child, Load()).host > limit]

    def loads(self) -> dict[int, Load]:
        """What each child holds, by the number this process knows it by."""
        if not self.here:
            return {}
        found = {}
        there = self.devices.held() if self.devices is not None else {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            status = _status(name)
            if "PPid" in status:
                found[int(name)] = status
        inside: dict[int, int | None] = {}

        def child_of(pid: int) -> int | None:
            """The child that a process belongs to."""
            if pid not in inside:
                inside[pid] = None  # whatever comes back to it while it is looked for is no tree
                parent = found[pid]["PPid"][0] if pid in found else 0
                if parent == self.here[0]:
                    numbers = found[pid]["NSpid"]
                    inside[pid] = numbers[len(self.here) - 1] if len(numbers) >= len(self.here) else None
                elif parent:
                    inside[pid] = child_of(parent)
            return inside[pid]

        loads: dict[int, Load] = {}
        for pid, status in found.items():
            child = child_of(pid)
            if child is not None:
                host, mapped, device = loads.get(child, Load())
                host += max(0, _held(status) - self.shared)
                mapped += max(0, _mapped(status) - self.mapped)
                loads[child] = Load(host, mapped, device + there.get(pid, 0))
        return loads


def _held(status: Mapping[str, list[int]]) -> int:
    return sum(status.get(field, [0])[0] for field in ("RssAnon", "RssShmem")) << 10


def _mapped(status: Mapping[str, list[int]]) -> int:
    return status.get("RssFile", [0])[0] << 10


def _status(name: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{name}/status", encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            field, _, value = line.partition(":")
            if field in FIELDS:
                found[field] = [int(word) for word in value.split() if word.isdigit()]
    return found
