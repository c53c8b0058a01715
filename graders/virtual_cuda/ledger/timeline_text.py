"""A timeline drawn as lines of text: host, copies, device and memory, and lanes to scale."""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from virtual_cuda.ledger.texts import count_phrase, cut, duration, printable, short_size
from virtual_cuda.ledger.timeline import (
    Lane,
    LaneKind,
    Scaled,
    Timeline,
    TimelineEvent,
)

# Of the columns, at most, for copies, waits and passes, of which no two share one.
SHARE: Final = 0.75

# A text and its meaning: "", "wait", "copy", "grad", "no grad", "autocast", "pass" or "memory".
Fragment = tuple[str, str]
DrawnLine = tuple[Fragment, ...]


class EventMark(NamedTuple):
    """How one kind of event is drawn."""

    sign: str
    meaning: str


LABEL: Final = 9  # columns before a lane
INDENT: Final = " " * LABEL
NARROWEST: Final = 40
WIDEST: Final = 160
BARS: Final = "▁▂▃▄▅▆▇█"
WAIT = "│"
WAITS = "║"
EXPLICIT = "┊"
LANE: Final = "─"
ARROWS: Final = {"↓": "to device", "↑": "to host", "↔": "between devices"}
# The marks of a timeline by kind: the sign in text, and the meaning. Pages draw the same kinds in
# their own shapes.
MARKS: Final = {
    "wait": EventMark(WAIT, "the host waits to read from the device"),
    "explicit-wait": EventMark(EXPLICIT, "an explicit synchronize"),
    "to-device": EventMark("↓", "copy to the device"),
    "to-host": EventMark("↑", "copy to the host"),
    "between-devices": EventMark("↔", "copy between devices"),
    "forward": EventMark("F", "forward"),
    "backward": EventMark("B", "backward"),
    "step": EventMark("S", "optimizer step"),
    "scaler": EventMark("s", "scaler"),
    "grad": EventMark("•", "operation, grad on"),
    "no-grad": EventMark("·", "operation, grad off"),
    "grad-autocast": EventMark("◆", "autocast, grad on"),
    "no-grad-autocast": EventMark("◇", "autocast, grad off"),
}
MEANINGS: Final = {"•": "grad", "·": "no grad", "◆": "autocast", "◇": "autocast"}
LINES: Final = 5  # that made the host wait, the worst first
NOTHING_BESIDE: Final = "The reference has nothing to draw for the same call."


def mark_of(event: TimelineEvent) -> str | None:
    """The kind of mark that an event has, a key of MARKS; None where it has none.

    An event without a mark shows in the memory, or inside a pass or a copy that is drawn.
    """
    match event.kind:
        case "op":
            mark = "no-grad"
            if event.grad:
                mark = "grad"
            if event.autocast:
                return f"{mark}-autocast"
            return mark
        case "sync":
            return "wait"
        case "explicit sync":
            return "explicit-wait"
        case "memory" | "inner forward" | "upload sync":
            return None
    return event.kind.replace(" ", "-")


# ---- columns -------------------------------------------------------------------------------------


@dataclass
class Column:
    """Some events that follow one another."""

    events: list[TimelineEvent]
    live: int = 0  # bytes, the most in it

    def count(self, *kinds: str) -> int:
        """The number of its events of these kinds."""
        return sum(event.kind in kinds for event in self.events)

    def bytes(self, kind: str) -> int:
        """The bytes that its events of this kind copied, or took."""
        return sum(event.bytes for event in self.events if event.kind == kind)

    @property
    def waits(self) -> int:
        """The number of times that the host waited here."""
        return self.count("sync", "explicit sync")


Columns = Sequence[Column]


def split_into_columns(timeline: Timeline, room: int) -> list[Column]:
    """At most `room` columns, each with events that follow one another.

    Copies and waits have one each as long as there are enough. Events without a mark are left out.
    """
    drawn = [event for event in timeline.events if mark_of(event) is not None]
    numbers = _column_numbers(drawn, max(room, 1))
    by_number: dict[int, Column] = {}
    for event, number in zip(drawn, numbers, strict=True):
        column = by_number.setdefault(number, Column([]))
        column.events.append(event)
    columns = list(by_number.values())
    if columns:
        _note_memory(columns, timeline.events)
    return columns


