"""The caching allocator of a device: it counts memory, and raises where none is left.

A segment is memory that CUDA was asked for at once; blocks are parts of segments. Where blocks lie
is worked out in `layout.py`, once somebody asks for an address.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from virtual_cuda.device.hidden import conceal
from virtual_cuda.device.layout import (
    LARGE_ALONE,
    LARGE_SEGMENT,
    ROUND,
    SMALL,
    SMALL_SEGMENT,
    Layout,
    calling_frames,
)

# ---- the names of torch.cuda.memory_stats --------------------------------------------------------

_POOLS: Final = ("all", "large_pool", "small_pool")
_MOMENTS: Final = ("current", "peak", "allocated", "freed")
_FIGURES: Final = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_COUNTERS: Final = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
)


def zero_statistics() -> dict[str, int]:
    """The figures of `torch.cuda.memory_stats()` before anything was allocated.

    They stand in its order, and all are 0.
    """
    names = set(_COUNTERS)
    for moment in _MOMENTS:
        names.add(f"oversize_allocations.{moment}")
        names.add(f"oversize_segments.{moment}")
        for figure in _FIGURES:
            names.update(f"{figure}.{pool}.{moment}" for pool in _POOLS)
    return dict.fromkeys(sorted(names), 0)


# ---- the allocator -------------------------------------------------------------------------------


class OutOfMemory(Exception):
    """A request does not fit; the dispatcher turns this into torch's error."""

    def __init__(self, requested: int, allocator: Allocator) -> None:
        super().__init__(requested)
        self.requested = requested
        self.allocator = conceal(allocator)


class Piece:
    """A stretch of a large segment, free or in use, between its neighbours."""

    __slots__ = ("after", "before", "free", "size")

    def __init__(self, size: int, before: Piece | None = None, after: Piece | None = None) -> None:
        """Describe a stretch of `size` bytes that is in use, between its neighbours or the ends."""
        self.size = size
        self.before = before
        self.after = after
        self.free = False


class _Counted(NamedTuple):
    """The counts at the last call of `reset_accumulated_memory_stats`."""

    blocks_ever: int = 0
    blocks: int = 0
    live: int = 0


class BlockObserver(Protocol):
    """Is told of blocks of memory."""

    def took(self, block: Any, wanted: int) -> None:
        """A block has just got its memory, which is counted; `wanted` bytes were asked for."""

    def gave(self, block: Any) -> None:
        """A block is about to give its memory back."""


