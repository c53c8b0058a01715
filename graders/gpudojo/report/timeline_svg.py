"""Draws the timeline of a call as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from markupsafe import Markup
from virtual_cuda.ledger import MARKS, Lane, Scaled, Timeline, TimelineEvent, count_phrase, mark_of

from gpudojo.report.rendering import draw_chart, format_size

WIDTH: Final = 640
HEIGHT: Final = 204
LEFT: Final = 4
RIGHT: Final = WIDTH - 4


class Strip(NamedTuple):
    """A horizontal strip of the picture."""

    top: int
    bottom: int
    left: int = LEFT
    right: int = RIGHT

    @property
    def middle(self) -> float:
        """The height half way between top and bottom."""
        return (self.top + self.bottom) / 2

    @property
    def height(self) -> int:
        """From top to bottom."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """From left to right."""
        return self.right - self.left


HOST: Final = Strip(12, 40)
DEVICE: Final = Strip(86, 116)
MEMORY: Final = Strip(140, 196)
LANE_HEIGHT: Final = 22  # in the picture to scale
LANE_GAP: Final = 4
SMALLEST_SEEN: Final = 8  # percent of a lane's height
MOST_NAMES: Final = 4  # of operations, in the text of a mark

COPIES: Final = ("to device", "to host", "between devices")
# Paths around the middle of a mark.
SHAPES_OF_PASSES: Final = {
    "forward": "M-3 -5L4 0L-3 5Z",
    "backward": "M3 -5L-4 0L3 5Z",
    "step": "M-3 -4H3V4H-3Z",
    "scaler": "M0 -5L4 0L0 5L-4 0Z",
}
SYMBOLS_OF_PASSES: Final = {"forward": "▸", "backward": "◂", "step": "■", "scaler": "◆"}
WORDS: Final = {
    "sync": "the host waits for the device ({})",
    "explicit sync": "explicit synchronize: the host waits for the device ({})",
    "step": "optimizer step ({})",
    "scaler": "scaler.{}",
    "backward": "backward pass",
}
ACTIVITIES: Final = {
    "kernel": "kernels",
    "copy": "copies",
    "issue": "issues work",
    "wait": "waits for the GPU",
}

HideNames = Callable[[str], str]  # a text without what would identify its student


@dataclass(frozen=True)
class CallTotals:
    """The numbers of a timeline, for a table and for readers who cannot see the picture."""

    waits: int
    explicit_waits: int
    to_device: str
    to_host: str
    operations: int
    peak: str

    @property
    def sentence(self) -> str:
        """The numbers in one sentence, without its full stop."""
        times_waited = count_phrase(self.waits, "time")
        waits = f"the host waited for a value {times_waited}"
        if self.explicit_waits:
            times_synchronized = count_phrase(self.explicit_waits, "time")
            waits += f" and synchronized {times_synchronized}"
        copies = f"{self.to_device} to the device, {self.to_host} to the host"
        operations = count_phrase(self.operations, "operation")
        return f"{waits}; {copies}; {operations}; peak memory {self.peak}"


def totals_of(timeline: Timeline) -> CallTotals:
    """Return the numbers of a timeline, ready to show: counts, and sizes as texts."""
    counts = timeline.counts
    return CallTotals(
        waits=timeline.wait_count,
        explicit_waits=counts.get("explicit sync", 0),
        to_device=_describe_copies(counts.get("to device", 0), timeline.to_device),
        to_host=_describe_copies(counts.get("to host", 0), timeline.to_host),
        operations=counts.get("op", 0),
        peak=format_size(timeline.peak_bytes),
    )


def _describe_copies(count: int, sent: int) -> str:
    """Return "2 copies (1.5 KiB)", for so many bytes in all."""
    if not count:
        return "no copies"
    copies = count_phrase(count, "copy", "copies")
    return f"{copies} ({format_size(sent)})"


def largest_copy(*timelines: Timeline | None) -> int:
    """Return the bytes of the largest copy, for arrows of comparable width; 1 without copies."""
    largest = 1
    for event in _events_of(timelines):
        if event.kind in COPIES:
            largest = max(largest, event.bytes)
    return largest


def _events_of(timelines: Sequence[Timeline | None]) -> Iterator[TimelineEvent]:
    """Yield the events of several timelines, one after the other; None has none."""
    for timeline in timelines:
        if timeline is not None:
            yield from timeline.events


def timeline_svg(
    timeline: Timeline,
    label: str,
    highest: int,
    widest: int,
    hide_names: HideNames = str,
    code: bool = True,
) -> Markup:
    """Return the SVG of one call.

    `highest` and `widest` (bytes) set the scale, so that two pictures are comparable. Without
    `code` it shows no source lines: those of the reference are not for students. It holds no
    text; the page puts labels beside it, because on a phone it is squeezed to a narrow strip.
    """
    drawing = _CallDrawing(timeline, max(highest, 1), max(widest, 1), hide_names, code)
    return draw_chart(
        "call",
        label=f"{label}: {totals_of(timeline).sentence}.",
        width=WIDTH,
        height=HEIGHT,
        lanes=[HOST, DEVICE],
        memory=drawing.memory_outlines(),
        marks=drawing.marks_of_events(),
    )


class DrawnLane(NamedTuple):
    """The lane of the host or a stream, as the template draws it."""

    name: str
    strip: Strip
    outlines: dict[str, str]  # of each activity, by its kind; empty where it never happened


def scaled_svg(scaled: Scaled, label: str) -> Markup:
    """Return an SVG of the lanes of host and streams to scale; `label` describes it in words.

    The height of a mark is its share of the time of its place.
    """
    lanes = []
    top = 0
    for lane in scaled.lanes:
        strip = Strip(top, top + LANE_HEIGHT - LANE_GAP, 0, WIDTH)
        lanes.append(_drawn_lane(lane, strip))
        top += LANE_HEIGHT
    return draw_chart(
        "scaled",
        label=label,
        width=WIDTH,
        height=max(top, LANE_HEIGHT),
        lanes=lanes,
        activities=ACTIVITIES,
    )


def _drawn_lane(lane: Lane, strip: Strip) -> DrawnLane:
    """Return a lane with the outline of each activity, to be drawn in this strip."""
    outlines = {}
    for kind in ACTIVITIES:
        outlines[kind] = _outline_of(kind, lane.parts, strip)
    return DrawnLane(lane.name, strip, outlines)


def _outline_of(kind: str, parts: Sequence[tuple[str, int]], strip: Strip) -> str:
    """Return the path of the parts of a lane in which one thing was done; empty if none.

    `parts` divide the time equally: what was done in each, and in how many percent of it. A part
    is a rectangle on the bottom of the strip, as high as its percentage.
    """
    width = WIDTH / max(len(parts), 1)
    bottom = strip.bottom
    outline = ""
    for place, (part_kind, percent) in enumerate(parts):
        if part_kind != kind or not percent:
            continue
        seen_percent = max(percent, SMALLEST_SEEN)
        height = strip.height * seen_percent / 100
        x = place * width
        outline += f"M{x:.1f} {bottom}v-{height:.1f}h{width:.1f}V{bottom}Z"
    return outline


class LegendEntry(NamedTuple):
    """A mark, as the legend below a picture explains it."""

    kind: str  # a class of the style sheet
    symbol: str  # empty where it has none
    meaning: str


def legend_of(*timelines: Timeline | None) -> list[LegendEntry]:
    """Return an entry for each kind of mark in the pictures of these timelines."""
    events = _events_of(timelines)
    drawn = {mark_of(event) for event in events}
    entries = []
    for kind, (_, meaning) in MARKS.items():
        if kind in drawn:
            symbol = SYMBOLS_OF_PASSES.get(kind, "")
            entries.append(LegendEntry(kind, symbol, meaning))
    return entries


class PlacedEvent(NamedTuple):
    """An event, and its place in the timeline."""

    place: int
    event: TimelineEvent


class Mark(NamedTuple):
    """A mark of the picture, as the template draws it."""

    kind: str  # classes of the style sheet
    title: str  # shown while the mouse is over the mark
    outline: str  # a path
    transform: str = ""  # where to draw the outline, and how large
    stroke_width: str = ""


class MemoryOutlines(NamedTuple):
    """The paths that show the memory in use."""

    area: str
    base: str  # the line at 0 bytes
    peak: str  # the line at the most that was in use


class _CallDrawing:
    """Draws what happened in a call, each event in a slot of its own."""

    def __init__(
        self, timeline: Timeline, highest: int, widest: int, hide_names: HideNames, code: bool
    ) -> None:
        """Draw nothing yet. `highest` and `widest` are the bytes that set the scale.

        With `code`, lines of code are shown; `hide_names` is applied to what is shown.
        """
        self.timeline = timeline
        self.highest = highest
        self.widest = widest
        self.hide_names = hide_names
        self.code = code
        self.slot = (RIGHT - LEFT) / max(len(timeline.events), 1)

    def x_of(self, place: int) -> float:
        """Return the middle of a slot."""
        return LEFT + (place + 0.5) * self.slot

    def marks_of_events(self) -> Iterator[Mark]:
        """Yield one mark for each copy, wait, pass and step, in the order of time.

        Neighbouring operations of one line share one, if they are alike in gradients and autocast.
        """
        placed = []
        for place, event in enumerate(self.timeline.events):
            if mark_of(event) is not None:
                placed.append(PlacedEvent(place, event))
        for _, group in itertools.groupby(placed, _group_key):
            yield self._mark_of_group(list(group))

    def _mark_of_group(self, group: Sequence[PlacedEvent]) -> Mark:
        """Return the mark of an event, or of operations that look alike."""
        place, event = group[0]
        if event.kind == "op":
            return self._ticks_of_operations(group)
        kind = str(mark_of(event))
        title = self._title_of(event, _describe_event(event))
        x = self.x_of(place)
        if event.kind in COPIES:
            return Mark(kind, title, self._arrow_outline(x, event))
        if event.kind in ("sync", "explicit sync"):
            return Mark(kind, title, self._pillar_outline(x))
        # A pass or a step: a sign in the lane of the host.
        scale = _clamp_value(self.slot / 8, 0.6, 1.6)
        transform = f"translate({x:.1f} {HOST.middle}) scale({scale:.2f})"
        return Mark(f"pass {event.kind}", title, SHAPES_OF_PASSES[event.kind], transform)

    def _ticks_of_operations(self, group: Sequence[PlacedEvent]) -> Mark:
        """Return operations that look alike as one mark of short lines.

        Those with gradients are longer.
        """
        event = group[0].event
        top = DEVICE.middle
        if event.grad:
            top = DEVICE.top + 3
        bottom = DEVICE.bottom - 3
        ticks = ""
        for each in group:
            x = self.x_of(each.place)
            ticks += f"M{x:.1f} {top:g}V{bottom}"
        width = _clamp_value(self.slot * 0.55, 0.6, 3)
        operations = _describe_operations(event, len(group))
        names = _list_names(group)
        title = self._title_of(event, f"{operations} ({names})")
        kind = f"tick {mark_of(event)}"
        return Mark(kind, title, ticks, stroke_width=f"{width:.1f}")

    def _pillar_outline(self, x: float) -> str:
        """Return the path of a wait: a pillar through both lanes. `x` is its middle."""
        width = _clamp_value(self.slot * 0.6, 2, 4)
        left = x - width / 2
        top = HOST.top - 6
        bottom = DEVICE.bottom + 6
        return f"M{left:.1f} {top}h{width:.1f}V{bottom}h-{width:.1f}Z"

    def _arrow_outline(self, x: float, event: TimelineEvent) -> str:
        """Return the path of a copy; its width is the logarithm of the bytes.

        It goes from the lane of the host to that of the device, or back; `x` is its middle.
        """
        carried = _clamp_value(event.bytes, 0, self.widest)  # untrusted, and may be negative
        share = math.log2(1 + carried) / math.log2(1 + self.widest)
        half_width = (1 + 5 * share) / 2
        half_head = half_width + 2.5
        start = HOST.bottom + 2
        tip = DEVICE.top - 2
        neck = tip - 8
        if event.kind == "to host":
            start = DEVICE.top - 2
            tip = HOST.bottom + 2
            neck = tip + 8
        # Along the left side to the head, around it, and back along the right side.
        left_side = f"M{x - half_width:.1f} {start}V{neck}"
        head = f"H{x - half_head:.1f}L{x:.1f} {tip}L{x + half_head:.1f} {neck}"
        right_side = f"H{x + half_width:.1f}V{start}Z"
        return left_side + head + right_side

    def _title_of(self, event: TimelineEvent, words: str) -> str:
        """Return the text of a mark: the line that caused the event, and what happened."""
        return self.hide_names(self._describe_line(event) + words)

    def _describe_line(self, event: TimelineEvent) -> str:
        """Return the line that caused an event, with its code; empty where it is not shown."""
        if event.line is None or not self.code:
            return ""
        code = self.timeline.lines.get(event.line, "").strip()
        if not code:
            return f"line {event.line}: "
        return f"line {event.line}: {code}\n"

    def memory_outlines(self) -> MemoryOutlines:
        """Return the area of the memory in use after each event, and lines at 0 and the peak.

        A new height begins where the slot of its event does.
        """
        area = f"M{LEFT} {MEMORY.bottom}"
        last_y = None
        for place, event in enumerate(self.timeline.events):
            y = self._y_of(event.live)
            if y != last_y:
                x = LEFT + place * self.slot
                area += f"H{x:.1f}V{y:.1f}"
                last_y = y
        area += f"H{RIGHT}V{MEMORY.bottom}Z"
        base = f"M{LEFT} {MEMORY.bottom}H{RIGHT}"
        y_of_peak = self._y_of(self.timeline.peak_bytes)
        peak = f"M{LEFT} {y_of_peak:.1f}H{RIGHT}"
        return MemoryOutlines(area, base, peak)

    def _y_of(self, count: int) -> float:
        """Return the height at which so many bytes are drawn."""
        share = min(count / self.highest, 1)
        return MEMORY.bottom - MEMORY.height * share


def _clamp_value(value: float, lowest: float, highest: float) -> float:
    """Return the value, or the nearer of two bounds where it is not between them."""
    return min(max(value, lowest), highest)


def _list_names(group: Sequence[PlacedEvent]) -> str:
    """Return the names of operations, each once; of many, the first ones and "…"."""
    names: list[str] = []
    for each in group:
        if each.event.name not in names:
            names.append(each.event.name)
        if len(names) > MOST_NAMES:
            names[MOST_NAMES] = "…"
            break
    return ", ".join(names)


def _group_key(placed: PlacedEvent) -> tuple[object, ...]:
    """Return the same for operations that look alike, and for every other event its place."""
    event = placed.event
    if event.kind == "op":
        return ("op", event.line, event.grad, event.autocast)
    return (placed.place,)


def _describe_operations(event: TimelineEvent, count: int) -> str:
    """Return "3 operations, gradients on", for operations that look like this one."""
    text = count_phrase(count, "operation")
    if event.grad:
        text += ", gradients on"
    else:
        text += ", gradients off"
    if event.autocast:
        text += ", under autocast"
    return text


def _describe_event(event: TimelineEvent) -> str:
    """Return what happened, for any event but an operation."""
    if event.kind in COPIES:
        size = format_size(event.bytes)
        return f"{size} copied {event.kind} ({event.name})"
    if event.kind not in WORDS:
        return f"{event.kind} pass ({event.name})"
    return WORDS[event.kind].format(event.name)
