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
from typing import Any, Final, NamedTuple

from virtual_cuda.identity import identity

ROUND: Final = 512
SMALL: Final = 1 << 20
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
LARGE_ALONE: Final = 10 << 20
NO_POOL: Final = (0, 0)
_FIRST: Final = 0x7E00_0000_0000  # of device 0; each device has 2**38 addresses
_REGIONS: Final = 16  # below them, for memory that is counted apart: 2**42 addresses each
_HERE: Final = os.path.dirname(os.path.abspath(__file__))
_OUR_FOLDER: Final = os.path.dirname(_HERE) + os.sep

Pool = tuple[int, int]
held_pools: Final[set[Pool]] = set()  # those that a program holds
unsplit_pools: Final[set[Pool]] = set()  # of these, those with a segment for each block


class Frame(NamedTuple):
    """A function that was running, by torch's names for it."""

    filename: str
    line: int
    name: str


Frames = tuple[Frame, ...]


def calling_frames() -> Frames:
    """The frames that lead here, the innermost first; those inside this package are left out."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OUR_FOLDER):
            found.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


def frames_as_dicts(frames: Frames) -> list[dict[str, Any]]:
    """The frames in the form that torch's memory snapshots have."""
    return [frame._asdict() for frame in frames]


class Spot:
    """A stretch of a segment, free or in use."""

    __slots__ = ("address", "frames", "requested", "segment", "size", "used")

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        """Describe a free stretch: where it begins in its segment, and its size in bytes."""
        self.segment = segment
        self.address = address
        self.size = size
        self.requested = 0
        self.used = False
        self.frames: Frames = ()

    def as_dict(self) -> dict[str, Any]:
        """The stretch in the form that torch's memory snapshots have: as a block."""
        return {
            "address": self.address,
            "size": self.size,
            "requested_size": self.requested,
            "state": "active_allocated" if self.used else "inactive",
            "frames": frames_as_dicts(self.frames),
        }


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
        self.spots = [Spot(self, address, total)]

    def is_empty(self) -> bool:
        """True if no block lies in it."""
        return not any(spot.used for spot in self.spots)

    def split(self, spot: Spot, size: int) -> None:
        """Cut a stretch to this size; what is over becomes a stretch of its own, which is free."""
        end = spot.address + size
        rest = Spot(self, end, spot.size - size)
        place = self.spots.index(spot)
        self.spots.insert(place + 1, rest)
        spot.size = size

    def join_with_neighbours(self, spot: Spot) -> None:
        """Join a free stretch with the free ones before and after it.

        The first of them grows, and the others are removed.
        """
        place = self.spots.index(spot)
        before = max(place - 1, 0)
        neighbours = self.spots[before : place + 2]
        joined = [each for each in neighbours if each is spot or not each.used]
        first, *others = joined
        for other in others:
            first.size += other.size
            self.spots.remove(other)

    def as_dict(self, device: int) -> dict[str, Any]:
        """The segment and its blocks in the form that torch's memory snapshots have."""
        used = sum(spot.size for spot in self.spots if spot.used)
        return {
            "device": device,
            "address": self.spots[0].address,
            "total_size": self.total,
            "allocated_size": used,
            "active_size": used,
            "requested_size": sum(spot.requested for spot in self.spots),
            "stream": self.stream,
            "segment_type": "small" if self.small else "large",
            "segment_pool_id": self.pool,
            "is_expandable": False,
            "frames": frames_as_dicts(self.frames),
            "blocks": [spot.as_dict() for spot in self.spots],
        }


class History:
    """The events that `torch.cuda.memory._record_memory_history` asks for."""

    def __init__(self, context: str | None, most: int, skipped: Iterable[str] = ()) -> None:
        """Begin an empty history of at most so many events, the latest ones.

        `context` says whose calling frames are kept, or is None; events of the actions in `skipped`
        are left out.
        """
        # Whose calling frames are kept: "state" those of blocks,
        # "alloc" also those of allocations among the events, "all" those of every event.
        self.context = context
        self.skipped = frozenset(skipped)
        most = min(most, sys.maxsize)
        self.entries: deque[dict[str, Any]] = deque(maxlen=most)
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
        keeps_frames = self.context == "all"
        if self.context == "alloc":
            keeps_frames = action in ("alloc", "segment_alloc", "oom")
        self.entries.append(
            {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time.time_ns() // 1000,
                "compile_context": "N/A",
                "user_metadata": self.metadata,
                "pool_id": pool,
                "frames": frames if keeps_frames else (),
            }
        )


