"""A trace of a ledger, in the format that Perfetto and Chrome read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from virtual_cuda.ledger.questions import Records
from virtual_cuda.ledger.records import (
    Allocation,
    Backward,
    Collective,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Span,
    Sync,
    Transfer,
)

TraceEvent = dict[str, Any]
Trace = dict[str, list[TraceEvent]]

PROCESS: Final = 1
# The numbers of tracks.
HOST: Final = 1
COPIES: Final = 2
SYNCS: Final = 3
FIRST_DEVICE: Final = 4

# All in microseconds, the unit of the format. A ledger knows when something began, not how long it
# took: it is drawn until the next thing happened, but no longer than this, because the gap may be
# the student's own Python.
SHORTEST: Final = 1.0
LONGEST: Final = 10_000.0


class _Title(NamedTuple):
    """How a trace names a kind of record."""

    name: str  # with places for the record's attributes
    category: str


_TITLES: Final[dict[type[Record], _Title]] = {
    Operation: _Title("{0.name}", "operation"),
    Transfer: _Title("{0.source} → {0.target}", "copy"),
    Sync: _Title("{0.what}", "sync"),
    Forward: _Title("{0.module}", "forward"),
    Backward: _Title("backward", "backward"),
    OptimizerStep: _Title("{0.optimizer}.step", "optimizer"),
    Collective: _Title("{0.name}", "collective"),
    ScalerCall: _Title("scaler.{0.call}", "scaler"),
    Allocation: _Title("allocation on {0.device}", "memory"),
}
# What a trace tells of a record besides its line: the names of its attributes, by the trace's.
_DETAILS: Final[dict[type[Record], dict[str, str]]] = {
    Operation: {"bytes": "bytes", "dtype": "autocast", "grad": "builds_graph"},
    Transfer: {"bytes": "bytes", "pinned": "pinned", "non_blocking": "non_blocking"},
    Sync: {"explicit": "explicit"},
    Collective: {"bytes": "bytes", "ranks": "ranks", "device": "device"},
    Forward: {"training": "training", "grad": "builds_graph", "devices": "devices"},
}


def trace_of(records: Records) -> Trace:
    """The trace of the records, as Perfetto reads it: the names of its tracks, then the events."""
    device_tracks = _tracks_of_devices(records)
    names = {HOST: "host", COPIES: "copies", SYNCS: "synchronisations"}
    for device, track in device_tracks.items():
        names[track] = f"operations on {device}"
    events = named_tracks(names)
    events += _span_events(records)
    events += _short_events(records, device_tracks)
    events += [_scaler_event(record) for record in records if isinstance(record, ScalerCall)]
    for record in records:
        if isinstance(record, Operation | Allocation):
            events.append(_memory_event(record))
    return {"traceEvents": events}


def _tracks_of_devices(records: Records) -> dict[str, int]:
    """The number of the track for each device on which an operation ran."""
    devices = {record.device for record in records if isinstance(record, Operation)}
    tracks = {}
    for track, device in enumerate(sorted(devices), FIRST_DEVICE):
        tracks[device] = track
    return tracks


def named_tracks(tracks: Mapping[int, str]) -> list[TraceEvent]:
    """The events that name tracks and put them in order."""
    events: list[TraceEvent] = []
    for track, name in tracks.items():
        of_track: TraceEvent = {"ph": "M", "pid": PROCESS, "tid": track, "ts": 0}
        naming = {"name": "thread_name", "args": {"name": name}}
        ordering = {"name": "thread_sort_index", "args": {"sort_index": track}}
        events.append({**naming, **of_track})
        events.append({**ordering, **of_track})
    return events


def _scaler_event(call: ScalerCall) -> TraceEvent:
    """A call of a gradient scaler: a moment on the track of the host, without a length."""
    start = _microseconds(call.at)
    return _event(call, "i", start, HOST, s="t")


def _slice_event(record: Record, track: int, start: float, end: float) -> TraceEvent:
    """A slice of a track, from `start` to `end` in microseconds."""
    length = round(end - start, 3)
    return _event(record, "X", start, track, dur=length)


def _memory_event(record: Operation | Allocation) -> TraceEvent:
    """A point of the curve of memory on a device."""
    return {
        "name": f"live bytes on {record.device}",
        "cat": "memory",
        "ph": "C",
        "ts": _microseconds(record.at),
        "pid": PROCESS,
        "tid": HOST,
        "args": {"bytes": record.live},
    }


def _span_events(records: Records) -> list[TraceEvent]:
    """Passes and steps as slices, one inside the other.

    A slice never lasts longer than the one it began in.
    """
    moments = _moments_of(records)
    events: list[TraceEvent] = []
    enclosing: list[float] = []  # ends of the spans around this one, outermost first
    for span in records:
        if not isinstance(span, Span):
            continue
        start = _microseconds(span.at)
        while enclosing and enclosing[-1] <= start:
            enclosing.pop()
        end = moments[-1]  # a span without an end raised
        if span.seconds is not None:
            end = _microseconds(span.at + span.seconds)
        end = max(end, start + SHORTEST)
        if enclosing:
            # A span of another thread may outlive the one it is drawn inside.
            end = min(end, enclosing[-1])
        enclosing.append(end)
        events.append(_slice_event(span, HOST, start, end))
    return events


def _short_events(records: Records, device_tracks: dict[str, int]) -> list[TraceEvent]:
    """Operations, copies and synchronisations, one after the other on each track.

    `device_tracks` has the number of the track of each device.
    """
    moments = _moments_of(records)
    free_from: dict[int, float] = {}  # by track
    events: list[TraceEvent] = []
    for record in records:
        track = _track_of(record, device_tracks)
        if track is None:
            continue
        began = _microseconds(record.at)
        # Slices that overlap without nesting are drawn wrongly, and two rows can be closer than the
        # shortest slice.
        start = max(began, free_from.get(track, began))
        end = _moment_after(began, moments)
        end = max(end, start + SHORTEST)
        end = min(end, start + LONGEST)
        free_from[track] = end
        events.append(_slice_event(record, track, start, end))
    return events


def _moment_after(moment: float, moments: list[float]) -> float:
    """The next of the moments, which are in order; the same moment if there is none."""
    following = bisect_right(moments, moment)
    if following == len(moments):
        return moment
    return moments[following]


def _track_of(record: Record, device_tracks: dict[str, int]) -> int | None:
    """The track of an operation, copy or synchronisation; None for other records.

    Raises KeyError for an operation on a device without a track.
    """
    match record:
        case Operation():
            return device_tracks[record.device]
        case Transfer():
            return COPIES
        case Sync():
            return SYNCS
    return None


def _moments_of(records: Records) -> list[float]:
    """Every moment at which something began or ended, in microseconds, in order."""
    seconds = [record.at for record in records]
    for record in records:
        if isinstance(record, Span) and record.seconds is not None:
            seconds.append(record.at + record.seconds)
    return sorted(_microseconds(moment) for moment in seconds)


def _event(record: Record, phase: str, start: float, track: int, **more: Any) -> TraceEvent:
    """One event of the trace, with the title and the details of its record.

    `phase` is the letter that the format has for the kind of event, `start` is in microseconds,
    `more` are further fields.
    """
    return {
        "name": title_of(record),
        "cat": _TITLES[type(record)].category,
        "ph": phase,
        "ts": round(start, 3),
        "pid": PROCESS,
        "tid": track,
        **more,
        "args": details_of(record),
    }


def title_of(record: Record) -> str:
    """The name of a record in a trace."""
    return _TITLES[type(record)].name.format(record)


def details_of(record: Record) -> TraceEvent:
    """The details of a record for a trace: its line, its index, and some of its attributes."""
    details: TraceEvent = {}
    if record.site is not None:
        details["site"] = str(record.site)
    details["record"] = record.index
    attributes = _DETAILS.get(type(record), {})
    for key, attribute in attributes.items():
        value = getattr(record, attribute)
        if value is not None:
            details[key] = value
    return details


def _microseconds(seconds: float) -> float:
    """Seconds as microseconds, the unit of a trace."""
    return round(seconds * 1e6, 3)
