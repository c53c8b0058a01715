"""The timeline of one call: its records in order, thinned to a size that can be sent, and drawn as text."""

from __future__ import annotations

import codecs
import re
import textwrap
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Final, Literal

import msgspec

from virtual_cuda.errors import BadTimeline
from virtual_cuda.ledger import questions, records
from virtual_cuda.ledger.records import Allocation, Operation, Record, Transfer

SHARE: Final = (
    0.75  # of the columns, at most, for events that have one each; the rest is for operations
)


def mark_of(event: TimelineEvent) -> str | None:
    """The kind of mark that an event has, a key of MARKS.

    None where it has none: it shows in the memory, or inside a pass or a copy that is drawn.
    """
    match event.kind:
        case "op":
            return f"{'grad' if event.grad else 'no-grad'}{'-autocast' if event.autocast else ''}"
        case "sync":
            return "wait"
        case "explicit sync":
            return "explicit-wait"
        case "memory" | "inner forward" | "upload sync":
            return None
    return event.kind.replace(" ", "-")


@dataclass
class Column:
    """Some events that follow one another."""

    events: list[TimelineEvent]
    live: int = 0  # bytes, the most in it

    def count(self, *kinds: str) -> int:
        return sum(event.kind in kinds for event in self.events)

    def bytes(self, kind: str) -> int:
        return sum(event.bytes for event in self.events if event.kind == kind)

    @property
    def waits(self) -> int:
        """How often the host waited here."""
        return self.count("sync", "explicit sync")


def columns(timeline: Timeline, room: int) -> list[Column]:
    """At most `room` columns. Copies and waits have one each as long as there are enough."""
    drawn = [event for event in timeline.events if mark_of(event) is not None]
    places = _places(drawn, max(room, 1))
    pairs = groupby(zip(drawn, places, strict=True), key=itemgetter(1))
    found = [Column([event for event, _ in group]) for _, group in pairs]
    # Each column's memory: the most from its first event to the next column's.
    starts = [column.events[0].at for column in found]
    for event in timeline.events if found else ():
        column = found[max(bisect_right(starts, event.at) - 1, 0)]
        column.live = max(column.live, event.live)
    return found


