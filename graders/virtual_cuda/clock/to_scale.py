"""Modelled times as pictures: lanes to scale for a timeline, and tracks of a trace for Perfetto."""

from __future__ import annotations

import math
from typing import Any

from virtual_cuda.clock.advice import what_limits
from virtual_cuda.clock.lanes import HOST, Interval, Times
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.records import Record
from virtual_cuda.ledger.timeline import MOST_LANES, PARTS, Lane, LaneKind, Scaled
from virtual_cuda.ledger.trace import TraceEvent, details_of, named_tracks, title_of


def lanes_to_scale(times: Times) -> Scaled:
    """The lanes of modelled times as plain data.

    For each part of the time, a lane says what it did, and how much of the part that took.
    """
    parts_per_second = PARTS / times.end if times.end else 0.0
    lanes = {HOST: _LaneParts(parts_per_second)}
    for interval in times.intervals:
        if interval.lane not in lanes:
            lanes[interval.lane] = _LaneParts(parts_per_second)
        lanes[interval.lane].add_interval(interval)
    drawn = []
    for name, parts in lanes.items():
        drawn.append(Lane(name, parts.finish()))
    return Scaled(
        gpu=times.label,
        end=round(times.end * 1e9),
        idle=round(times.idle_share * 100),
        limit=what_limits(times),
        lanes=drawn[:MOST_LANES],
    )


# What a lane did in one part of the time, and the percentage of the part in which it did anything.
_Part = tuple[LaneKind, int]


class _LaneParts:
    """What one lane did in each of PARTS equal parts of the time."""

    def __init__(self, parts_per_second: float) -> None:
        """Begin a lane that did nothing; the whole time is PARTS parts long."""
        self.parts_per_second = parts_per_second
        nothing: _Part = ("issue", 0)
        self.done = [nothing] * PARTS
        # Of the parts that are not filled by one interval: the share of each kind.
        self.shares: dict[int, dict[LaneKind, float]] = {}

    def add_interval(self, interval: Interval) -> None:
        """Add an interval to the parts of the time that it touches."""
        kind = interval.kind
        start = interval.start * self.parts_per_second
        end = interval.end * self.parts_per_second
        first = int(start)
        last = min(int(end), PARTS - 1)
        if first > last:  # nothing, at the very end
            return
        if first == last:
            self._add_share(first, kind, end - start)
            return
        share_of_first = first + 1 - start
        share_of_last = end - last
        self._add_share(first, kind, share_of_first)
        self._add_share(last, kind, share_of_last)
        # No lane does two things at a time: the parts between are filled.
        for part in range(first + 1, last):
            self.done[part] = (kind, 100)

    def _add_share(self, part: int, kind: LaneKind, share: float) -> None:
        """Add what an interval of this kind took of a part of the time."""
        shares = self.shares.setdefault(part, {})
        shares[kind] = shares.get(kind, 0.0) + share

    def finish(self) -> list[_Part]:
        """For each part what took most of it, and the percentage in which the lane did anything.

        The shares are put into `done` for that, which is returned.
        """
        for part, shares in self.shares.items():
            most = max(shares, key=shares.__getitem__)
            share = sum(shares.values())
            percentage = math.ceil(share * 100 - 1e-6)
            self.done[part] = (most, min(percentage, 100))
        return self.done


def modelled_trace(ledger: Ledger, times: Times) -> dict[str, list[TraceEvent]]:
    """The trace of modelled times, as Perfetto reads it.

    There is a track for the host and one for each stream, to scale. `times` are those of the
    ledger. Raises ValueError for a row of no known kind.
    """
    records = ledger.records_by_row()
    tracks = {HOST: 1}
    names = {1: f"{HOST}, modelled on {times.label}"}
    slices: list[TraceEvent] = []
    for interval in times.intervals:
        lane = interval.lane
        if lane not in tracks:
            number = len(tracks) + 1
            tracks[lane] = number
            names[number] = f"{lane}, modelled on {times.label}"
        record = records.get(interval.row)
        slices.append(_trace_event(interval, record, tracks[lane]))
    return {"traceEvents": [*named_tracks(names), *slices]}


def _trace_event(interval: Interval, record: Record | None, track: int) -> TraceEvent:
    """One slice of the trace, with the title and the details of the record, if it has one."""
    title = interval.name
    details: dict[str, Any] = {}
    if record is not None:
        title = title or title_of(record)
        details = details_of(record)
    return {
        "name": title or interval.kind,
        "cat": interval.kind,
        "ph": "X",
        "pid": 1,
        "tid": track,
        "ts": round(interval.start * 1e6, 3),
        "dur": round(interval.seconds * 1e6, 3),
        "args": {**details, "time": "modelled"},
    }
