"""Addresses of device memory, and the history of allocations.

The allocator of `memory.py` counts. Where blocks lie is worked out here, by the rules of torch's caching allocator, once
someone asks for an address or a snapshot, or records the history.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from virtual_cuda.patching import identity

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
    """File, line and function of the calling frames outside this package, the innermost first."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


def frames_as_dicts(frames: Frames) -> list[dict[str, Any]]:
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
        self.total = total
        self.small = small
        self.pool = pool
        self.stream = stream  # on which alone its memory is used again
        self.frames = frames
        self.spots = [Spot(address, total)]

    def as_dict(self, device: int) -> dict[str, Any]:
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
    """What `torch.cuda.memory._record_memory_history` asks for."""

    def __init__(self, context: str | None, most: int, skipped: Iterable[str] = ()) -> None:
        self.context = context  # whose calling frames are kept: "state", "alloc" also of events, "all" also of frees
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
        self.index = index
        self._streams = streams  # device -> current stream
        self.segments: list[Segment] = []
        self.history: History | None = None
        self.pools: list[
            tuple[Pool, int | None]
        ] = []  # in use, the innermost last; by the thread, if it is one's own
        self._next = _FIRST + (index << 38)
        self._known: dict[int, tuple[Segment, Spot]] = {}  # by the identity of a block
        self._users: dict[int, list[Any]] = {}  # likewise: other streams that work on it
        self._waiting: list[tuple[float, Segment, Spot]] = []  # freed, but so used

    @property
    def pool(self) -> Pool:
        """Of the blocks that this thread allocates now."""
        mine = (None, threading.get_ident())
        return next((pool for pool, thread in reversed(self.pools) if thread in mine), NO_POOL)

    def spot(self, block: Any, requested: int | None = None) -> Spot:
        """Where a block lies; it is given a place if it has none."""
        known = self._known.get(identity(block))
        return (
            self._put(block, block.size if requested is None else requested)
            if known is None
            else known[1]
        )

    def _put(self, block: Any, requested: int) -> Spot:
        size = block.size
        history = self.history
        frames = stack() if history is not None and history.context is not None else ()
        small = size <= SMALL
        stream = self._streams.get(self.index, 0)
        self._release_waiting()
        pool = self.pool
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
        """The block's place is free again; nothing happens if it has none."""
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
            self._free(*found)

    def record_stream(self, block: Any, stream: Any) -> None:
        """When the block is freed, it is not used again before the stream has done what it then has to do."""
        self.spot(block)
        self._users.setdefault(identity(block), []).append(stream)

    def _release_waiting(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for until, segment, spot in waiting:
            if until > time.perf_counter():
                self._waiting.append((until, segment, spot))
            else:
                self._free(segment, spot)

    def _note_free(self, action: str, segment: Segment, spot: Spot) -> None:
        if (history := self.history) is not None:
            frames = stack() if history.context == "all" else ()
            history.note(action, spot.address, spot.requested, segment.pool, segment.stream, frames)

    def _free(self, segment: Segment, spot: Spot) -> None:
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
        """Give segments back that nothing lies in, but those of pools that may be used again."""
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
        """The frames that allocated the block at an address; None where there is none, or none were recorded."""
        frames = next((s.frames for _, s in self._known.values() if s.address == address), ())
        return frames_as_dicts(frames) if frames else None

    def snapshot(self, blocks: Iterable[Any], reserved: int) -> list[dict[str, Any]]:
        """All segments, with `blocks` in them; cached memory that no address was asked of is in the last."""
        for block in blocks:
            if block.size:
                self.spot(block)
        found = [segment.as_dict(self.index) for segment in self.segments]
        if (cached := reserved - sum(segment.total for segment in self.segments)) > 0:
            found.append(Segment(self._next, cached, False).as_dict(self.index))
        return found

    def traces(self) -> list[dict[str, Any]]:
        entries = (
            () if self.history is None else list(self.history.entries)
        )  # other threads allocate meanwhile
        told = ((entry, frames_as_dicts(entry["frames"])) for entry in entries)
        return [
            {**{k: v for k, v in e.items() if k != "frames"}, **({"frames": f} if f else {})}
            for e, f in told
        ]
