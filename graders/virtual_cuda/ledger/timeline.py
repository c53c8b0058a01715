"""The timeline of one call: its records in order, as plain data, thinned out to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from virtual_cuda.errors import BadTimeline
from virtual_cuda.ledger import questions, records
from virtual_cuda.ledger.records import Allocation, Operation, Record, Transfer

MOST_EVENTS: Final = 1_500
MOST_CALLS: Final = 64  # of one function, where every call has its timeline
LARGEST: Final = 60_000  # bytes, encoded
MOST_LINES: Final = 60
LONGEST: Final = 100  # characters of a line or a name
MOST_LANES: Final = 8
PARTS: Final = 200  # of a lane to scale
FEWEST: Final = 50  # events, below which thinning out any more would leave no picture
_HIGHEST: Final = 1 << 62

_Small = Literal[
    "op",
    "memory",
    "to device",
    "to host",
    "between devices",
    "sync",
    "explicit sync",
    "upload sync",
]
EventKind = Literal[_Small, "forward", "inner forward", "backward", "step", "scaler"]
LaneKind = Literal["kernel", "copy", "issue", "wait"]
# What is left out first when there is too much, and what is left out last.
RANKS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("sync", "explicit sync", "to device", "to host", "between devices"), 0),
    **dict.fromkeys(("forward", "backward", "step", "scaler", "upload sync"), 1),
    **dict.fromkeys(("op", "inner forward", "memory"), 2),
}
Natural = Annotated[int, msgspec.Meta(ge=0, le=_HIGHEST)]
Percentage = Annotated[int, msgspec.Meta(ge=0, le=100)]
LineNumber = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
ShortText = Annotated[str, msgspec.Meta(max_length=LONGEST)]


class TimelineEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record; `grad` and `autocast` are known of operations, `grad` of forward passes too."""

    kind: EventKind
    at: Natural  # its place in the order of all the call's records, from 0
    bytes: Annotated[
        int, msgspec.Meta(ge=-_HIGHEST, le=_HIGHEST)
    ]  # copied, taken, or with a minus given back
    line: LineNumber | None  # of the student's file
    grad: bool
    autocast: bool
    live: Natural  # bytes on the devices after it
    name: ShortText  # the operator, the module, or what made the host wait


