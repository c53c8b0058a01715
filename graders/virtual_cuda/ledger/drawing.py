"""Draws timelines as text."""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from virtual_cuda.ledger.timeline import Lane, LaneKind, Scaled, Timeline, TimelineEvent

SHARE: Final = 0.75  # of the columns, at most, for events that have one each; the rest is for operations


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
    places, specials_before, plain_before = [], 0, 0
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
WAIT, WAITS, EXPLICIT = "│", "║", "┊"
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


def draw_timeline(timeline: Timeline, width: int, theirs: Timeline | None = None) -> list[DrawnLine]:
    """The lines of the picture, `width` characters wide, with a heading and a comparison with the reference."""
    width = min(max(width, NARROWEST), WIDEST)
    found = columns(timeline, width - LABEL)
    count, waits = _number(sum(timeline.counts.values()), "event"), _number(timeline.wait_count, "wait")
    left_out = f" ({timeline.left_out:,} of them not drawn)" if timeline.left_out else ""
    where = f" in its busiest call (scenario “{shown(timeline.scenario)}”, on {shown(timeline.device)})"
    heading = f"{shown(timeline.function)}: {waits}, {count}{left_out}{where if timeline.scenario else ''}"
    lines: list[DrawnLine] = [((cut(heading, width), ""),)]
    if found:
        highest = max([timeline.peak_bytes, 1, *(column.live for column in found)])
        bars = "".join(BARS[min(len(BARS) * column.live // highest, len(BARS) - 1)] for column in found)
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
FILLINGS: Final = "░▒▓█ works little, more, all of the time   ▼ copies   ┃ waits for the GPU"


def draw_scaled(scaled: Scaled, width: int) -> list[DrawnLine]:
    """The lanes of host and streams to scale, the meaning of the signs, and what limits the code."""
    room = max(width - LABEL, 1)
    heading = f"modelled on {shown(scaled.gpu)}, to scale: {duration(scaled.end)}, GPU idle {scaled.idle} % of the time"
    lines: list[DrawnLine] = [((cut(heading, width), ""),)]
    for lane in scaled.lanes:
        label = re.sub(r"^cuda:(\d+) stream (\d+)$", r"GPU \1/\2", shown(lane.name))
        cells = ((sign, SHADES.get(kind, "")) for sign, kind in _filled(lane, room))
        lines.append(tuple(_joined([(f"{cut(label, LABEL - 1):>{LABEL - 1}} ", ""), *cells])))
    lines.append(((f"{'':{LABEL}}0{duration(scaled.end):>{room - 1}}", ""),))
    lines.append(((f"{'':{LABEL}}{cut(FILLINGS, room)}", ""),))
    return lines + [((line, ""),) for line in textwrap.wrap(shown(scaled.limit), width)]


def _filled(lane: Lane, room: int) -> Iterator[tuple[str, str]]:
    """A sign and its kind for each column of a lane."""
    count = len(lane.parts)
    for column in range(room if count else 0):
        parts = lane.parts[column * count // room : max((column + 1) * count // room, column * count // room + 1)]
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


def plain_lines(lines: Sequence[DrawnLine]) -> list[str]:
    """The text of the lines, without the meanings."""
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def compared(yours: Timeline, theirs: Timeline) -> str:
    """One line on what differs from the reference's run."""
    parts = [f"{_number(yours.wait_count, 'wait')} (reference: {theirs.wait_count})"]
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
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _lane(label: str, found: Sequence[Column], sign: Callable[[Column], str], meaning: str) -> DrawnLine:
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
    down, up = column.count("to device"), column.count("to host")
    if down and up:
        return "↕"
    return "↓" if down else "↑" if up else "↔" if column.count("between devices") else " "


def _on_device(column: Column) -> str:
    ticks = [MARKS[mark_of(event) or ""][0] for event in column.events if event.kind == "op"]
    return max(set(ticks), key=ticks.count) if ticks else LANE


def _copies(timeline: Timeline) -> Iterator[str]:
    down, up = timeline.counts.get("to device", 0), timeline.counts.get("to host", 0)
    parts = [f"peak {size(timeline.peak_bytes)}"] if timeline.peak_bytes else []
    parts += [f"↓ {_number(down, 'copy', 'copies')}, {size(timeline.to_device)}"] if down else []
    parts += [f"↑ {_number(up, 'copy', 'copies')}, {size(timeline.to_host)}"] if up else []
    if parts:
        yield f"{'':{LABEL}}{'   '.join(parts)}"


def _waits(timeline: Timeline) -> Iterator[str]:
    worst = sorted(timeline.waits.items(), key=lambda wait: (-wait[1], wait[0]))
    for line, count in worst[:LINES]:
        text = shown(timeline.lines.get(line, "").strip())
        yield f"{'':{LABEL}}{count:,} × │ line {line}" + (f": {text}" if text else "")
    if len(worst) > LINES:
        yield f"{'':{LABEL}}… and {_number(len(worst) - LINES, 'line')} more that made the host wait"


def _joined(pieces: Sequence[Fragment]) -> Iterator[Fragment]:
    """Neighbours of one meaning as one piece: fewer escape sequences."""
    for meaning, group in groupby(pieces, key=itemgetter(1)):
        if text := "".join(text for text, _ in group):
            yield text, meaning


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
