"""How much memory do a submission's processes hold together? The kernel limits each of them, but not their sum."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Final

FIELDS: Final = ("PPid", "NSpid", "RssAnon", "RssShmem")


class Scales:
    """Weighs children of this process with all that they have started. What they share with this process is not theirs.

    A process namespace hides nothing here: /proc is the one this process found, and counts in numbers of its own.
    """

    def __init__(self) -> None:
        own = _status("self")
        self.here = own.get("NSpid", [])  # this process, from the outermost namespace to its own
        self.shared = _held(own)

    def heavy(self, limits: Mapping[int, int]) -> list[int]:
        """Those of these children that hold more bytes than they may, by the number this process knows them by."""
        if not self.here:
            return []
        found = {}
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

        held: dict[int, int] = {}
        for pid, status in found.items():
            child = child_of(pid)
            if child is not None:
                held[child] = held.get(child, 0) + max(0, _held(status) - self.shared)
        return [child for child, limit in limits.items() if held.get(child, 0) > limit]


def _held(status: Mapping[str, list[int]]) -> int:
    return sum(status.get(field, [0])[0] for field in ("RssAnon", "RssShmem")) << 10


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
