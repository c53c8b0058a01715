"""Draws the timeline of a call as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from markupsafe import Markup
from virtual_cuda.ledger import MARKS, Lane, Scaled, Timeline, TimelineEvent, count_phrase, mark_of

from gpudojo.report.rendering import format_size, visible_value

WIDTH: Final = 640
HEIGHT: Final = 204
LEFT: Final = 4
RIGHT: Final = WIDTH - 4


class Strip(NamedTuple):
    """A horizontal strip of the picture."""

    top: int
    bottom: int

    @property
    def middle(self) -> float:
        """The height half way between top and bottom."""
        return (self.top + self.bottom) / 2

    @property
    def height(self) -> int:
        return self.bottom - self.top


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
        """All of them in one sentence, without its full stop."""
        waits = f"the host waited for a value {count_phrase(self.waits, 'time')}"
        if self.explicit_waits:
            waits += f" and synchronized {count_phrase(self.explicit_waits, 'time')}"
        copies = f"{self.to_device} to the device, {self.to_host} to the host"
        operations = count_phrase(self.operations, "operation")
        return f"{waits}; {copies}; {operations}; peak memory {self.peak}"


def totals_of(timeline: Timeline) -> CallTotals:
    """Return the numbers of a timeline, ready to show."""
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
    return f"{count_phrase(count, 'copy', 'copies')} ({format_size(sent)})"


def largest_copy(*timelines: Timeline | None) -> int:
    """Return the bytes of the largest copy, for arrows of comparable width."""
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
    sentence = f"{label}: {totals_of(timeline).sentence}."
    shapes = [
        _opening_tag("call", HEIGHT, sentence),
        _lane_ground(LEFT, HOST, RIGHT - LEFT),
        _lane_ground(LEFT, DEVICE, RIGHT - LEFT),
        drawing.draw_memory(),
        *drawing.draw_marks(),
        Markup("</svg>"),
    ]
    return Markup("").join(shapes)


def _opening_tag(kind: str, height: int, label: str) -> Markup:
    """Return how the SVG begins; `kind` is a class of the style sheet, `label` its text."""
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
    ).format(kind, WIDTH, height, label)


def _lane_ground(left: int, lane: Strip, width: int) -> Markup:
    """Return the rectangle behind a lane."""
    rectangle = Markup('<rect class="lane" x="{}" y="{}" width="{}" height="{}"/>')
    return rectangle.format(left, lane.top, width, lane.height)


def scaled_svg(scaled: Scaled, label: str) -> Markup:
    """Return the lanes of host and streams to scale; the height of a mark is its share of time."""
    height = max(len(scaled.lanes), 1) * LANE_HEIGHT
    shapes = [_opening_tag("scaled", height, str(visible_value(label)))]
    top = 0
    for row in scaled.lanes:
        lane = Strip(top, top + LANE_HEIGHT - LANE_GAP)
        shapes.append(_lane_ground(0, lane, WIDTH))
        shapes += _activities_in_lane(row, lane)
        top += LANE_HEIGHT
    shapes.append(Markup("</svg>"))
    return Markup("").join(shapes)


def _activities_in_lane(row: Lane, lane: Strip) -> Iterator[Markup]:
    """Yield the path of each activity of a lane, with its name as a title."""
    path = Markup('<path class="lane-{}" d="{}"><title>{}: {}</title></path>')
    for kind, activity in ACTIVITIES.items():
        outline = _outline_of(kind, row.parts, lane)
        if outline:
            yield path.format(kind, outline, visible_value(row.name), activity)


def _outline_of(kind: str, parts: Sequence[tuple[str, int]], lane: Strip) -> str:
    """Return the path of the parts of a lane in which one thing was done; empty if none.

    A part is a rectangle on the bottom of the lane, as high as its percentage.
    """
    width = WIDTH / max(len(parts), 1)
    outline = ""
    for place, (part_kind, percent) in enumerate(parts):
        if part_kind != kind or not percent:
            continue
        seen_percent = max(percent, SMALLEST_SEEN)
        height = lane.height * seen_percent / 100
        x = place * width
        outline += f"M{x:.1f} {lane.bottom}v-{height:.1f}h{width:.1f}V{lane.bottom}Z"
    return outline


class LegendEntry(NamedTuple):
    """A mark, as the legend below a picture explains it."""

    kind: str  # a class of the style sheet
    symbol: str  # empty where it has none
    meaning: str


def legend_of(*timelines: Timeline | None) -> list[LegendEntry]:
    """Return an entry for each kind of mark in the pictures of these timelines."""
    drawn = {mark_of(event) for event in _events_of(timelines)}
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


class _CallDrawing:
    """Draws what happened in a call, each event in a slot of its own."""

    def __init__(
        self, timeline: Timeline, highest: int, widest: int, hide_names: HideNames, code: bool
    ) -> None:
        self.timeline = timeline
        self.highest = highest
        self.widest = widest
        self.hide_names = hide_names
        self.code = code
        self.slot = (RIGHT - LEFT) / max(len(timeline.events), 1)

    def x_of(self, place: int) -> float:
        """Return the middle of a slot."""
        return LEFT + (place + 0.5) * self.slot

    def draw_marks(self) -> Iterator[Markup]:
        """Yield the marks. Neighbouring operations that look alike are one mark."""
        placed = []
        for place, event in enumerate(self.timeline.events):
            if mark_of(event) is not None:
                placed.append(PlacedEvent(place, event))
        for _, group in itertools.groupby(placed, _group_key):
            yield self._draw_mark(list(group))

    def _draw_mark(self, group: Sequence[PlacedEvent]) -> Markup:
        """Return the mark of an event, or of operations that look alike."""
        place, event = group[0]
        if event.kind == "op":
            return self._draw_ticks(group)
        x = self.x_of(place)
        kind = str(mark_of(event))
        if event.kind in COPIES:
            arrow = self._arrow_path(x, event)
            return self._with_title(kind, event, _path_element(arrow))
        if event.kind in ("sync", "explicit sync"):
            pillar = self._pillar_path(x)
            return self._with_title(kind, event, _path_element(pillar))
        return self._draw_pass(x, event)

    def _draw_pass(self, x: float, event: TimelineEvent) -> Markup:
        """Return the sign of a pass or a step, in the lane of the host."""
        scale = _clamp_value(self.slot / 8, 0.6, 1.6)
        outline = SHAPES_OF_PASSES[event.kind]
        path = Markup('<path transform="translate({:.1f} {}) scale({:.2f})" d="{}"/>')
        shape = path.format(x, HOST.middle, scale, outline)
        return self._with_title(f"pass {event.kind}", event, shape)

    def _draw_ticks(self, group: Sequence[PlacedEvent]) -> Markup:
        """Return operations as short lines; those with gradients are longer."""
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
        shape = Markup('<path d="{}" stroke-width="{:.1f}"/>').format(ticks, width)
        words = f"{_describe_operations(event, len(group))} ({_list_names(group)})"
        return self._with_title(f"tick {mark_of(event)}", event, shape, words)

    def _pillar_path(self, x: float) -> str:
        """Return the path of a wait, which goes through both lanes; `x` is its middle."""
        width = _clamp_value(self.slot * 0.6, 2, 4)
        left = x - width / 2
        top = HOST.top - 6
        bottom = DEVICE.bottom + 6
        return f"M{left:.1f} {top}h{width:.1f}V{bottom}h-{width:.1f}Z"

    def _arrow_path(self, x: float, event: TimelineEvent) -> str:
        """Return the path of a copy; its width is the logarithm of the bytes.

        It goes from the lane of the host to that of the device, or back; `x` is its middle.
        """
        carried = _clamp_value(event.bytes, 0, self.widest)  # untrusted, and may be negative
        share = math.log2(1 + carried) / math.log2(1 + self.widest)
        half = (1 + 5 * share) / 2  # of the width
        head = half + 2.5
        start = HOST.bottom + 2
        end = DEVICE.top - 2
        neck = end - 8
        if event.kind == "to host":
            start, end = end, start
            neck = end + 8
        shaft = f"M{x - half:.1f} {start}V{neck}"
        tip = f"H{x - head:.1f}L{x:.1f} {end}L{x + head:.1f} {neck}"
        return f"{shaft}{tip}H{x + half:.1f}V{start}Z"

    def _with_title(
        self, kind: str, event: TimelineEvent, shape: Markup, words: str | None = None
    ) -> Markup:
        """Return a mark with the text that is shown when the mouse is over it."""
        if words is None:
            words = _describe_event(event)
        text = self._describe_line(event) + words
        title = visible_value(self.hide_names(text))
        group = Markup('<g class="mark {}"><title>{}</title>{}</g>')
        return group.format(kind, title, shape)

    def _describe_line(self, event: TimelineEvent) -> str:
        """Return the line that caused an event, with its code; empty where it is not shown."""
        if event.line is None or not self.code:
            return ""
        code = self.timeline.lines.get(event.line, "").strip()
        if not code:
            return f"line {event.line}: "
        return f"line {event.line}: {code}\n"

    def draw_memory(self) -> Markup:
        """Return the area of the memory in use after each event, and a line at the peak.

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
        height_of_peak = self._y_of(self.timeline.peak_bytes)
        peak = f"M{LEFT} {height_of_peak:.1f}H{RIGHT}"
        shapes = '<path class="area" d="{}"/><path class="base" d="{}"/><path class="peak" d="{}"/>'
        return Markup(shapes).format(area, base, peak)

    def _y_of(self, count: int) -> float:
        """Return the height at which so many bytes are drawn."""
        share = min(count / self.highest, 1)
        return MEMORY.bottom - MEMORY.height * share