class _WaitingSpot(NamedTuple):
    """A stretch that was freed while another stream worked on it."""

    until: float  # when that stream is done, by `time.perf_counter`
    spot: Spot


class Layout:
    """Where the blocks of one device lie."""

    def __init__(self, index: int, streams: dict[int, int], region: int = 0) -> None:
        """Begin without segments, at the first address of this device in a region.

        `streams` gives the current stream of each device; it is read whenever a block is placed.
        """
        self.index = index
        self._streams = streams  # device -> current stream
        self.segments: list[Segment] = []
        self.history: History | None = None
        # Pools in use, the innermost last; each with its thread, or None for all threads.
        self.pools: list[tuple[Pool, int | None]] = []
        self._next = _FIRST + (index << 38) - (region % _REGIONS << 42)
        self._spots: dict[int, Spot] = {}  # by the identity of a block
        self._users: dict[int, list[Any]] = {}  # likewise: other streams that work on it
        self._waiting: list[_WaitingSpot] = []

    @property
    def pool(self) -> Pool:
        """The pool of the blocks that this thread allocates now."""
        here = threading.get_ident()
        for pool, thread in reversed(self.pools):
            if thread is None or thread == here:
                return pool
        return NO_POOL

    def spot_of(self, block: Any, requested: int | None = None) -> Spot:
        """The stretch of memory of a block; it is given one if it has none.

        For that a segment may be added; both are noted in the history, if one is recorded.
        `requested` is how many bytes the program asked for, if that is less than the block's size.
        """
        spot = self._spots.get(identity(block))
        if spot is not None:
            return spot
        if requested is None:
            requested = block.size
        return self._place_block(block, requested)

    def _place_block(self, block: Any, requested: int) -> Spot:
        """Give a block its stretch of memory, and return it.

        First, stretches are freed whose streams are done. A segment may be added. All that is noted
        in the history, if one is recorded.
        """
        size = block.size
        history = self.history
        frames: Frames = ()
        if history is not None and history.context is not None:
            frames = calling_frames()
        stream = self._streams.get(self.index, 0)
        pool = self.pool
        self._release_waiting()
        spot = self._free_spot_for(size, pool, stream)
        if spot is None:
            spot = self._add_segment(size, pool, stream, frames).spots[0]
        # What is over becomes a free stretch of its own, if it is large enough.
        rest = spot.size - size
        if size <= SMALL:
            is_worth_it = rest >= ROUND
        else:
            is_worth_it = rest > SMALL
        if is_worth_it and pool not in unsplit_pools:
            spot.segment.split(spot, size)
        spot.used = True
        spot.requested = requested
        spot.frames = frames
        self._spots[identity(block)] = spot
        if history is not None:
            history.note("alloc", spot.address, requested, pool, stream, frames)
        return spot

    def _free_spot_for(self, size: int, pool: Pool, stream: int) -> Spot | None:
        """The smallest free stretch that fits, the one with the lowest address first, or None.

        Only stretches of this pool and this stream are looked at; nothing is taken.
        """
        is_small = size <= SMALL
        fitting = []
        for segment in self.segments:
            if segment.small is not is_small or segment.pool != pool or segment.stream != stream:
                continue
            fitting += [spot for spot in segment.spots if not spot.used and spot.size >= size]
        return min(fitting, key=lambda spot: (spot.size, spot.address), default=None)

    def _add_segment(self, size: int, pool: Pool, stream: int, frames: Frames) -> Segment:
        """Add a segment for a block of this size, note it in the history, and return it."""
        is_small = size <= SMALL
        if is_small:
            total = SMALL_SEGMENT
        elif size < LARGE_ALONE:
            total = LARGE_SEGMENT
        else:
            total = -(-size // SMALL_SEGMENT) * SMALL_SEGMENT  # rounded up
        address = self._next
        segment = Segment(address, total, is_small, pool, stream, frames)
        self._next += total
        self.segments.append(segment)
        if self.history is not None:
            self.history.note("segment_alloc", address, total, pool, stream, frames)
        return segment

    def release(self, block: Any) -> None:
        """Free the memory of a block; nothing happens if it has no address.

        Where another stream still works on it (see `record_stream`), it stays in use until that is
        done.
        """
        key = identity(block)
        spot = self._spots.pop(key, None)
        if spot is None:
            return
        self._note_free("free_requested", spot)
        until = 0.0
        for stream in self._users.pop(key, ()):
            until = max(until, stream._busy_until)
        if until > time.perf_counter():
            self._waiting.append(_WaitingSpot(until, spot))
        else:
            self._free_spot(spot)

    def record_stream(self, block: Any, stream: Any) -> None:
        """Note that another stream works on a block; `stream` is one of `torch_api/streams.py`.

        The block is given an address if it has none. When it is freed, its memory is not used again
        before the stream has done what it then has to do.
        """
        self.spot_of(block)
        users = self._users.setdefault(identity(block), [])
        users.append(stream)

    def _release_waiting(self) -> None:
        """Free the stretches whose streams have done their work."""
        waiting = self._waiting
        self._waiting = []
        for each in waiting:
            if each.until > time.perf_counter():
                self._waiting.append(each)
            else:
                self._free_spot(each.spot)

    def _note_free(self, action: str, spot: Spot) -> None:
        """Note in the history, if one is recorded, that a block was freed."""
        if self.history is not None:
            self._note_return(self.history, action, spot.address, spot.requested, spot.segment)

    def _note_return(
        self, history: History, action: str, address: int, size: int, segment: Segment
    ) -> None:
        """Note that memory of a segment was given back, with the frames if all are wanted."""
        frames: Frames = ()
        if history.context == "all":
            frames = calling_frames()
        history.note(action, address, size, segment.pool, segment.stream, frames)

    def _free_spot(self, spot: Spot) -> None:
        """Mark a stretch as free, and join it with free neighbours."""
        self._note_free("free_completed", spot)
        spot.used = False
        spot.requested = 0
        spot.frames = ()
        spot.segment.join_with_neighbours(spot)

    def empty(self) -> None:
        """Give segments back that nothing lies in.

        Segments of pools that a program holds stay. Each one given back is noted in the history.
        """
        self._release_waiting()
        for segment in list(self.segments):
            if segment.pool in held_pools or not segment.is_empty():
                continue
            self.segments.remove(segment)
            if self.history is not None:
                address = segment.spots[0].address
                self._note_return(self.history, "segment_free", address, segment.total, segment)

    def frames_at(self, address: int) -> list[dict[str, Any]] | None:
        """The frames that allocated the block at an address.

        None where no block begins there, or no frames were recorded.
        """
        for spot in self._spots.values():
            if spot.address == address:
                return frames_as_dicts(spot.frames) or None
        return None

    def snapshot(self, blocks: Iterable[Any], reserved: int) -> list[dict[str, Any]]:
        """All segments, as dictionaries, with these blocks in them.

        Blocks without an address are given one. `reserved` is how many bytes all segments have;
        cached memory that has no address yet is told as one more segment, the last.
        """
        for block in blocks:
            if block.size:
                self.spot_of(block)
        segments = list(self.segments)
        cached = reserved - sum(segment.total for segment in segments)
        if cached > 0:
            segments.append(Segment(self._next, cached, False))
        return [segment.as_dict(self.index) for segment in segments]

    def traces(self) -> list[dict[str, Any]]:
        """The events of the history, as dictionaries; an empty list if none is recorded."""
        if self.history is None:
            return []
        events = []
        # A copy, since other threads allocate meanwhile.
        for entry in list(self.history.entries):
            event = dict(entry)
            frames = event.pop("frames")
            if frames:
                event["frames"] = frames_as_dicts(frames)
            events.append(event)
        return events
