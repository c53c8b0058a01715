"""Draws the timeline of a call as SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from markupsafe import Markup
from virtual_cuda.ledger import MARKS, Scaled, Timeline, TimelineEvent, counted, mark_of

from gpudojo.report.rendering import size, visible

WIDTH: Final = 640
LEFT = 4
RIGHT = WIDTH - 4
HOST, DEVICE = (12, 40), (86, 116)  # top and bottom of each lane
MEMORY: Final = (140, 196)
HEIGHT: Final = 204
COPIES: Final = ("to device", "to host", "between devices")
PASSES: Final = {
    "forward": "M-3 -5L4 0L-3 5Z",
    "backward": "M3 -5L-4 0L3 5Z",
    "step": "M-3 -4H3V4H-3Z",
    "scaler": "M0 -5L4 0L0 5L-4 0Z",
}
WORDS: Final = {
    "sync": "the host waits for the device ({})",
    "explicit sync": "explicit synchronize: the host waits for the device ({})",
    "step": "optimizer step ({})",
    "scaler": "scaler.{}",
    "backward": "backward pass",
}
SYMBOLS: Final = {
    "forward": "▸",
    "backward": "◂",
    "step": "■",
    "scaler": "◆",
}  # of passes, in the legend


@dataclass(frozen=True)
class CallTotals:
    """The numbers of a timeline: for the table beside the picture, and for readers who cannot see it."""

    waits: int
    explicit_waits: int
    to_device: str
    to_host: str
    operations: int
    peak: str

    @property
    def sentence(self) -> str:
        waits = f"the host waited for a value {counted(self.waits, 'time')}"
        explicit = (
            f" and synchronized {counted(self.explicit_waits, 'time')}"
            if self.explicit_waits
            else ""
        )
        copies = f"{self.to_device} to the device, {self.to_host} to the host"
        return f"{waits}{explicit}; {copies}; {counted(self.operations, 'operation')}; peak memory {self.peak}"


def totals(timeline: Timeline) -> CallTotals:
    """The numbers of a timeline, ready to show."""

    def copies(kind: Literal["to device", "to host"], sent: int) -> str:
        count = timeline.counts.get(kind, 0)
        return f"{counted(count, 'copy', 'copies')} ({size(sent)})" if count else "no copies"

    return CallTotals(
        timeline.wait_count,
        timeline.counts.get("explicit sync", 0),
        copies("to device", timeline.to_device),
        copies("to host", timeline.to_host),
        timeline.counts.get("op", 0),
        size(timeline.peak_bytes),
    )


def largest_copy(*timelines: Timeline | None) -> int:
    """The bytes of the largest copy, for arrows of comparable width."""
    events = itertools.chain.from_iterable(
        timeline.events for timeline in timelines if timeline is not None
    )
    return max((event.bytes for event in events if event.kind in COPIES), default=1)


def timeline_svg(
    timeline: Timeline,
    label: str,
    highest: int,
    widest: int,
    says: Callable[[str], str] = str,
    code: bool = True,
) -> Markup:
    """The SVG of one call; `highest` and `widest` (bytes) set the scale, so that two pictures are comparable.

    Without `code` it shows no source lines: those of the reference are not for students. It holds no text; the page
    puts labels beside it, because on a phone it is squeezed to a narrow strip.
    """
    drawing = _Drawing(timeline, max(highest, 1), max(widest, 1), says, code)
    opening = '<svg class="call" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
    lane = Markup('<rect class="lane" x="{}" y="{}" width="{}" height="{}"/>')
    lanes = [lane.format(LEFT, top, RIGHT - LEFT, bottom - top) for top, bottom in (HOST, DEVICE)]
    opened = Markup(opening).format(WIDTH, HEIGHT, f"{label}: {totals(timeline).sentence}.")
    return Markup("").join([opened, *lanes, drawing.memory(), *drawing.marks(), Markup("</svg>")])


LANE_HEIGHT: Final = 22
DOING: Final = {
    "kernel": "kernels",
    "copy": "copies",
    "issue": "issues work",
    "wait": "waits for the GPU",
}


def scaled_svg(scaled: Scaled, label: str) -> Markup:
    """The lanes of host and streams to scale; the height of a mark is the share of the time."""
    shapes = []
    for number, lane in enumerate(scaled.lanes):
        top = number * LANE_HEIGHT
        wide = WIDTH / max(len(lane.parts), 1)
        bottom = top + LANE_HEIGHT - 4
        shapes.append(
            Markup('<rect class="lane" x="0" y="{}" width="{}" height="{}"/>').format(
                top, WIDTH, bottom - top
            )
        )
        for kind, told in DOING.items():
            marks = [
                f"M{place * wide:.1f} {bottom}v-{(bottom - top) * max(percent, 8) / 100:.1f}h{wide:.1f}V{bottom}Z"
                for place, (each, percent) in enumerate(lane.parts)
                if each == kind and percent
            ]
            if marks:
                path = '<path class="lane-{}" d="{}"><title>{}: {}</title></path>'
                shapes.append(Markup(path).format(kind, "".join(marks), visible(lane.name), told))
    opening = '<svg class="scaled" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
    opened = Markup(opening).format(WIDTH, max(len(scaled.lanes), 1) * LANE_HEIGHT, visible(label))
    return Markup("").join([opened, *shapes, Markup("</svg>")])


def legend(*timelines: Timeline | None) -> list[tuple[str, str, str]]:
    """The marks in these pictures: class of the style sheet, symbol if it is one, and meaning."""
    events = itertools.chain.from_iterable(
        timeline.events for timeline in timelines if timeline is not None
    )
    drawn = {mark_of(event) for event in events}
    return [
        (kind, SYMBOLS.get(kind, ""), meaning)
        for kind, (_, meaning) in MARKS.items()
        if kind in drawn
    ]


class _Drawing:
    def __init__(
        self, timeline: Timeline, highest: int, widest: int, says: Callable[[str], str], code: bool
    ) -> None:
        self.timeline = timeline
        self.highest = highest
        self.widest = widest
        self.says = says
        self.code = code
        self.slot = (RIGHT - LEFT) / max(len(timeline.events), 1)

    def x(self, place: int) -> float:
        return LEFT + (place + 0.5) * self.slot

    def marks(self) -> Iterator[Markup]:
        placed = [
            (place, event)
            for place, event in enumerate(self.timeline.events)
            if mark_of(event) is not None
        ]
        for _, run in itertools.groupby(placed, lambda pair: _group_key(*pair)):
            yield self._mark(list(run))

    def _mark(self, run: Sequence[tuple[int, TimelineEvent]]) -> Markup:
        place, event = run[0]
        x = self.x(place)
        if event.kind == "op":
            return self._ticks(run)
        if event.kind in COPIES:
            shape = self._arrow(x, event)
        elif event.kind in ("sync", "explicit sync"):
            wide = min(max(self.slot * 0.6, 2), 4)
            top = HOST[0] - 6
            bottom = DEVICE[1] + 6
            shape = f"M{x - wide / 2:.1f} {top}h{wide:.1f}V{bottom}h-{wide:.1f}Z"
        else:
            small = min(max(self.slot / 8, 0.6), 1.6)
            form = Markup('<path transform="translate({:.1f} {}) scale({:.2f})" d="{}"/>')
            shaped = form.format(x, sum(HOST) / 2, small, PASSES[event.kind])
            return self._group(f"pass {event.kind}", _words(event, 1), event, shaped)
        return self._group(
            f"{mark_of(event)}", _words(event, 1), event, Markup('<path d="{}"/>').format(shape)
        )

    def _ticks(self, run: Sequence[tuple[int, TimelineEvent]]) -> Markup:
        event = run[0][1]
        top = DEVICE[0] + 3 if event.grad else (DEVICE[0] + DEVICE[1]) / 2
        ticks = "".join(f"M{self.x(place):.1f} {top:g}V{DEVICE[1] - 3}" for place, _ in run)
        wide = min(max(self.slot * 0.55, 0.6), 3)
        names = list(dict.fromkeys(each.name for _, each in run))
        listed = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        told = f"{_words(event, len(run))} ({listed})"
        shape = Markup('<path d="{}" stroke-width="{:.1f}"/>').format(ticks, wide)
        return self._group(f"tick {mark_of(event)}", told, event, shape)

    def _arrow(self, x: float, event: TimelineEvent) -> str:
        """An arrow; its width is the logarithm of the bytes."""
        carried = min(max(event.bytes, 0), self.widest)  # untrusted, and may be negative
        wide = 1 + 5 * math.log2(1 + carried) / math.log2(1 + self.widest)
        head = wide / 2 + 2.5
        start, end = (
            (DEVICE[0] - 2, HOST[1] + 2)
            if event.kind == "to host"
            else (HOST[1] + 2, DEVICE[0] - 2)
        )
        neck = end + (8 if end < start else -8)
        half = wide / 2
        return f"M{x - half:.1f} {start}V{neck}H{x - head:.1f}L{x:.1f} {end}L{x + head:.1f} {neck}H{x + half:.1f}V{start}Z"

    def _group(self, kind: str, told: str, event: TimelineEvent, shape: Markup) -> Markup:
        return Markup('<g class="mark {}"><title>{}</title>{}</g>').format(
            kind, visible(self.says(self._where(event) + told)), shape
        )

    def _where(self, event: TimelineEvent) -> str:
        if event.line is None or not self.code:
            return ""
        code = self.timeline.lines.get(event.line, "").strip()
        return f"line {event.line}: {code}\n" if code else f"line {event.line}: "

    def memory(self) -> Markup:
        """The area of the memory in use after each event, and a line at the peak."""
        top, bottom = MEMORY
        heights = [
            bottom - (bottom - top) * min(event.live / self.highest, 1)
            for event in self.timeline.events
        ]
        steps = [f"M{LEFT} {bottom}"]
        last = None
        for place, height in enumerate(heights):
            if height != last:
                steps.append(f"H{LEFT + place * self.slot:.1f}V{height:.1f}")
                last = height
        steps.append(f"H{RIGHT}V{bottom}Z")
        peak = bottom - (bottom - top) * min(self.timeline.peak_bytes / self.highest, 1)
        return Markup(
            '<path class="area" d="{}"/><path class="base" d="M{} {}H{}"/><path class="peak" d="M{} {:.1f}H{}"/>'
        ).format("".join(steps), LEFT, bottom, RIGHT, LEFT, peak, RIGHT)


def _group_key(place: int, event: TimelineEvent) -> tuple[object, ...]:
    """What groups events: neighbouring operations that look alike are one mark, every other event is its own."""
    if event.kind == "op":
        return ("op", event.line, event.grad, event.autocast)
    return (place,)


def _words(event: TimelineEvent, count: int) -> str:
    if event.kind == "op":
        modes = [
            "gradients on" if event.grad else "gradients off",
            *["under autocast"] * bool(event.autocast),
        ]
        return ", ".join([counted(count, "operation"), *modes])
    if event.kind in COPIES:
        return f"{size(event.bytes)} copied {event.kind} ({event.name})"
    return WORDS.get(event.kind, f"{event.kind} pass ({{}})").format(event.name)
