"""The caching allocator of pinned host memory, for `torch.cuda.host_memory_stats`."""

from __future__ import annotations

from typing import Any, Final

_MOMENTS: Final = ("current", "peak", "allocated", "freed")


class HostMemory:
    """The caching allocator of pinned memory.

    The sizes of its blocks are powers of two. A freed block is kept for the next request of its
    size.
    """

    def __init__(self) -> None:
        """Begin without blocks, and with all figures at 0."""
        self.cached: list[int] = []
        names = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        self._figures = {name: dict.fromkeys(_MOMENTS, 0) for name in names}
        self._calls = {"alloc": 0, "free": 0}
        self.used = False  # ever

    def take(self, nbytes: int) -> int:
        """Take a block for `nbytes`, and return the size of the block.

        A cached block of that size is used, or a new one is counted.
        """
        self.used = True
        size = 1 << max(nbytes - 1, 0).bit_length()
        if size in self.cached:
            self.cached.remove(size)
        else:
            self._calls["alloc"] += 1
            self._add(allocations=1, allocated_bytes=size)
        self._add(active_requests=1, active_bytes=size)
        return size

    def give(self, size: int) -> None:
        """Free a block of this size: it is cached for the next request."""
        self.cached.append(size)
        self._add(active_requests=-1, active_bytes=-size)

    def empty_cache(self) -> None:
        """Give all cached blocks back."""
        self._calls["free"] += len(self.cached)
        freed = sum(self.cached)
        self._add(allocations=-len(self.cached), allocated_bytes=-freed)
        self.cached.clear()

    def _add(self, **changes: int) -> None:
        """Add to these figures, and update their peak and their totals."""
        for name, change in changes.items():
            figure = self._figures[name]
            figure["current"] += change
            figure["peak"] = max(figure["peak"], figure["current"])
            figure["allocated" if change > 0 else "freed"] += abs(change)

    def reset(self, *moments: str) -> None:
        """Restart the counting of "peak", or of all that was ever "allocated" and "freed".

        With "allocated" among the moments, the calls of the allocator are counted from 0 again,
        too.
        """
        for figure in self._figures.values():
            for moment in moments:
                figure[moment] = figure["current"] if moment == "peak" else 0
        if "allocated" in moments:
            self._calls.update(alloc=0, free=0)

    def statistics(self) -> dict[str, Any]:
        """The figures of torch.cuda.host_memory_stats(), as a tree."""
        found: dict[str, Any] = {}
        for name, figure in self._figures.items():
            found[name] = dict(figure)
        for name, count in self._calls.items():
            found[f"num_host_{name}"] = count
        for name, count in self._calls.items():
            found[f"host_{name}_time"] = {
                "total": 0,
                "max": 0,
                "min": 0,
                "count": count,
                "avg": 0,
            }
        return found
