"""The timeline on the page of a script: host, streams and memory, drawn to scale as SVG."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from virtual_cuda.clock.lanes import HOST, Interval, Times
from virtual_cuda.ledger import Allocation, Ledger, Operation
from virtual_cuda.ledger.line_table import COLUMNS, time_cell
from virtual_cuda.ledger.names import SourceLine
from virtual_cuda.ledger.texts import count_phrase, short_size
from virtual_cuda.script_page_sources import PageSource, anchor_of, place_and_code

WIDTH: Final = 1000.0  # of the drawing, in its own units
LANE_HEIGHT: Final = 26
LANE_GAP: Final = 6
MEMORY_HEIGHT: Final = 64
FINEST: Final = WIDTH / 4000  # what is shorter is drawn together with its neighbours
MARKS_OF_TIME: Final = 5
MOST_LINES_NAMED: Final = 3  # of neighbours that are drawn together
ACTIVITIES: Final = {
    "kernel": "kernels",
    "copy": "copies",
    "issue": "the host issues work",
    "wait": "the host waits, to read from the GPU or because it synchronizes",
}
ONE_OF: Final = {"kernel": "kernel", "copy": "copy", "issue": "call", "wait": "wait"}
MANY_OF: Final = {"kernel": "kernels", "copy": "copies", "issue": "calls", "wait": "waits"}


class _Bar(NamedTuple):
    """Something that a lane did, or several things that are too short to be drawn apart."""

    kind: str
    start: float  # seconds
    end: float
    busy: float
    intervals: list[Interval]


class TimelineDrawing:
    """Draws host, streams and memory to scale, as SVG with what a script needs to zoom in it."""

    def __init__(
        self,
        ledger: Ledger,
        times: Times,
        files: Sequence[PageSource],
        has_code: bool = True,
    ) -> None:
        """Prepare the drawing; `times` have an end after 0.

        `files` are those whose lines are named. `has_code` says whether these lines are on the
        page, so that a click leads to them.
        """
        self.ledger = ledger
        self.times = times
        self.files = files
        self.has_code = has_code
        self.records = ledger.records_by_row()
        self.finest = times.end * FINEST / WIDTH
        self.lanes: dict[str, list[Interval]] = {HOST: []}
        for interval in times.intervals:
            self.lanes.setdefault(interval.lane, []).append(interval)

    def draw(self) -> str:
        """The lanes with their names, times below them, a legend, and buttons to zoom."""
        shapes = []
        names = []
        top = 0
        for name, intervals in self.lanes.items():
            strip = f'<rect class="lane" y="{top}" width="{WIDTH:g}" height="{LANE_HEIGHT}"/>'
            shapes.append(strip)
            for bar in self._bars(intervals):
                shapes.append(self._shape(bar, top))
            names.append(f'<li style="height:{LANE_HEIGHT}px">{html.escape(name)}</li>')
            top += LANE_HEIGHT + LANE_GAP
        shapes.append(self._memory_shape(top))
        label_of_memory = f"memory <span>up to {peak_text(self.ledger)}</span>"
        names.append(f'<li style="height:{MEMORY_HEIGHT}px">{label_of_memory}</li>')
        height = top + MEMORY_HEIGHT
        click = ", click to see the line" if self.has_code else ""
        label = f"Host, streams and memory over {time_cell(self.times.end)}, modelled"
        return (
            '<div class="timeline"><p class="zoom" hidden>'
            '<button type="button" data-by="0.5" aria-label="zoom in">+</button>'
            '<button type="button" data-by="2" aria-label="zoom out">−</button>'
            '<button type="button" data-by="0">all</button>'
            f"<span>Drag to move, Ctrl and wheel to zoom{click}.</span></p>"
            f'<div class="lanes"><ul>{"".join(names)}</ul>'
            f'<div class="drawing"><svg viewBox="0 0 {WIDTH:g} {height}" height="{height}" '
            f'preserveAspectRatio="none" role="img" aria-label="{html.escape(label)}" '
            f'data-end="{self.times.end:.9g}">{"".join(shapes)}</svg>'
            f'<div class="times">{self._marks_of_time()}</div></div></div>'
            f'<ul class="legend">{_legend()}</ul>'
            '<div id="tip" role="status" hidden></div></div>'
        )

    def _marks_of_time(self) -> str:
        """The times below the lanes, at equal distances."""
        marks = ""
        for place in range(MARKS_OF_TIME):
            seconds = self.times.end * place / (MARKS_OF_TIME - 1)
            marks += f"<span>{_mark_of_time(seconds)}</span>"
        return marks

    # ---- lanes ----

    def _bars(self, intervals: Iterable[Interval]) -> Iterator[_Bar]:
        """Yield what a lane did; short neighbours of one kind are one bar."""
        gathered: list[Interval] = []
        for interval in sorted(intervals, key=lambda each: each.start):
            if gathered and not self._goes_together(gathered, interval):
                yield _bar_of(gathered)
                gathered = []
            gathered.append(interval)
        if gathered:
            yield _bar_of(gathered)

    def _goes_together(self, gathered: Sequence[Interval], interval: Interval) -> bool:
        """True if an interval is too short and too near to be drawn apart from those before it."""
        first = gathered[0]
        last = gathered[-1]
        if interval.kind != last.kind:
            return False
        if interval.start - last.end >= self.finest:
            return False
        if max(interval.seconds, first.seconds) >= self.finest:
            return False
        return interval.end - first.start < 4 * self.finest

    def _shape(self, bar: _Bar, top: int) -> str:
        """The rectangle of a bar, with the words that are shown while the mouse is over it."""
        x = self._x_of(bar.start)
        width = max(self._x_of(bar.end - bar.start), FINEST / 2)
        lines = self._lines_of(bar)
        words = html.escape(self._words_of(bar, lines))
        target = self._target_of(lines)
        return (
            f'<rect class="{bar.kind}" x="{x:.3f}" y="{top}" width="{width:.3f}" '
            f'height="{LANE_HEIGHT}"{target}><title>{words}</title></rect>'
        )

    def _target_of(self, lines: Sequence[SourceLine]) -> str:
        """The attribute with the place of the first line on the page; "" where it is not on it."""
        if not lines or not self.has_code:
            return ""
        anchor = anchor_of(lines[0], self.files)
        if not anchor:
            return ""
        return f' data-line="{anchor}"'

    def _x_of(self, seconds: float) -> float:
        """Where a time is in the drawing, from its left side, in its units."""
        return seconds / self.times.end * WIDTH

    def _lines_of(self, bar: _Bar) -> list[SourceLine]:
        """The lines that caused what a bar stands for, those that caused most first."""
        seconds: defaultdict[SourceLine, float] = defaultdict(float)
        for interval in bar.intervals:
            line = self._line_of(interval)
            if line is not None:
                seconds[line] += interval.seconds
        return sorted(seconds, key=lambda line: seconds[line], reverse=True)

    def _line_of(self, interval: Interval) -> SourceLine | None:
        """The line that caused an interval; None where it is not known."""
        record = self.records.get(interval.row)
        if record is None or record.site is None:
            return None
        return record.site.file, record.site.line

    def _words_of(self, bar: _Bar, lines: Sequence[SourceLine]) -> str:
        """What happened, how long it took, and which lines caused it."""
        what = _what_happened(bar)
        text = f"{what}, {time_cell(bar.busy)} from {_mark_of_time(bar.start)}"
        for line in lines[:MOST_LINES_NAMED]:
            place = place_and_code(line, self.files)
            text += f"\n{place}"
        return text

    # ---- memory ----

    def _memory_shape(self, top: int) -> str:
        """The area of the memory in use on all devices, over the time at which it was asked for."""
        heights = self._memory_heights()
        most = max(heights.values(), default=0) or 1
        bottom = top + MEMORY_HEIGHT
        room = MEMORY_HEIGHT - 2
        path = f"M0 {bottom}"
        for part, count in sorted(heights.items()):
            x = part * FINEST
            y = bottom - count / most * room
            path += f"H{x:.3f}V{y:.1f}"
        path += f"H{WIDTH:g}V{bottom}Z"
        title = html.escape(f"memory in use, up to {short_size(most)}")
        return f'<path class="memory" d="{path}"><title>{title}</title></path>'

    def _memory_heights(self) -> dict[int, int]:
        """The most bytes in use on all devices in each part of the time, FINEST wide.

        Parts are numbered from the left; one in which nothing changed is left out.
        """
        starts = {}
        for interval in self.times.intervals:
            if interval.lane == HOST:
                starts[interval.row] = interval.start
        live: dict[str, int] = {}
        heights: dict[int, int] = {}
        now = 0.0
        for row, record in self.records.items():
            now = starts.get(row, now)
            if isinstance(record, Operation | Allocation):
                live[record.device] = max(record.live, 0)
                in_use = sum(live.values())
                part = int(self._x_of(now) / FINEST)
                heights[part] = max(heights.get(part, 0), in_use)
        return heights


def peak_text(ledger: Ledger) -> str:
    """The most memory in use on a device, also inside an operation."""
    recorded = COLUMNS["peak"].ask(ledger.records)
    inside = max(ledger.peaks.values(), default=0)
    return short_size(max(recorded, inside))


def _legend() -> str:
    """What the colours mean, as items of a list."""
    items = ""
    for kind, meaning in ACTIVITIES.items():
        items += f'<li><i class="{kind}"></i>{meaning}</li>'
    return f'{items}<li><i class="memory"></i>memory in use</li>'


def _bar_of(intervals: Sequence[Interval]) -> _Bar:
    """One bar for intervals that follow one another."""
    return _Bar(
        intervals[0].kind,
        intervals[0].start,
        max(interval.end for interval in intervals),
        sum(interval.seconds for interval in intervals),
        list(intervals),
    )


def _what_happened(bar: _Bar) -> str:
    """The name of the one thing that a bar stands for, or how many there are."""
    what = bar.intervals[0].name or ONE_OF[bar.kind]
    if len(bar.intervals) > 1:
        what = _count_with_names(bar)
    if bar.kind == "wait":
        return f"waits ({what})"
    return what


def _count_with_names(bar: _Bar) -> str:
    """How many things a bar stands for, with the most frequent of their names."""
    one = ONE_OF[bar.kind]
    several = MANY_OF[bar.kind]
    count = count_phrase(len(bar.intervals), one, several)
    names = Counter(each.name for each in bar.intervals if each.name)
    if not names:
        return count
    common = [name for name, _ in names.most_common(MOST_LINES_NAMED)]
    return f"{count}: {', '.join(common)}"


def _mark_of_time(seconds: float) -> str:
    """A place in time, in words."""
    return time_cell(seconds) or "0"
