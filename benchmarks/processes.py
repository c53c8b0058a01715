"""Which processes a process has started, as Linux tells it."""

from __future__ import annotations

import os
from pathlib import Path


def depths_below(root: int) -> dict[int, int]:
    """Every descendant of a process, with its depth: 1 for a child, 2 for a grandchild."""
    children = _children_by_parent()
    depths: dict[int, int] = {}
    depth = 1
    generation = children.get(root, [])
    while generation:
        next_generation = []
        for process in generation:
            depths[process] = depth
            next_generation += children.get(process, [])
        generation = next_generation
        depth += 1
    return depths


def _children_by_parent() -> dict[int, list[int]]:
    """The children of every process of the machine that has some."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent_of(int(name))
            children.setdefault(parent, []).append(int(name))
    return children


def _parent_of(process: int) -> int:
    """The number of a process's parent; 0 if the process has ended meanwhile."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        _, _, fields = text.rpartition(")")
        return int(fields.split()[1])
    except (OSError, ValueError, IndexError):
        return 0
