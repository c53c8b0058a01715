"""The caching allocator of a virtual GPU: it counts memory and raises when none is left."""

from __future__ import annotations

from typing import Any, Final

ROUND: Final = 512
SMALL: Final = 1 << 20
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
LARGE_ALONE: Final = 10 << 20
POOLS: Final = ("all", "large_pool", "small_pool")
MOMENTS: Final = ("current", "peak", "allocated", "freed")
FIGURES: Final = (
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


class OutOfMemory(Exception):
    """A request that does not fit; the dispatcher turns it into torch's error."""

    def __init__(self, requested: int, place: Allocator) -> None:
        super().__init__(requested)
        self.requested = requested
        self.place = place


class Piece:
    """A stretch of a large segment, free or in use, between its neighbours."""

    __slots__ = ("after", "before", "free", "size")

    def __init__(self, size: int, before: Piece | None = None, after: Piece | None = None) -> None:
        self.size = size
        self.before = before
        self.after = after
        self.free = False


class Allocator:
    """The memory of one device. `live` and `peak` are read and written by the dispatcher directly, for speed."""

    __slots__ = (
        "allowed",
        "blocks",
        "blocks_ever",
        "live",
        "ooms",
        "peak",
        "peak_reserved",
        "pieces",
        "reserved_large",
        "retries",
        "small_high",
        "small_live",
        "total",
    )

    def __init__(self, total: int) -> None:
        self.total = total
        self.allowed = total
        self.live = 0
        self.peak = 0
        self.blocks = 0
        self.blocks_ever = 0
        self.pieces: list[Piece] = []  # free stretches of large segments
        self.reserved_large = 0
        self.small_live = 0
        self.small_high = 0  # what the small segments must have held at once since the cache was last emptied
        self.peak_reserved = 0
        self.ooms = 0
        self.retries = 0

    @property
    def reserved(self) -> int:
        small = -(-self.small_high // SMALL_SEGMENT) * SMALL_SEGMENT
        return small + self.reserved_large

    @property
    def free(self) -> int:
        """What another process could still have: cached memory is not free."""
        return self.total - self.reserved

    def take(self, wanted: int) -> tuple[int, Piece | None]:
        """Allocate; gives the size counted for the block and, for a large one, its piece."""
        size = (wanted + ROUND - 1) & -ROUND
        if size <= SMALL:
            piece = None
            small = self.small_live + size
            if small > self.small_high:
                self._grow_small(small, size)
            self.small_live = small
        else:
            piece = self._take_large(size)
            size = piece.size
        self.live += size
        self.blocks += 1
        self.blocks_ever += 1
        if self.live > self.peak:
            self.peak = self.live
        return size, piece

    def give(self, size: int, piece: Piece | None) -> None:
        self.live -= size
        self.blocks -= 1
        if piece is None:
            self.small_live -= size
            return
        piece.free = True
        for side in ("before", "after"):
            neighbour = getattr(piece, side)
            if neighbour is not None and neighbour.free:
                self.pieces.remove(neighbour)
                piece.size += neighbour.size
                setattr(piece, side, getattr(neighbour, side))
                beyond = getattr(piece, side)
                if beyond is not None:
                    setattr(beyond, "after" if side == "before" else "before", piece)
        self.pieces.append(piece)

    def empty_cache(self) -> None:
        """Give segments back that nothing lives in."""
        for piece in [p for p in self.pieces if p.before is None and p.after is None]:
            self.pieces.remove(piece)
            self.reserved_large -= piece.size
        self.small_high = self.small_live

    def reset_peaks(self) -> None:
        self.peak = self.live
        self.peak_reserved = self.reserved

    def segments(self, index: int) -> list[dict[str, Any]]:
        """The form of torch.cuda.memory_snapshot(): what is reserved in each pool, without addresses."""
        large = self.live - self.small_live
        pools = {"small": (self.reserved - self.reserved_large, self.small_live), "large": (self.reserved_large, large)}
        return [
            {
                "device": index,
                "address": 0,
                "total_size": total,
                "allocated_size": used,
                "active_size": used,
                "requested_size": used,
                "stream": 0,
                "segment_type": kind,
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [],
            }
            for kind, (total, used) in pools.items()
            if total
        ]

    def statistics(self) -> dict[str, Any]:
        """The figures torch.cuda.memory_stats() gives."""
        large = self.live - self.small_live
        now = {
            "allocated_bytes": {"all": self.live, "small_pool": self.small_live, "large_pool": large},
            "reserved_bytes": {
                "all": self.reserved,
                "small_pool": self.reserved - self.reserved_large,
                "large_pool": self.reserved_large,
            },
        }
        now["active_bytes"] = now["requested_bytes"] = now["allocated_bytes"]
        now["inactive_split_bytes"] = {p: now["reserved_bytes"][p] - now["allocated_bytes"][p] for p in POOLS}
        found: dict[str, Any] = {}
        for figure in FIGURES:
            for pool in POOLS:
                current = now.get(figure, {}).get(pool, 0)
                if pool == "all" and figure in ("allocation", "active"):
                    current = self.blocks
                whole = pool == "all"
                peak = (
                    {"allocated_bytes": self.peak, "reserved_bytes": self.peak_reserved}.get(figure, current)
                    if whole
                    else current
                )
                ever = self.blocks_ever if whole and figure in ("allocation", "active") else peak
                for moment, value in zip(MOMENTS, (current, peak, ever, ever - current), strict=True):
                    found[f"{figure}.{pool}.{moment}"] = value
        for figure in ("oversize_allocations", "oversize_segments"):
            found.update({f"{figure}.{moment}": 0 for moment in MOMENTS})
        found.update(num_alloc_retries=self.retries, num_ooms=self.ooms, max_split_size=-1)
        found.update(num_sync_all_streams=0, num_device_alloc=0, num_device_free=0)
        return found

    def _grow_small(self, high: int, size: int) -> None:
        before, self.small_high = self.small_high, high
        if self.reserved > self.allowed:
            self.small_high = before
            self.retries += 1
            self.empty_cache()
            self.small_high = high
            if self.reserved > self.allowed:
                self.small_high = before
                self._refuse(size)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _take_large(self, size: int) -> Piece:
        fitting = [p for p in self.pieces if p.size >= size]
        if fitting:
            piece = min(fitting, key=lambda p: p.size)
            self.pieces.remove(piece)
        else:
            segment = LARGE_SEGMENT if size < LARGE_ALONE else -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
            if self.reserved + segment > self.allowed:
                self.retries += 1
                self.empty_cache()
                if self.reserved + segment > self.allowed:
                    self._refuse(size)
            self.reserved_large += segment
            self.peak_reserved = max(self.peak_reserved, self.reserved)
            piece = Piece(segment)
        piece.free = False
        rest = piece.size - size
        if rest > SMALL:
            remainder = Piece(rest, piece, piece.after)
            if piece.after is not None:
                piece.after.before = remainder
            piece.after = remainder
            piece.size = size
            remainder.free = True
            self.pieces.append(remainder)
        return piece

    def _refuse(self, size: int) -> None:
        self.ooms += 1
        raise OutOfMemory(size, self)