class Lane(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the host or one stream did in each of so many equal parts of the time.

    Each part has the kind of work that took most of it, and the percentage in which there was any.
    """

    name: ShortText
    parts: Annotated[list[tuple[LaneKind, Percentage]], msgspec.Meta(max_length=PARTS)]


class Scaled(msgspec.Struct, frozen=True, gc=False):
    """A call to scale: what the host and each stream of a GPU would do when, modelled."""

    gpu: ShortText
    end: Natural  # nanoseconds
    idle: Percentage  # of the time in which the GPU waits
    limit: Annotated[str, msgspec.Meta(max_length=300)]  # what limits the code, in a sentence
    lanes: Annotated[list[Lane], msgspec.Meta(max_length=MOST_LANES)]


class Timeline(msgspec.Struct, frozen=True):
    """One call of one function.

    The sums are those of all that happened, also of events that were left out.
    """

    function: ShortText
    scenario: ShortText
    device: ShortText
    events: Annotated[list[TimelineEvent], msgspec.Meta(max_length=MOST_EVENTS)]
    peak_bytes: Natural = 0
    left_out: Natural = 0
    lines: Annotated[dict[LineNumber, ShortText], msgspec.Meta(max_length=MOST_LINES)] = {}
    counts: dict[EventKind, Natural] = {}
    # Synchronising reads of each line.
    waits: Annotated[dict[LineNumber, Natural], msgspec.Meta(max_length=MOST_LINES)] = {}
    to_device: Natural = 0  # bytes
    to_host: Natural = 0
    place: Natural | None = None  # among the calls in its scenario, from 0; None if unknown
    scaled: Scaled | None = None

    @property
    def wait_count(self) -> int:
        """The number of times that the host waited to read something from the device."""
        return self.counts.get("sync", 0)


def timeline_of(
    ledger: Sequence[Record],
    function: str,
    scenario: str,
    file: str,
    device: str = "cuda",
    source: Sequence[str] = (),
    peak_bytes: int = 0,
    limit: int = MOST_EVENTS,
    place: int | None = None,
    scaled: Scaled | None = None,
) -> Timeline:
    """The timeline of a call's records, thinned out to at most `limit` events and LARGEST bytes.

    Line numbers are those of `file`, whose text is `source`. `peak_bytes` is what the device knows
    beyond the records: the peaks inside an operation.
    """
    every = _events(ledger, file)
    waits = Counter(
        event.line for event in every if event.kind == "sync" and event.line is not None
    )
    # Sums over all events, before any is left out.
    whole = Timeline(
        function=_text(function),
        scenario=_text(scenario),
        device=_text(device),
        events=[],
        peak_bytes=max([peak_bytes, *(event.live for event in every)]),
        lines=_lines(every, source),
        counts=dict(Counter(event.kind for event in every)),
        waits=dict(waits.most_common(MOST_LINES)),
        to_device=sum(event.bytes for event in every if event.kind == "to device"),
        to_host=sum(event.bytes for event in every if event.kind == "to host"),
        place=place,
        scaled=scaled,
    )
    # Leave out more and more until the bytes are few enough.
    while True:
        events = _thinned(every, limit)
        made = msgspec.structs.replace(whole, events=events, left_out=len(every) - len(events))
        if limit <= FEWEST or len(encoded(made)) <= LARGEST:
            return made
        limit = limit * 3 // 4


def same_call(timeline: Timeline, others: Iterable[Timeline]) -> Timeline | None:
    """The call among `others` with the same place, scenario and device.

    None if there is no such call, or the place of this one is unknown.
    """
    if timeline.place is None:
        return None
    wanted = (timeline.scenario, timeline.place, timeline.device)
    return next(
        (other for other in others if (other.scenario, other.place, other.device) == wanted), None
    )


_decoder: Final = msgspec.msgpack.Decoder(Timeline)


def encoded(timeline: Timeline) -> bytes:
    """The timeline as bytes."""
    return msgspec.msgpack.encode(timeline)


def check_timeline(timeline: Timeline) -> Timeline:
    """The timeline, if it is well-formed beyond its types; raises BadTimeline if not."""
    try:
        data = encoded(timeline)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadTimeline(f"not a timeline: {str(error)[:LONGEST]}") from None
    return decode_timeline(data)


def decode_timeline(data: bytes) -> Timeline:
    """The timeline in these bytes; raises BadTimeline where it is not well-formed."""
    try:
        whole = _decoder.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadTimeline(f"not a timeline: {str(error)[:LONGEST]}") from None
    if (size := memoryview(data).nbytes) > LARGEST:
        raise BadTimeline(f"a timeline of {size} bytes is more than {LARGEST}")
    order = [event.at for event in whole.events]
    if order != sorted(set(order)):
        raise BadTimeline("the events of a timeline are not in order")
    if sum(whole.counts.values()) != len(whole.events) + whole.left_out:
        raise BadTimeline("a timeline does not count its own events")
    return whole


def _events(ledger: Sequence[Record], file: str) -> list[TimelineEvent]:
    """One event for each record, in order; only lines of `file` are told."""
    ledger = tuple(ledger)
    # What was on each device when the call began: what is there after its first record, without
    # what that took.
    memory = [r for r in ledger if isinstance(r, Operation | Allocation)]
    live = {r.device: max(r.live - r.bytes, 0) for r in reversed(memory)}
    reads = {id(wait) for wait in questions.waits(ledger)}
    events = []
    for at, record in enumerate(ledger):
        if isinstance(record, Operation | Allocation):
            live[record.device] = max(record.live, 0)
        site = record.site
        line = site.line if site is not None and site.file == file and site.line > 0 else None
        kind, size, grad, autocast, name = _describe(record)
        if kind == "sync" and id(record) not in reads:
            # Until the copy is on its way: nothing on the device is waited for, or read.
            kind = "upload sync"
        events.append(
            TimelineEvent(kind, at, size, line, grad, autocast, sum(live.values()), _text(name))
        )
    return events


def _describe(record: Record) -> tuple[EventKind, int, bool, bool, str]:
    """The kind, bytes, gradient mode, autocast and name that an event tells of a record."""
    match record:
        case Operation():
            name = record.name.removeprefix("aten.").partition(".")[0]
            return "op", record.bytes, record.builds_graph, record.autocast is not None, name
        case Transfer():
            kinds: dict[str, EventKind] = {"to_device": "to device", "to_host": "to host"}
            name = f"{record.source} to {record.target}"
            return kinds.get(record.direction, "between devices"), record.bytes, False, False, name
        # What has no bytes of its own: waits, passes, steps, and exchanges with other ranks.
        case records.Sync():
            return "explicit sync" if record.explicit else "sync", 0, False, False, record.what
        case records.Forward():
            # A model's layers are kept apart from the model: a picture shows the one call, and not
            # its forty.
            return (
                "inner forward" if record.depth else "forward",
                0,
                record.builds_graph,
                False,
                record.module,
            )
        case records.Backward():
            return "backward", 0, False, False, "backward"
        case records.OptimizerStep():
            return "step", 0, False, False, record.optimizer
        case records.Collective():
            return "op", 0, False, False, record.name
        case records.ScalerCall():
            return "scaler", 0, False, False, record.call
        case Allocation():
            return (
                "memory",
                record.bytes,
                False,
                False,
                "taken" if record.bytes >= 0 else "given back",
            )


def _thinned(events: list[TimelineEvent], limit: int) -> list[TimelineEvent]:
    """At most `limit` of the events, chosen evenly.

    Plain operations are left out first. The event at the peak of memory stays.
    """
    if len(events) <= limit:
        return events
    peak = max(events, key=lambda event: event.live)
    kept = {peak.at}
    for rank in sorted(set(RANKS.values())):
        group = [event.at for event in events if RANKS[event.kind] == rank and event.at not in kept]
        room = limit - len(kept)
        kept.update(
            group if len(group) <= room else (group[i * len(group) // room] for i in range(room))
        )
        if len(kept) >= limit:
            break
    return [event for event in events if event.at in kept]


def _lines(events: Iterable[TimelineEvent], source: Sequence[str]) -> dict[int, str]:
    """The text of the lines that did most, in their order."""
    busy = Counter(
        event.line for event in events if event.line is not None and event.line <= len(source)
    )
    waited = Counter(
        event.line for event in events if event.line in busy and RANKS[event.kind] == 0
    )
    wanted = sorted(busy, key=lambda line: (-waited[line], -busy[line], line))[:MOST_LINES]
    return {line: _text(source[line - 1].rstrip()) for line in sorted(wanted)}


def _text(text: str) -> str:
    """A text that can be encoded, and is not too long."""
    plain = str(text).encode("utf-8", "replace").decode()
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