def _note_memory(columns: Columns, events: Sequence[TimelineEvent]) -> None:
    """Note the most memory in each column, from its first event to the next column's."""
    starts = [column.events[0].at for column in columns]
    for event in events:
        begun = bisect_right(starts, event.at)
        column = columns[max(begun - 1, 0)]
        column.live = max(column.live, event.live)


def _column_numbers(events: Sequence[TimelineEvent], room: int) -> list[int]:
    """The number of the column for each event, ascending and below `room`.

    No two copies, waits or passes get the same column, if these are at most SHARE of the columns.
    Operations are spread over the rest, and one just before such an event may be in its column.
    Otherwise all events are spread evenly.
    """
    count = len(events)
    if count <= room:
        return list(range(count))
    operations = sum(event.kind == "op" for event in events)
    others = count - operations
    if others > room * SHARE or not operations:
        return [place * room // count for place in range(count)]
    room_left = room - others
    places = []
    others_before = 0
    operations_before = 0
    for event in events:
        places.append(others_before + operations_before * room_left // operations)
        if event.kind == "op":
            operations_before += 1
        else:
            others_before += 1
    return places


# ---- the picture ---------------------------------------------------------------------------------


def draw_timeline(
    timeline: Timeline, width: int, theirs: Timeline | None = None
) -> list[DrawnLine]:
    """The lines of the picture, `width` characters wide, within NARROWEST and WIDEST.

    `theirs` is the reference's timeline of the same call, which the last lines compare with. A
    timeline without a scenario, which is that of a program, ends with the meaning of the signs.
    """
    width = min(max(width, NARROWEST), WIDEST)
    lines = [_plain_line(text) for text in textwrap.wrap(_heading(timeline), width)]
    columns = split_into_columns(timeline, width - LABEL)
    lines += _draw_columns(timeline, columns)
    for text in (*_describe_copies(timeline), *_describe_waits(timeline)):
        lines.append(_plain_line(cut(text, width)))
    if timeline.scaled is not None:
        lines += draw_to_scale(timeline.scaled, width)
    if not timeline.scenario:  # a whole program, which has no reference
        last_lines = timeline_legend(width)
    else:
        comparison = NOTHING_BESIDE
        if theirs is not None:
            comparison = compare_with_reference(timeline, theirs)
        last_lines = textwrap.wrap(comparison, width, subsequent_indent="  ")
    lines += [_plain_line(text) for text in last_lines]
    return lines


def _plain_line(text: str) -> DrawnLine:
    """A line of one text without a meaning."""
    return ((text, ""),)


def _heading(timeline: Timeline) -> str:
    """The first line: the function, its waits and events, and the scenario it ran in."""
    function = printable(timeline.function)
    waits = count_phrase(timeline.wait_count, "wait")
    count = sum(timeline.counts.values())
    events = count_phrase(count, "event")
    heading = f"{function}: {waits}, {events}"
    if timeline.left_out:
        heading += f" ({timeline.left_out:,} of them not drawn)"
    if timeline.scenario:
        scenario = printable(timeline.scenario)
        device = printable(timeline.device)
        heading += f" in its busiest call (scenario “{scenario}”, on {device})"
    return heading


def _draw_columns(timeline: Timeline, columns: Columns) -> list[DrawnLine]:
    """The lanes of host, copies and device, and bars for the memory.

    No line where there are no columns.
    """
    if not columns:
        return []
    most_live = max(column.live for column in columns)
    highest = max(timeline.peak_bytes, most_live, 1)
    bars = ""
    for column in columns:
        height = len(BARS) * column.live // highest
        height = min(height, len(BARS) - 1)
        bars += BARS[height]
    return [
        _draw_lane("host", columns, _sign_on_host, "pass"),
        _draw_lane("", columns, _sign_of_copies, "copy"),
        _draw_lane("device", columns, _sign_on_device, ""),
        (_label("memory"), (bars, "memory")),
    ]


def _label(text: str) -> Fragment:
    """What stands before a lane, in LABEL characters."""
    return f"{text:>{LABEL - 1}} ", ""


def _draw_lane(
    label: str, columns: Columns, sign_of: Callable[[Column], str], meaning: str
) -> DrawnLine:
    """One line with a sign for each column, which `sign_of` chooses.

    `meaning` is that of a sign which has none in MEANINGS. Waits go through all lanes. The lane
    without a label is that of copies, with their sizes.
    """
    pieces = [_label(label)]
    for column in columns:
        if column.waits:
            pieces.append((_sign_of_waits(column), "wait"))
            continue
        sign = sign_of(column)
        is_empty = sign in (LANE, " ")
        if is_empty:
            meaning_of_sign = ""
        else:
            meaning_of_sign = MEANINGS.get(sign, meaning)
        pieces.append((sign, meaning_of_sign))
    if not label:
        pieces = _with_sizes(pieces, columns)
    return tuple(_join_neighbours(pieces))


def _sign_of_waits(column: Column) -> str:
    """The sign of a column in which the host waited."""
    implicit = column.count("sync")
    if implicit > 1:
        return WAITS
    if implicit:
        return WAIT
    return EXPLICIT


def _sign_on_host(column: Column) -> str:
    """The letter of what the host began in a column; the empty lane where it began nothing."""
    for kind in ("forward", "backward", "step", "scaler"):
        if column.count(kind):
            return MARKS[kind].sign
    return LANE


def _sign_of_copies(column: Column) -> str:
    """The arrow for the copies of a column; a space where there are none."""
    to_device = column.count("to device")
    to_host = column.count("to host")
    if to_device and to_host:
        return "↕"
    if to_device:
        return "↓"
    if to_host:
        return "↑"
    if column.count("between devices"):
        return "↔"
    return " "


def _sign_on_device(column: Column) -> str:
    """The most frequent mark of its operations."""
    signs = []
    for event in column.events:
        mark = mark_of(event)
        if event.kind == "op" and mark is not None:
            signs.append(MARKS[mark].sign)
    if not signs:
        return LANE
    return max(set(signs), key=signs.count)


def _with_sizes(pieces: list[Fragment], columns: Columns) -> list[Fragment]:
    """Arrows with their bytes beside them, where nothing else stands."""
    labelled = list(pieces)
    for place, column in enumerate(columns, 1):
        arrow, _ = labelled[place]
        if arrow not in ARROWS:
            continue
        copied = column.bytes(ARROWS[arrow])
        if not copied:
            continue
        size = short_size(copied)
        first = place + 1
        if _has_room_for(size, labelled[first:]):
            end = first + len(size)
            labelled[first:end] = [(digit, "copy") for digit in size]
    return labelled


def _has_room_for(text: str, pieces: list[Fragment]) -> bool:
    """True if a text fits into spaces at the beginning of these pieces.

    One more piece has to be free, so that two sizes do not touch; at the end of a line none is.
    """
    if len(pieces) < len(text):
        return False
    room = pieces[: len(text) + 1]
    return all(sign == " " for sign, _ in room)


def _join_neighbours(pieces: Iterable[Fragment]) -> Iterator[Fragment]:
    """Neighbours of one meaning joined to one piece: fewer escape sequences."""
    for meaning, group in groupby(pieces, key=itemgetter(1)):
        text = "".join(piece for piece, _ in group)
        if text:
            yield text, meaning


def _describe_copies(timeline: Timeline) -> Iterator[str]:
    """One line on the peak of memory and the copies, if there is anything to say."""
    parts = []
    if timeline.peak_bytes:
        parts.append(f"peak {short_size(timeline.peak_bytes)}")
    to_device = timeline.counts.get("to device", 0)
    if to_device:
        copies = count_phrase(to_device, "copy", "copies")
        parts.append(f"↓ {copies}, {short_size(timeline.to_device)}")
    to_host = timeline.counts.get("to host", 0)
    if to_host:
        copies = count_phrase(to_host, "copy", "copies")
        parts.append(f"↑ {copies}, {short_size(timeline.to_host)}")
    if parts:
        yield INDENT + "   ".join(parts)


def _describe_waits(timeline: Timeline) -> Iterator[str]:
    """A line for each of the lines that made the host wait most often."""
    worst = sorted(timeline.waits)
    worst.sort(key=timeline.waits.__getitem__, reverse=True)
    for line in worst[:LINES]:
        count = timeline.waits[line]
        text = f"{INDENT}{count:,} × │ line {line}"
        code = timeline.lines.get(line, "").strip()
        if code:
            text += f": {printable(code)}"
        yield text
    if len(worst) > LINES:
        more = count_phrase(len(worst) - LINES, "line")
        yield f"{INDENT}… and {more} more that made the host wait"


def compare_with_reference(yours: Timeline, theirs: Timeline) -> str:
    """One line on what differs from the reference's run."""
    waits = count_phrase(yours.wait_count, "wait")
    parts = [f"{waits} (reference: {theirs.wait_count})"]
    sizes = {
        "to the device": (yours.to_device, theirs.to_device),
        "to the host": (yours.to_host, theirs.to_host),
        "peak": (yours.peak_bytes, theirs.peak_bytes),
    }
    for what, (your_size, their_size) in sizes.items():
        if your_size == their_size:
            continue
        size = short_size(your_size)
        reference = short_size(their_size)
        parts.append(f"{what} {size} (reference: {reference})")
    comparison = ", ".join(parts)
    return f"Your code: {comparison}"


def timeline_legend(width: int) -> list[str]:
    """The meaning of the signs, in lines of at most `width` characters."""
    lines = []
    line = f"{WAITS} several waits"
    for mark in MARKS.values():
        entry = f"{mark.sign} {mark.meaning}"
        longer = f"{line}   {entry}"
        if len(longer) <= width:
            line = longer
        else:
            lines.append(line)
            line = entry
    return [*lines, line]


def plain_lines(lines: Sequence[DrawnLine]) -> list[str]:
    """The text of the lines, without the meanings."""
    plain = []
    for line in lines:
        text = "".join(fragment for fragment, _ in line)
        plain.append(text.rstrip())
    return plain


# ---- to scale ------------------------------------------------------------------------------------

# Of a lane to scale: the signs for what fills little of a column, more, and most of it.
FILLED: Final[dict[LaneKind, str]] = {"kernel": "░▒▓█", "copy": "▽▼", "issue": "░▒▓█", "wait": "╎┃"}
SHADES: Final = {"kernel": "grad", "copy": "copy", "issue": "pass", "wait": "wait"}
FILLINGS: Final = ("░▒▓█ works little, more, all of the time", "▽▼ copies", "╎┃ the host waits")


def draw_to_scale(scaled: Scaled, width: int) -> list[DrawnLine]:
    """The lines with the lanes of host and streams to scale, after a heading.

    Below them stand the meaning of the signs, and what limits the code.
    """
    room = max(width - LABEL, 1)
    end = duration(scaled.end)
    gpu = printable(scaled.gpu)
    heading = f"modelled on {gpu}, to scale: {end}, GPU idle {scaled.idle}% of the time"
    lines = [_plain_line(text) for text in textwrap.wrap(heading, width)]
    for lane in scaled.lanes:
        pieces = [_label_of_lane(lane), *_fill_lane(lane, room)]
        lines.append(tuple(_join_neighbours(pieces)))
    axis = "0" + end.rjust(room - 1)
    limit = printable(scaled.limit)
    below = [
        INDENT + axis,
        *_wrap_entries(FILLINGS, width, INDENT),
        *textwrap.wrap(limit, width),
    ]
    lines += [_plain_line(text) for text in below]
    return lines


def _wrap_entries(entries: Iterable[str], width: int, indent: str = "") -> list[str]:
    """Entries of a legend in lines, none of which ends inside an entry."""
    whole = [entry.replace(" ", "\xa0") for entry in entries]
    lines = textwrap.wrap("   ".join(whole), width, initial_indent=indent, subsequent_indent=indent)
    return [line.replace("\xa0", " ") for line in lines]


def _label_of_lane(lane: Lane) -> Fragment:
    """A short name before a lane to scale: "GPU 0 s1" is the first stream that is no default."""
    name = re.sub(r"^cuda:(\d+) stream ", r"GPU \1 s", printable(lane.name))
    name = name.removesuffix(" s0")
    return _label(cut(name, LABEL - 1))


def _fill_lane(lane: Lane, room: int) -> Iterator[Fragment]:
    """A sign and its meaning for each of `room` columns; nothing for a lane without parts."""
    count = len(lane.parts)
    if not count:
        return
    for column in range(room):
        first = column * count // room
        until = (column + 1) * count // room
        until = max(until, first + 1)
        yield _filling_of_parts(lane.parts[first:until])


def _filling_of_parts(parts: Sequence[tuple[LaneKind, int]]) -> Fragment:
    """The sign for what a lane did most in these parts of the time, by how much it did."""
    kind, most = max(parts, key=itemgetter(1))
    if not most:
        return LANE, ""
    signs = FILLED[kind]
    total = sum(percentage for _, percentage in parts)
    average = total / len(parts)
    shade = int(average * len(signs) / 100)
    shade = min(shade, len(signs) - 1)
    return signs[shade], SHADES[kind]