def _clamp_value(value: float, lowest: float, highest: float) -> float:
    """Return the value, or the nearer of two bounds where it is not between them."""
    return min(max(value, lowest), highest)


def _path_element(outline: str) -> Markup:
    """Return the element that draws an outline."""
    return Markup('<path d="{}"/>').format(outline)


def _list_names(group: Sequence[PlacedEvent]) -> str:
    """Return the names of operations, each once; of many, the first ones and "…"."""
    names = list(dict.fromkeys(each.event.name for each in group))
    if len(names) > MOST_NAMES:
        names[MOST_NAMES:] = ["…"]
    return ", ".join(names)


def _group_key(placed: PlacedEvent) -> tuple[object, ...]:
    """Return the same for operations that look alike, and for every other event its place."""
    event = placed.event
    if event.kind == "op":
        return ("op", event.line, event.grad, event.autocast)
    return (placed.place,)


def _describe_operations(event: TimelineEvent, count: int) -> str:
    """Return "3 operations, gradients on", for operations that look like this one."""
    gradients = "on" if event.grad else "off"
    text = f"{count_phrase(count, 'operation')}, gradients {gradients}"
    if event.autocast:
        text += ", under autocast"
    return text


def _describe_event(event: TimelineEvent) -> str:
    """Return what happened, for any event but an operation."""
    if event.kind in COPIES:
        return f"{format_size(event.bytes)} copied {event.kind} ({event.name})"
    words = WORDS.get(event.kind, f"{event.kind} pass ({{}})")
    return words.format(event.name)
