"""Addresses of device memory, and the history of allocations.

The allocator of `memory.py` counts. Where blocks lie is worked out here, by the rules of torch's
caching allocator, once someone asks for an address or a snapshot, or records the history.

A segment is memory that CUDA was asked for at once; blocks are parts of segments. A pool is a group
of segments that only share memory among themselves.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from virtual_cuda.identity import identity

ROUND: Final = 512
SMALL: Final = 1 << 20
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
LARGE_ALONE: Final = 10 << 20
NO_POOL: Final = (0, 0)
_FIRST: Final = 0x7E00_0000_0000  # of device 0; each device has 2**38 addresses
_OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

Frames = tuple[tuple[str, int, str], ...]
Pool = tuple[int, int]
kept: Final[set[Pool]] = set()  # pools that a program holds
unsplit: Final[set[Pool]] = set()  # of these, those with a segment for each block


def stack() -> Frames:
    """File, line and function of the calling frames, the innermost first.

    Frames inside this package are left out.
    """
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


def frames_as_dicts(frames: Frames) -> list[dict[str, Any]]:
    """The frames in the form that torch's memory snapshots have."""
    return [{"filename": filename, "line": line, "name": name} for filename, line, name in frames]


class Spot:
    """A stretch of a segment, free or in use."""

    __slots__ = ("address", "frames", "requested", "size", "used")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.requested = 0
        self.used = False
        self.frames: Frames = ()


class Segment:
    """Memory that was asked of CUDA at once."""

    __slots__ = ("frames", "pool", "small", "spots", "stream", "total")

    def __init__(
        self,
        address: int,
        total: int,
        small: bool,
        pool: Pool = NO_POOL,
        stream: int = 0,
        frames: Frames = (),
    ) -> None:
        """Describe a segment that is free as a whole.

        `total` is its size in bytes; `small` says whether blocks of at most 1 MiB lie in it;
        `frames` are those of the program that made the allocator ask for it.
        """
        self.total = total
        self.small = small
        self.pool = pool
        self.stream = stream  # on which alone its memory is used again
        self.frames = frames
        self.spots = [Spot(address, total)]

    def as_dict(self, device: int) -> dict[str, Any]:
        """The segment and its blocks in the form that torch's memory snapshots have."""
        used = sum(spot.size for spot in self.spots if spot.used)
        return {
            "device": device, "address": self.spots[0].address, "total_size": self.total, "allocated_size": used,
            "active_size": used, "requested_size": sum(spot.requested for spot in self.spots), "stream": self.stream,
            "segment_type": "small" if self.small else "large", "segment_pool_id": self.pool, "is_expandable": False,
            "frames": frames_as_dicts(self.frames),
            "blocks": [
                {"address": spot.address, "size": spot.size, "requested_size": spot.requested,
                 "state": "active_allocated" if spot.used else "inactive", "frames": frames_as_dicts(spot.frames)}
                for spot in self.spots
            ],
        }  # fmt: skip


class History:
    """The events that `torch.cuda.memory._record_memory_history` asks for."""

    def __init__(self, context: str | None, most: int, skipped: Iterable[str] = ()) -> None:
        # Whose calling frames are kept: "state" those of blocks,
        # "alloc" also those of allocations among the events, "all" those of every event.
        self.context = context
        self.skipped = frozenset(skipped)
        self.entries: deque[dict[str, Any]] = deque(maxlen=min(most, sys.maxsize))
        self.metadata = ""

    def note(
        self,
        action: str,
        address: int,
        size: int,
        pool: Pool = NO_POOL,
        stream: int = 0,
        frames: Frames = (),
    ) -> None:
        """Append one event, unless its action is one of those to skip.

        `address` is the free memory of the device, in bytes, where the action is "oom". The frames
        are kept only where `context` asks for them.
        """
        if action in self.skipped:
            return
        told = self.context == "all" or (
            self.context == "alloc" and action in ("alloc", "segment_alloc", "oom")
        )
        self.entries.append(
            {
                "action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": stream,
                "time_us": time.time_ns() // 1000, "compile_context": "N/A", "user_metadata": self.metadata,
                "pool_id": pool, "frames": frames if told else (),
            }
        )  # fmt: skip