def _places(events: Sequence[TimelineEvent], room: int) -> list[int]:
    if len(events) <= room:
        return list(range(len(events)))
    special = sum(event.kind != "op" for event in events)
    plain = len(events) - special
    if special > room * SHARE or not plain:
        return [place * room // len(events) for place in range(len(events))]
    left = room - special
    places = []
    specials_before = 0
    plain_before = 0
    for event in events:
        places.append(specials_before + plain_before * left // plain)
        if event.kind == "op":
            plain_before += 1
        else:
            specials_before += 1
    return places


# A text and its meaning: "", "wait", "copy", "grad", "no grad", "autocast", "pass" or "memory".
Fragment = tuple[str, str]
DrawnLine = tuple[Fragment, ...]

LABEL: Final = 9
NARROWEST: Final = 40
WIDEST: Final = 160
BARS: Final = "▁▂▃▄▅▆▇█"
WAIT = "│"
WAITS = "║"
EXPLICIT = "┊"
LANE: Final = "─"
ARROWS: Final = {"↓": "to device", "↑": "to host", "↔": "between devices"}
# The marks of a timeline by kind: the sign in text, and the meaning. Pages draw the same kinds in their own shapes.
MARKS: Final = {
    "wait": (WAIT, "the host waits to read from the device"),
    "explicit-wait": (EXPLICIT, "an explicit synchronize"),
    "to-device": ("↓", "copy to the device"),
    "to-host": ("↑", "copy to the host"),
    "between-devices": ("↔", "copy between devices"),
    "forward": ("F", "forward"),
    "backward": ("B", "backward"),
    "step": ("S", "optimizer step"),
    "scaler": ("s", "scaler"),
    "grad": ("•", "operation, grad on"),
    "no-grad": ("·", "operation, grad off"),
    "grad-autocast": ("◆", "autocast, grad on"),
    "no-grad-autocast": ("◇", "autocast, grad off"),
}
MEANINGS: Final = {"•": "grad", "·": "no grad", "◆": "autocast", "◇": "autocast"}
LINES: Final = 5  # that made the host wait, the worst first
NOTHING_BESIDE: Final = "The reference has nothing to draw for the same call."
LEGEND: Final = (f"{WAITS} several waits", *(f"{sign} {words}" for sign, words in MARKS.values()))


def draw_timeline(
    timeline: Timeline, width: int, theirs: Timeline | None = None
) -> list[DrawnLine]:
    """The lines of the picture, `width` characters wide, with a heading and a comparison with the reference."""
    width = min(max(width, NARROWEST), WIDEST)
    found = columns(timeline, width - LABEL)
    count = counted(sum(timeline.counts.values()), "event")
    waits = counted(timeline.wait_count, "wait")
    left_out = f" ({timeline.left_out:,} of them not drawn)" if timeline.left_out else ""
    where = (
        f" in its busiest call (scenario “{shown(timeline.scenario)}”, on {shown(timeline.device)})"
    )
    heading = f"{shown(timeline.function)}: {waits}, {count}{left_out}{where if timeline.scenario else ''}"
    lines: list[DrawnLine] = [((cut(heading, width), ""),)]
    if found:
        highest = max([timeline.peak_bytes, 1, *(column.live for column in found)])
        bars = "".join(
            BARS[min(len(BARS) * column.live // highest, len(BARS) - 1)] for column in found
        )
        lines += [
            _lane("host", found, _on_host, "pass"),
            _lane("", found, _between, "copy"),
            _lane("device", found, _on_device, ""),
            ((f"{'memory':>{LABEL - 1}} ", ""), (bars, "memory")),
        ]
    lines += [((cut(text, width), ""),) for text in (*_copies(timeline), *_waits(timeline))]
    if timeline.scaled is not None:
        lines += draw_scaled(timeline.scaled, width)
    if not timeline.scenario:  # a whole program, which has no reference
        return lines + [((text, ""),) for text in timeline_legend(width)]
    last = compared(timeline, theirs) if theirs is not None else NOTHING_BESIDE
    return lines + [((line, ""),) for line in textwrap.wrap(last, width, subsequent_indent="  ")]


# Of a lane to scale: the signs for what fills little of a column, more, and most of it.
FILLED: Final[dict[LaneKind, str]] = {"kernel": "░▒▓█", "copy": "▽▼", "issue": "░▒▓█", "wait": "╎┃"}
SHADES: Final = {"kernel": "grad", "copy": "copy", "issue": "pass", "wait": "wait"}
FILLINGS: Final = "░▒▓█ works little, more, all of the time   ▽▼ copies   ╎┃ waits for the GPU"


def draw_scaled(scaled: Scaled, width: int) -> list[DrawnLine]:
    """The lanes of host and streams to scale, the meaning of the signs, and what limits the code."""
    room = max(width - LABEL, 1)
    heading = f"modelled on {shown(scaled.gpu)}, to scale: {duration(scaled.end)}, GPU idle {scaled.idle} % of the time"
    lines: list[DrawnLine] = [((cut(heading, width), ""),)]
    for lane in scaled.lanes:
        label = re.sub(r"^cuda:(\d+) stream ", r"GPU \1 s", shown(lane.name)).removesuffix(" s0")
        cells = ((sign, SHADES.get(kind, "")) for sign, kind in _filled(lane, room))
        lines.append(tuple(_joined([(f"{cut(label, LABEL - 1):>{LABEL - 1}} ", ""), *cells])))
    lines.append(((f"{'':{LABEL}}0{duration(scaled.end):>{room - 1}}", ""),))
    lines.append(((f"{'':{LABEL}}{cut(FILLINGS, room)}", ""),))
    return lines + [((line, ""),) for line in textwrap.wrap(shown(scaled.limit), width)]


def _filled(lane: Lane, room: int) -> Iterator[tuple[str, str]]:
    """A sign and its kind for each column of a lane."""
    count = len(lane.parts)
    for column in range(room if count else 0):
        parts = lane.parts[
            column * count // room : max((column + 1) * count // room, column * count // room + 1)
        ]
        kind, _ = max(parts, key=itemgetter(1))
        share = sum(percent for _, percent in parts) / len(parts)
        yield (
            (FILLED[kind][min(int(share * len(FILLED[kind]) / 100), len(FILLED[kind]) - 1)], kind)
            if share
            else (LANE, "")
        )


def duration(nanoseconds: int) -> str:
    """Short, for a picture: "12.3 ms"."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= scale * 0.9995:
            value = nanoseconds / scale
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
    return f"{nanoseconds} ns"


def timeline_legend(width: int) -> list[str]:
    """The meaning of the signs, in lines of at most `width` characters."""
    lines = [""]
    for entry in LEGEND:
        longer = f"{lines[-1]}   {entry}".strip()
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(entry)
    return lines


# What is written instead where an output has not all characters, such as a file in a Windows code page.
SIMILAR: Final = {
    sign: similar
    for similar, signs in {
        "#": "█▓▇■",
        "=": "▒▆▅",
        ".": "░▄▃▂▁·…",
        "-": "─━╌–—",
        "|": "│┃║┊╎",
        "+": "┌┐└┘├┤┬┴┼╭╮╰╯✓✔",
        "v": "↓▼▽",
        "^": "↑▲△",
        ">": "→▶▸❱›",
        "<": "←◀",
        "x": "↔×✗✘",
        "*": "•●★",
        "A": "◆",
        "a": "◇",
        "u": "µ",
        '"': "“”",
    }.items()
    for sign in signs
}


def _similar(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(
        SIMILAR.get(sign, "?") for sign in error.object[error.start : error.end]
    ), error.end


codecs.register_error("similar", _similar)


def write_similar(*streams: Any) -> None:
    """Lets text streams without all characters write similar ones instead of raising an error."""
    for stream in streams:
        try:
            "█".encode(stream.encoding or "ascii")
        except (UnicodeEncodeError, LookupError, AttributeError):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="similar")


def plain_lines(lines: Sequence[DrawnLine]) -> list[str]:
    """The text of the lines, without the meanings."""
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def compared(yours: Timeline, theirs: Timeline) -> str:
    """One line on what differs from the reference's run."""
    parts = [f"{counted(yours.wait_count, 'wait')} (reference: {theirs.wait_count})"]
    for what, mine, other in (
        ("to the device", yours.to_device, theirs.to_device),
        ("to the host", yours.to_host, theirs.to_host),
        ("peak", yours.peak_bytes, theirs.peak_bytes),
    ):
        parts += [f"{what} {size(mine)} (reference: {size(other)})"] if mine != other else []
    return f"Your code: {', '.join(parts)}"


def size(count: int) -> str:
    """Short, for a picture: "512 B", "1.5 KiB"."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    place = min(max(count.bit_length() - 1, 0) // 10, len(units) - 1)
    value = count / 1024**place
    return f"{value:.3g} {units[place]}" if value < 1000 else f"{value:.0f} {units[place]}"


def shown(text: str) -> str:
    """Foreign text for a terminal: characters that would move the cursor or turn the line around are replaced."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def _lane(
    label: str, found: Sequence[Column], sign: Callable[[Column], str], meaning: str
) -> DrawnLine:
    pieces: list[Fragment] = [(f"{label:>{LABEL - 1}} ", "")]
    for column in found:
        if column.waits:
            several = column.count("sync")
            pieces.append((WAITS if several > 1 else WAIT if several else EXPLICIT, "wait"))
        else:
            made = sign(column)
            pieces.append((made, MEANINGS.get(made, meaning if made not in (LANE, " ") else "")))
    return tuple(_joined(_labelled(pieces, found) if not label else pieces))


def _labelled(pieces: list[Fragment], found: Sequence[Column]) -> list[Fragment]:
    """Arrows with their bytes beside them, where nothing else stands."""
    cells = [text for text, _ in pieces]
    for place, column in enumerate(found, 1):
        if cells[place] not in ("↓", "↑", "↔") or not column.bytes(ARROWS[cells[place]]):
            continue
        label = size(column.bytes(ARROWS[cells[place]]))
        after = cells[place + 1 : place + 2 + len(label)]
        if all(cell == " " for cell in after) and len(after) >= len(label):
            cells[place + 1 : place + 1 + len(label)] = list(label)
    return [
        (cell, meaning or ("copy" if cell.strip() and n else ""))
        for n, (cell, (_, meaning)) in enumerate(zip(cells, pieces, strict=True))
    ]


def _on_host(column: Column) -> str:
    passes = ("forward", "backward", "step", "scaler")
    return next((MARKS[kind][0] for kind in passes if column.count(kind)), LANE)


def _between(column: Column) -> str:
    down = column.count("to device")
    up = column.count("to host")
    if down and up:
        return "↕"
    return "↓" if down else "↑" if up else "↔" if column.count("between devices") else " "


def _on_device(column: Column) -> str:
    ticks = [MARKS[mark_of(event) or ""][0] for event in column.events if event.kind == "op"]
    return max(set(ticks), key=ticks.count) if ticks else LANE


def _copies(timeline: Timeline) -> Iterator[str]:
    down = timeline.counts.get("to device", 0)
    up = timeline.counts.get("to host", 0)
    parts = [f"peak {size(timeline.peak_bytes)}"] if timeline.peak_bytes else []
    parts += [f"↓ {counted(down, 'copy', 'copies')}, {size(timeline.to_device)}"] if down else []
    parts += [f"↑ {counted(up, 'copy', 'copies')}, {size(timeline.to_host)}"] if up else []
    if parts:
        yield f"{'':{LABEL}}{'   '.join(parts)}"


def _waits(timeline: Timeline) -> Iterator[str]:
    worst = sorted(timeline.waits.items(), key=lambda wait: (-wait[1], wait[0]))
    for line, count in worst[:LINES]:
        text = shown(timeline.lines.get(line, "").strip())
        yield f"{'':{LABEL}}{count:,} × │ line {line}" + (f": {text}" if text else "")
    if len(worst) > LINES:
        yield f"{'':{LABEL}}… and {counted(len(worst) - LINES, 'line')} more that made the host wait"


def _joined(pieces: Sequence[Fragment]) -> Iterator[Fragment]:
    """Neighbours of one meaning as one piece: fewer escape sequences."""
    for meaning, group in groupby(pieces, key=itemgetter(1)):
        if text := "".join(text for text, _ in group):
            yield text, meaning


def counted(count: int, one: str, several: str = "") -> str:
    """1 wait, 64 waits."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


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
    """What the host or one stream did in each of so many equal parts of the time, and the percentage of it."""

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
    """One call of one function. The sums are those of all that happened, whatever was left out of the events."""

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
        """How often the host waited to read something from the device."""
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
    """The timeline of a call's records: lines are those of `file`, whose text is `source`.

    `peak_bytes` is what the device knows beyond the records: the peaks inside an operation.
    """
    every = _events(ledger, file)
    waits = Counter(
        event.line for event in every if event.kind == "sync" and event.line is not None
    )
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
    while True:
        events = _thinned(every, limit)
        made = msgspec.structs.replace(whole, events=events, left_out=len(every) - len(events))
        if limit <= FEWEST or len(encoded(made)) <= LARGEST:
            return made
        limit = limit * 3 // 4


def same_call(timeline: Timeline, others: Iterable[Timeline]) -> Timeline | None:
    """The call among `others` with the same place, scenario and device; None if there is none to compare with."""
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
    """The timeline, if it is well-formed beyond what its types say; raises BadTimeline."""
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
    ledger = tuple(ledger)
    # What was on each device when the call began: what is there after its first record, without what that took.
    memory = [r for r in ledger if isinstance(r, Operation | Allocation)]
    live = {r.device: max(r.live - r.bytes, 0) for r in reversed(memory)}
    reads = {id(wait) for wait in questions.waits(ledger)}
    events = []
    for at, record in enumerate(ledger):
        if isinstance(record, Operation | Allocation):
            live[record.device] = max(record.live, 0)
        site = record.site
        line = site.line if site is not None and site.file == file and site.line > 0 else None
        kind, size, grad, autocast, name = _told(record)
        if kind == "sync" and id(record) not in reads:
            kind = "upload sync"  # until the copy is on its way: nothing on the device is waited for, or read
        events.append(
            TimelineEvent(kind, at, size, line, grad, autocast, sum(live.values()), _text(name))
        )
    return events


def _told(record: Record) -> tuple[EventKind, int, bool, bool, str]:
    match record:
        case Operation():
            name = record.name.removeprefix("aten.").partition(".")[0]
            return "op", record.bytes, record.builds_graph, record.autocast is not None, name
        case Transfer():
            kinds: dict[str, EventKind] = {"to_device": "to device", "to_host": "to host"}
            name = f"{record.source} to {record.target}"
            return kinds.get(record.direction, "between devices"), record.bytes, False, False, name
        case records.Sync():
            return "explicit sync" if record.explicit else "sync", 0, False, False, record.what
        case records.Forward():
            # A model's layers are kept apart from the model: a picture shows the one call, and not its forty.
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
    """At most so many of them, evenly chosen, plain operations left out first; the one at the peak stays."""
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