class Allocator:
    """The memory of one device.

    Small blocks, up to 1 MiB, are only counted. A large block is a piece of a segment.
    `ops/dispatch.py` counts a small block itself while `small_live` stays within `quick`.
    """

    __slots__ = (
        "allowed",
        "asked",
        "at_work",
        "blocks",
        "blocks_ever",
        "emptied",
        "for_library",
        "freed",
        "gives_addresses",
        "index",
        "layout",
        "library_bytes",
        "live",
        "lock",
        "observer",
        "ooms",
        "peak",
        "peak_reserved",
        "pieces",
        "quick",
        "region",
        "reserved_large",
        "retries",
        "returned",
        "since",
        "small_high",
        "small_live",
        "streams",
        "total",
        "waiting",
    )

    def __init__(
        self,
        total: int,
        index: int = 0,
        streams: dict[int, int] | None = None,
        region: int = 0,
    ) -> None:
        """Begin with `total` bytes, all of them free.

        `index` is the device's. For addresses: `streams` gives the current stream of each device,
        and `region` tells apart those of several allocators of a device.
        """
        self.index = index
        self.region = region
        self.streams = {} if streams is None else streams  # device -> current stream
        self.layout: Layout | None = None  # made by the first question about an address
        # In bytes.
        self.total = total
        self.allowed = total  # less where `set_per_process_memory_fraction` says so
        self.live = 0
        self.library_bytes = 0  # of `live`: what libraries keep, see `ops/workspaces.py`
        self.peak = 0
        self.freed = 0
        self.small_live = 0
        self.small_high = 0  # the most that small blocks had at once since the cache was emptied
        self.quick = 0  # as `small_high`; -1 while every block gets its address or is observed
        self.gives_addresses = False  # whether every block gets its address
        self.observer: BlockObserver | None = None
        self.for_library = False  # whether what is taken now is a library's workspace
        self.reserved_large = 0
        self.peak_reserved = 0
        # Counts.
        self.blocks = 0
        self.blocks_ever = 0
        self.ooms = 0
        self.retries = 0
        self.asked = 0  # segments that CUDA was asked for
        self.returned = 0  # segments that were given back
        self.emptied = 0  # how often the cache was emptied
        self.since = _Counted()
        # Blocks are freed at any moment: by other threads, and by the garbage collector while
        # another block is taken. So freed pieces wait until nobody is at work on the pieces.
        self.pieces: list[Piece] = []  # free stretches of large segments
        self.waiting: deque[Piece] = deque()  # freed, and not yet joined with their neighbours
        self.lock = threading.RLock()
        self.at_work = False  # whether the thread that has the lock is changing the pieces

    @property
    def reserved(self) -> int:
        """Bytes of all segments, in use or cached."""
        return _whole_segments(self.small_high) + self.reserved_large

    @property
    def free(self) -> int:
        """Bytes that another process could still have; cached memory is not free."""
        return self.total - self.reserved

    def take(self, wanted: int) -> tuple[int, Piece | None]:
        """Allocate a block of `wanted` bytes, and count it.

        Gives the size counted for it and, for a large one, its piece; a small one has None. The
        cache is emptied where there is no room otherwise. Raises OutOfMemory.
        """
        size = (wanted + ROUND - 1) & -ROUND
        piece = None
        if size <= SMALL:
            self._take_small(size)
        else:
            with self._working():
                piece = self._take_large(size)
            size = piece.size
        self.live += size
        if size:
            self.blocks += 1
            self.blocks_ever += 1
        if self.live > self.peak:
            self.peak = self.live
        return size, piece

    def give(self, size: int, piece: Piece | None) -> None:
        """Free a block of this size; `piece` is what `take` gave for it.

        A piece of a large segment is joined with free neighbours at once, or later by the thread
        that is at work on the pieces.
        """
        self.live -= size
        self.blocks -= 1
        if piece is None:
            self.small_live -= size
            return
        self.waiting.append(piece)
        # Whoever is at work on the pieces joins it when that is done.
        if not self.at_work and self.lock.acquire(blocking=False):
            try:
                with self._working():
                    pass
            finally:
                self.lock.release()

    def empty_cache(self) -> None:
        """Give segments back that nothing lives in, also those of the layout.

        That is counted, and the history of allocations notes those of the layout, if it is
        recorded.
        """
        with self._working():
            for piece in list(self.pieces):
                if piece.before is None and piece.after is None:
                    self.pieces.remove(piece)
                    self.reserved_large -= piece.size
                    self.returned += 1
        self._set_small_high(self.small_live)
        self.emptied += 1
        if self.layout is not None:
            self.layout.empty()

    def make_layout(self) -> Layout:
        """The addresses of the blocks; made when they are asked for first."""
        if self.layout is None:
            self.layout = Layout(self.index, self.streams, self.region)
        return self.layout

    def give_addresses(self, watched: bool) -> None:
        """Set whether every block gets its address when it is allocated, from now on."""
        self.gives_addresses = watched
        self._set_quick()

    def observe(self, observer: BlockObserver | None) -> None:
        """Tell an observer of every block from now on; None ends that."""
        self.observer = observer
        self._set_quick()

    def _set_quick(self) -> None:
        """Let `ops/dispatch.py` count small blocks itself, unless somebody wants to know them."""
        is_watched = self.gives_addresses or self.observer is not None
        self.quick = -1 if is_watched else self.small_high

    # ---- pieces ----

    def _take_small(self, size: int) -> None:
        """Count a small block, in a new segment where there is no room.

        The cache is emptied where no segment can be had otherwise. Raises OutOfMemory.
        """
        small_live = self.small_live + size
        if small_live > self.small_high:
            self._make_room(lambda: _whole_segments(small_live) + self.reserved_large, size)
            self._set_small_high(small_live)
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.small_live = small_live

    def _take_large(self, size: int) -> Piece:
        """Take the smallest free piece that fits, or one of a new segment, and return it.

        It is no longer free; what is over becomes a free piece. The cache is emptied where no
        segment can be had otherwise. Raises OutOfMemory.
        """
        fitting = [piece for piece in self.pieces if piece.size >= size]
        if fitting:
            piece = min(fitting, key=lambda piece: piece.size)
            self.pieces.remove(piece)
        else:
            piece = self._new_segment(size)
        piece.free = False
        rest = piece.size - size
        if rest > SMALL:
            remainder = Piece(rest, piece, piece.after)
            remainder.free = True
            if piece.after is not None:
                piece.after.before = remainder
            piece.after = remainder
            piece.size = size
            self.pieces.append(remainder)
        return piece

    def _new_segment(self, size: int) -> Piece:
        """Reserve a new segment, large enough for this size; gives the piece that is all of it.

        The cache is emptied where there is no room otherwise. Raises OutOfMemory.
        """
        segment = LARGE_SEGMENT if size < LARGE_ALONE else _whole_segments(size)
        self._make_room(lambda: self.reserved + segment, size)
        self.reserved_large += segment
        self.asked += 1
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Piece(segment)

    def _make_room(self, reserved_then: Callable[[], int], size: int) -> None:
        """Empty the cache where more would be reserved than is allowed.

        `reserved_then` says how many bytes would be reserved after the request; `size` is what is
        wanted. Raises OutOfMemory where that does not help, and notes it in the history.
        """
        if reserved_then() <= self.allowed:
            return
        self.retries += 1
        self.empty_cache()
        if reserved_then() <= self.allowed:
            return
        self.ooms += 1
        layout = self.layout
        if layout is not None and layout.history is not None:
            layout.history.note("oom", self.free, size, layout.pool, frames=calling_frames())
        raise OutOfMemory(size, self)

    def _set_small_high(self, size: int) -> None:
        """Ask for, or give back, segments so that small blocks of this many bytes have room.

        Nothing but the counts changes: those of segments, and the limit up to which blocks are only
        counted.
        """
        difference = _whole_segments(size) - _whole_segments(self.small_high)
        segments = difference // SMALL_SEGMENT
        if segments > 0:
            self.asked += segments
        else:
            self.returned -= segments
        self.small_high = size
        if self.quick >= 0:
            self.quick = size

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Reserve the pieces for this thread during a `with` block.

        What is freed meanwhile waits until the end of the block.
        """
        with self.lock:
            outer = self.at_work
            self.at_work = True
            try:
                if not outer:
                    self._join_waiting()
                yield
                if not outer:
                    self._join_waiting()
            finally:
                self.at_work = outer

    def _join_waiting(self) -> None:
        """Join freed pieces with their free neighbours, and add them to the free pieces."""
        while self.waiting:
            piece = self.waiting.popleft()
            piece.free = True
            if piece.before is not None and piece.before.free:
                self._swallow_before(piece, piece.before)
            if piece.after is not None and piece.after.free:
                self._swallow_after(piece, piece.after)
            self.pieces.append(piece)

    def _swallow_before(self, piece: Piece, neighbour: Piece) -> None:
        """Join a piece with the free one before it."""
        self.pieces.remove(neighbour)
        piece.size += neighbour.size
        piece.before = neighbour.before
        if piece.before is not None:
            piece.before.after = piece

    def _swallow_after(self, piece: Piece, neighbour: Piece) -> None:
        """Join a piece with the free one after it."""
        self.pieces.remove(neighbour)
        piece.size += neighbour.size
        piece.after = neighbour.after
        if piece.after is not None:
            piece.after.before = piece

    # ---- figures ----

    def reset_totals(self) -> None:
        """Count what is allocated and freed from 0 again."""
        self.freed = 0
        self.since = _Counted(self.blocks_ever, self.blocks, self.live)

    def reset_peaks(self) -> None:
        """Measure peaks from now on."""
        self.peak = self.live
        self.peak_reserved = self.reserved

    def statistics(self) -> dict[str, Any]:
        """The figures that torch.cuda.memory_stats() gives, in its order."""
        found: dict[str, Any] = zero_statistics()
        figures = self._figures_in_bytes()
        # Counts are known of all pools together.
        allocated = self.blocks_ever - self.since.blocks_ever
        freed = allocated + self.since.blocks - self.blocks
        counts = _Moments(self.blocks, self.blocks, allocated, freed)
        figures["allocation.all"] = counts
        figures["active.all"] = counts
        for figure, moments in figures.items():
            for moment, value in zip(_MOMENTS, moments, strict=True):
                found[f"{figure}.{moment}"] = value
        found["num_alloc_retries"] = self.retries
        found["num_ooms"] = self.ooms
        found["max_split_size"] = -1
        found["num_sync_all_streams"] = self.emptied
        found["num_device_alloc"] = self.asked
        found["num_device_free"] = self.returned
        return found

    def _figures_in_bytes(self) -> dict[str, _Moments]:
        """The figures in bytes, by their name and pool.

        Of the small and the large pool, only the present state is known.
        """
        figures = {}
        for pool, live, reserved in self._sizes_of_pools():
            split = reserved - live
            figures[f"inactive_split_bytes.{pool}"] = _Moments(split, split, split, 0)
            peak = self.peak_reserved if pool == "all" else reserved
            figures[f"reserved_bytes.{pool}"] = _Moments(reserved, peak, peak, peak - reserved)
            if pool == "all":
                ever = live - self.since.live + self.freed
                in_use = _Moments(live, self.peak, ever, self.freed)
            else:
                in_use = _Moments(live, live, live, 0)
            for figure in ("allocated_bytes", "active_bytes", "requested_bytes"):
                figures[f"{figure}.{pool}"] = in_use
        return figures

    def _sizes_of_pools(self) -> list[_PoolSizes]:
        """The bytes of each pool."""
        live_large = self.live - self.small_live
        reserved_small = self.reserved - self.reserved_large
        return [
            _PoolSizes("all", self.live, self.reserved),
            _PoolSizes("large_pool", live_large, self.reserved_large),
            _PoolSizes("small_pool", self.small_live, reserved_small),
        ]


class _PoolSizes(NamedTuple):
    """The bytes of one pool of memory."""

    pool: str  # one of _POOLS
    live: int  # in blocks
    reserved: int  # in segments


class _Moments(NamedTuple):
    """The values of one figure of `memory_stats`, in the order of _MOMENTS."""

    current: int
    peak: int
    allocated: int  # ever
    freed: int  # ever


def _whole_segments(size: int) -> int:
    """This many bytes, rounded up to whole segments for small blocks."""
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