class Layout:
    """Where the blocks of one device lie."""

    def __init__(self, index: int, streams: dict[int, int]) -> None:
        """Begin without segments, at the first address of this device.

        `streams` gives the current stream of each device; it is read whenever a block is placed.
        """
        self.index = index
        self._streams = streams  # device -> current stream
        self.segments: list[Segment] = []
        self.history: History | None = None
        # Pools in use, the innermost last; each with its thread, or None for all threads.
        self.pools: list[tuple[Pool, int | None]] = []
        self._next = _FIRST + (index << 38)
        self._known: dict[int, tuple[Segment, Spot]] = {}  # by the identity of a block
        self._users: dict[int, list[Any]] = {}  # likewise: other streams that work on it
        self._waiting: list[tuple[float, Segment, Spot]] = []  # freed, but so used

    @property
    def pool(self) -> Pool:
        """The pool of the blocks that this thread allocates now."""
        mine = (None, threading.get_ident())
        return next((pool for pool, thread in reversed(self.pools) if thread in mine), NO_POOL)

    def spot_of(self, block: Any, requested: int | None = None) -> Spot:
        """The stretch of memory of a block; it is given one if it has none.

        `requested` is how many bytes the program asked for, if that is less than the block's size.
        """
        known = self._known.get(identity(block))
        return (
            self._find_room(block, block.size if requested is None else requested)
            if known is None
            else known[1]
        )

    def _find_room(self, block: Any, requested: int) -> Spot:
        """Give a block its stretch of memory, and return it.

        This may add a segment. Both are noted in the history, if one is recorded.
        """
        size = block.size
        history = self.history
        frames = stack() if history is not None and history.context is not None else ()
        small = size <= SMALL
        stream = self._streams.get(self.index, 0)
        self._release_waiting()
        pool = self.pool
        # The smallest free stretch that fits, the lowest address first; or a new segment.
        free = [
            (spot.size, spot.address, segment, spot)
            for segment in self.segments
            if segment.small is small and segment.pool == pool and segment.stream == stream
            for spot in segment.spots
            if not spot.used and spot.size >= size
        ]
        if free:
            _, _, segment, spot = min(free, key=lambda found: found[:2])
        else:
            whole = -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
            total = SMALL_SEGMENT if small else LARGE_SEGMENT if size < LARGE_ALONE else whole
            segment = Segment(self._next, total, small, pool, stream, frames)
            self._next += total
            self.segments.append(segment)
            spot = segment.spots[0]
            if history is not None:
                history.note("segment_alloc", spot.address, total, pool, stream, frames)
        # What is over becomes a free stretch of its own, if it is large enough.
        rest = spot.size - size
        if pool not in unsplit and (rest >= ROUND if small else rest > SMALL):
            segment.spots.insert(segment.spots.index(spot) + 1, Spot(spot.address + size, rest))
            spot.size = size
        spot.used = True
        spot.requested = requested
        spot.frames = frames
        self._known[identity(block)] = segment, spot
        if history is not None:
            history.note("alloc", spot.address, requested, segment.pool, stream, frames)
        return spot

    def release(self, block: Any) -> None:
        """Free the memory of a block; nothing happens if it has no address.

        Where another stream still works on it (see `record_stream`), it stays in use until that is
        done.
        """
        found = self._known.pop(identity(block), None)
        if found is None:
            return
        self._note_free("free_requested", *found)
        until = max(
            (stream._busy_until for stream in self._users.pop(identity(block), ())), default=0.0
        )
        if until > time.perf_counter():
            self._waiting.append((until, *found))
        else:
            self._free_spot(*found)

    def record_stream(self, block: Any, stream: Any) -> None:
        """Note that another stream works on a block.

        The block is given an address if it has none. When it is freed, its memory is not used
        again before the stream has done what it then has to do.
        """
        self.spot_of(block)
        self._users.setdefault(identity(block), []).append(stream)

    def _release_waiting(self) -> None:
        """Free the stretches whose streams have done their work."""
        waiting = self._waiting
        self._waiting = []
        for until, segment, spot in waiting:
            if until > time.perf_counter():
                self._waiting.append((until, segment, spot))
            else:
                self._free_spot(segment, spot)

    def _note_free(self, action: str, segment: Segment, spot: Spot) -> None:
        """Note in the history, if one is recorded, that a block was freed."""
        if (history := self.history) is not None:
            frames = stack() if history.context == "all" else ()
            history.note(action, spot.address, spot.requested, segment.pool, segment.stream, frames)

    def _free_spot(self, segment: Segment, spot: Spot) -> None:
        """Mark a stretch as free, and join it with free neighbours."""
        self._note_free("free_completed", segment, spot)
        spot.used, spot.requested, spot.frames = False, 0, ()
        place = segment.spots.index(spot)
        for other in segment.spots[place + 1 : place + 2]:
            if not other.used:
                spot.size += other.size
                segment.spots.remove(other)
        for other in segment.spots[max(place - 1, 0) : place]:
            if not other.used:
                other.size += spot.size
                segment.spots.remove(spot)

    def empty(self) -> None:
        """Give segments back that nothing lies in.

        Segments of pools that a program holds stay. Each one given back is noted in the history.
        """
        self._release_waiting()
        for segment in [
            s
            for s in self.segments
            if s.pool not in kept and not any(spot.used for spot in s.spots)
        ]:
            self.segments.remove(segment)
            if self.history is not None:
                frames = stack() if self.history.context == "all" else ()
                address = segment.spots[0].address
                self.history.note(
                    "segment_free", address, segment.total, segment.pool, segment.stream, frames
                )

    def frames_at(self, address: int) -> list[dict[str, Any]] | None:
        """The frames that allocated the block at an address.

        None where no block begins there, or no frames were recorded.
        """
        frames = next((s.frames for _, s in self._known.values() if s.address == address), ())
        return frames_as_dicts(frames) if frames else None

    def snapshot(self, blocks: Iterable[Any], reserved: int) -> list[dict[str, Any]]:
        """All segments, as dictionaries, with these blocks in them.

        Blocks without an address are given one. `reserved` is how many bytes all segments have;
        cached memory that has no address yet is told as one more segment, the last.
        """
        for block in blocks:
            if block.size:
                self.spot_of(block)
        found = [segment.as_dict(self.index) for segment in self.segments]
        if (cached := reserved - sum(segment.total for segment in self.segments)) > 0:
            found.append(Segment(self._next, cached, False).as_dict(self.index))
        return found

    def traces(self) -> list[dict[str, Any]]:
        """The events of the history, as dictionaries; an empty list if none is recorded."""
        # A copy, since other threads allocate meanwhile.
        entries = () if self.history is None else list(self.history.entries)
        told = ((entry, frames_as_dicts(entry["frames"])) for entry in entries)
        return [
            {**{k: v for k, v in e.items() if k != "frames"}, **({"frames": f} if f else {})}
            for e, f in told
        ]
