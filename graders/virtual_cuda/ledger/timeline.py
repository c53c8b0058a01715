"""The timeline of one call: its records in order, as plain data, thinned out to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple

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
Difference = Annotated[int, msgspec.Meta(ge=-_HIGHEST, le=_HIGHEST)]
Percentage = Annotated[int, msgspec.Meta(ge=0, le=100)]
LineNumber = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
ShortText = Annotated[str, msgspec.Meta(max_length=LONGEST)]


class TimelineEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record; `grad` and `autocast` are known of operations, `grad` of forward passes too."""

    kind: EventKind
    at: Natural  # its place in the order of all the call's records, from 0
    bytes: Difference  # copied, taken, or with a minus given back
    line: LineNumber | None  # of the student's file
    grad: bool
    autocast: bool
    live: Natural  # bytes on the devices after it
    name: ShortText  # the operator, the module, or what made the host wait


Events = Sequence[TimelineEvent]


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
    idle: Percentage  # of the time in which the GPU runs nothing
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
    beyond the records: the peaks inside an operation. `place` is that of the call in its scenario,
    `scaled` its lanes to scale; None where unknown.
    """
    every = _events_of(ledger, file)
    counts = Counter(event.kind for event in every)
    peak_bytes = max([peak_bytes, *(event.live for event in every)])
    # Sums over all events, before any is left out.
    whole = Timeline(
        function=_short_text(function),
        scenario=_short_text(scenario),
        device=_short_text(device),
        events=[],
        peak_bytes=peak_bytes,
        lines=_texts_of_busy_lines(every, source),
        counts=dict(counts),
        waits=_waits_by_line(every),
        to_device=_bytes_of_kind(every, "to device"),
        to_host=_bytes_of_kind(every, "to host"),
        place=place,
        scaled=scaled,
    )
    # Leave out more and more until the bytes are few enough.
    while True:
        events = _thin_out(every, limit)
        left_out = len(every) - len(events)
        timeline = msgspec.structs.replace(whole, events=events, left_out=left_out)
        if limit <= FEWEST or len(encode_timeline(timeline)) <= LARGEST:
            return timeline
        limit = limit * 3 // 4


def _waits_by_line(events: Events) -> dict[int, int]:
    """How often each line made the host wait; of the worst lines, at most MOST_LINES."""
    counts: Counter[int] = Counter()
    for event in events:
        if event.kind == "sync" and event.line is not None:
            counts[event.line] += 1
    return dict(counts.most_common(MOST_LINES))


def _bytes_of_kind(events: Events, kind: EventKind) -> int:
    """The sum of the bytes of all events of one kind."""
    return sum(event.bytes for event in events if event.kind == kind)


def same_call(timeline: Timeline, others: Iterable[Timeline]) -> Timeline | None:
    """The call among `others` with the same place, scenario and device.

    None if there is no such call, or the place of this one is unknown.
    """
    if timeline.place is None:
        return None
    wanted = (timeline.place, timeline.scenario, timeline.device)
    for other in others:
        if (other.place, other.scenario, other.device) == wanted:
            return other
    return None


_decoder: Final = msgspec.msgpack.Decoder(Timeline)


def encode_timeline(timeline: Timeline) -> bytes:
    """The timeline as bytes."""
    return msgspec.msgpack.encode(timeline)


def check_timeline(timeline: Timeline) -> Timeline:
    """The timeline, if it is well-formed beyond its types; raises BadTimeline if not."""
    try:
        data = encode_timeline(timeline)
    except _NOT_A_TIMELINE as error:
        raise _bad_timeline(error) from None
    return decode_timeline(data)


# What msgspec raises for data of another form.
_NOT_A_TIMELINE: Final = (
    msgspec.MsgspecError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
)


def _bad_timeline(error: Exception) -> BadTimeline:
    """The error for data of another form, with the beginning of the reason."""
    reason = str(error)[:LONGEST]
    return BadTimeline(f"not a timeline: {reason}")


def decode_timeline(data: bytes) -> Timeline:
    """The timeline in these bytes; raises BadTimeline where it is not well-formed."""
    try:
        whole = _decoder.decode(data)
    except _NOT_A_TIMELINE as error:
        raise _bad_timeline(error) from None
    size = memoryview(data).nbytes
    if size > LARGEST:
        raise BadTimeline(f"a timeline of {size} bytes is more than {LARGEST}")
    order = [event.at for event in whole.events]
    if order != sorted(set(order)):
        raise BadTimeline("the events of a timeline are not in order")
    count = sum(whole.counts.values())
    if count != len(whole.events) + whole.left_out:
        raise BadTimeline("a timeline does not count its own events")
    return whole


def _events_of(ledger: Sequence[Record], file: str) -> list[TimelineEvent]:
    """One event for each record, in order; only lines of `file` are told."""
    ledger = tuple(ledger)
    live = _bytes_at_begin(ledger)
    reads = {id(wait) for wait in questions.waits(ledger)}
    events = []
    for at, record in enumerate(ledger):
        if isinstance(record, Operation | Allocation):
            live[record.device] = max(record.live, 0)
        described = _describe_record(record)
        kind = described.kind
        if kind == "sync" and id(record) not in reads:
            # Until the copy is on its way: nothing on the device is waited for, or read.
            kind = "upload sync"
        event = TimelineEvent(
            kind=kind,
            at=at,
            bytes=described.bytes,
            line=_line_in_file(record, file),
            grad=described.grad,
            autocast=described.autocast,
            live=sum(live.values()),
            name=_short_text(described.name),
        )
        events.append(event)
    return events


def _bytes_at_begin(ledger: Sequence[Record]) -> dict[str, int]:
    """The bytes on each device when the call began.

    That is what is there after its first record, without what that took.
    """
    live = {}
    for record in reversed(ledger):
        if isinstance(record, Operation | Allocation):
            live[record.device] = max(record.live - record.bytes, 0)
    return live


def _line_in_file(record: Record, file: str) -> int | None:
    """The line that caused a record; None if it is in another file."""
    site = record.site
    if site is None or site.file != file or site.line <= 0:
        return None
    return site.line


class _Described(NamedTuple):
    """What an event tells of a record."""

    kind: EventKind
    name: str
    bytes: int = 0
    grad: bool = False
    autocast: bool = False


_KINDS_OF_COPIES: Final[Mapping[str, EventKind]] = {
    "to_device": "to device",
    "to_host": "to host",
}


def _describe_record(record: Record) -> _Described:
    """What an event tells of a record."""
    match record:
        case Operation():
            name = record.name.removeprefix("aten.")
            name, _, _ = name.partition(".")
            return _Described(
                kind="op",
                name=name,
                bytes=record.bytes,
                grad=record.builds_graph,
                autocast=record.autocast is not None,
            )
        case Transfer():
            kind = _KINDS_OF_COPIES.get(record.direction, "between devices")
            name = f"{record.source} to {record.target}"
            return _Described(kind, name, record.bytes)
        case Allocation():
            name = "given back"
            if record.bytes >= 0:
                name = "taken"
            return _Described("memory", name, record.bytes)
        # What has no bytes of its own: waits, passes, steps, and exchanges with other ranks.
        case records.Sync():
            kind = "sync"
            if record.explicit:
                kind = "explicit sync"
            return _Described(kind, record.what)
        case records.Forward():
            # A model's layers are kept apart from the model: a picture shows the one call, and not
            # its forty.
            kind = "forward"
            if record.depth:
                kind = "inner forward"
            return _Described(kind, record.module, grad=record.builds_graph)
        case records.Backward():
            return _Described("backward", "backward")
        case records.OptimizerStep():
            return _Described("step", record.optimizer)
        case records.Collective():
            return _Described("op", record.name)
        case records.ScalerCall():
            return _Described("scaler", record.call)


def _thin_out(events: list[TimelineEvent], limit: int) -> list[TimelineEvent]:
    """At most `limit` of the events, chosen evenly.

    Plain operations are left out first. The event at the peak of memory stays.
    """
    if len(events) <= limit:
        return events
    peak = max(events, key=lambda event: event.live)
    chosen = {peak.at}
    for rank in sorted(set(RANKS.values())):
        room = limit - len(chosen)
        if room <= 0:
            break
        group = []
        for event in events:
            if RANKS[event.kind] == rank and event.at not in chosen:
                group.append(event.at)
        chosen.update(_choose_evenly(group, room))
    return [event for event in events if event.at in chosen]


def _choose_evenly(places: list[int], room: int) -> list[int]:
    """All places, or `room` of them at equal distances where there are more."""
    count = len(places)
    if count <= room:
        return places
    return [places[number * count // room] for number in range(room)]


def _texts_of_busy_lines(events: Events, source: Sequence[str]) -> dict[int, str]:
    """The text of the lines that did most, in their order; at most MOST_LINES."""
    busy_lines = _busy_lines(events, len(source))
    texts = {}
    for line in sorted(busy_lines[:MOST_LINES]):
        text = source[line - 1].rstrip()
        texts[line] = _short_text(text)
    return texts


def _busy_lines(events: Events, last_line: int) -> list[int]:
    """The lines up to `last_line` that caused events, those that did most first.

    Waits and copies count before other events.
    """
    waits_and_copies: Counter[int] = Counter()
    everything: Counter[int] = Counter()
    for event in events:
        if event.line is None or event.line > last_line:
            continue
        everything[event.line] += 1
        if RANKS[event.kind] == 0:
            waits_and_copies[event.line] += 1
    # Sorted by what counts least first: each sort leaves equals in the order of the one before.
    lines = sorted(everything)
    lines.sort(key=everything.__getitem__, reverse=True)
    lines.sort(key=waits_and_copies.__getitem__, reverse=True)
    return lines


def _short_text(text: str) -> str:
    """A text that can be encoded, cut to LONGEST characters."""
    plain = str(text).encode("utf-8", "replace").decode()
    if len(plain) <= LONGEST:
        return plain
    return plain[: LONGEST - 1] + "…"
