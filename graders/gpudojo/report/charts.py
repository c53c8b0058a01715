"""Charts as SVG: bars, histograms, scatter plots, memory curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from gpudojo.report.rendering import SIZES, counted, duration, size


@dataclass(frozen=True)
class Bar:
    """One bar of several that share a scale."""

    label: str
    value: float
    told: str
    kind: str = ""  # a class of the style sheet


@dataclass(frozen=True)
class Frame:
    """The size of a chart and its margins. A narrow chart is laid out anew, so that its text is as large."""

    kind: str  # a class of the style sheet, which shows one of the two
    width: int
    height: int = 340
    left: int = 46
    right: int = 20
    top: int = 22
    bottom: int = 46

    @property
    def wide(self) -> int:
        return self.width - self.left - self.right

    @property
    def tall(self) -> int:
        return self.height - self.top - self.bottom


FRAMES: Final = (Frame("wide", 640), Frame("narrow", 340, height=220, left=30, right=12))


def bars(title: str, entries: Sequence[Bar]) -> Markup:
    """Horizontal bars; the largest value is the longest."""
    most = max((entry.value for entry in entries), default=0) or 1
    told = "; ".join(f"{entry.label}: {entry.told}" for entry in entries)
    height = 30 * len(entries) + 6
    parts = []
    for number, entry in enumerate(entries):
        y, length = 4 + 30 * number, max(250 * entry.value / most, 2)
        bar = Markup('<rect class="bar {}" x="130" y="{}" width="{:.1f}" height="20" rx="3"/>')
        parts += [_text(122, y + 15, entry.label, "end"), bar.format(entry.kind, y, length)]
        parts.append(_text(138 + length, y + 15, entry.told, ""))
    return _svg("bars", 480, height, f"{title}. {told}", parts)


def histogram(scores: Sequence[float], most: float) -> Markup:
    """The score distribution, in ten equal steps of the points."""
    counts = [0] * 10
    for score in scores:
        counts[min(int(10 * score / most), 9) if most > 0 else 0] += 1
    return Markup("").join(_histogram(frame, counts, [most * number / 10 for number in range(11)]) for frame in FRAMES)


def _histogram(frame: Frame, counts: Sequence[int], edges: Sequence[float]) -> Markup:
    spans = [f"{edges[n]:g} to {edges[n + 1]:g}" for n in range(10)]
    told = "; ".join(f"{span} points: {count}" for span, count in zip(spans, counts, strict=True) if count)
    label = f"Score distribution. {told or 'None.'}"
    parts: list[Markup] = []
    highest = max(*counts, 1)
    step, tall = frame.wide / 10, frame.tall
    for mark in _marks(highest):
        y = frame.top + tall - tall * mark / highest
        parts += [_line(frame.left, y, frame.width - frame.right, y), _text(frame.left - 8, y + 4, f"{mark:g}", "end")]
    for number, count in enumerate(counts):
        x, high = frame.left + step * number, tall * count / highest
        bar = Markup(
            '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"><title>{}</title></rect>'
        )
        title = f"{spans[number]} points: {counted(count, 'submission')}"
        parts.append(bar.format(x + step * 0.05, frame.top + tall - high, step * 0.9, high, title))
        if count:
            parts.append(_text(x + step / 2, frame.top + tall - high - 5, count, "middle"))
    for number in range(0, 11, 1 if step > 40 else 2):
        at = frame.height - frame.bottom + 18
        parts.append(_text(frame.left + step * number, at, f"{edges[number]:g}", "middle"))
    parts.append(_text(frame.left + step * 5, frame.height - 6, "points", "middle"))
    return _svg(f"histogram {frame.kind}", frame.width, frame.height, label, parts)


def scatter(points: Sequence[tuple[float, int, str]]) -> Markup:
    """One dot per submission: its seconds, its bytes, and its status as a class of the style sheet."""
    return Markup("").join(_scatter(frame, points) for frame in FRAMES)


def _scatter(frame: Frame, points: Sequence[tuple[float, int, str]]) -> Markup:
    longest = max((seconds for seconds, _, _ in points), default=0) or 1
    largest = max((peak for _, peak, _ in points), default=0) or 1
    smallest = min((peak for _, peak, _ in points), default=0)
    told = f"{counted(len(points), 'submission')}; at most {duration(longest)} and {size(largest)}"
    parts: list[Markup] = []
    left = frame.left + 32  # sizes are longer than counts
    wide, tall = frame.width - left - frame.right, frame.tall
    for mark in _marks(longest):
        x = left + wide * mark / longest
        number = _text(x, frame.height - frame.bottom + 18, f"{mark:g}", "middle")
        parts += [_line(x, frame.top, x, frame.top + tall), number]
    unit = max((place for place in range(len(SIZES)) if largest >= 1024**place), default=0)
    levels = _levels(smallest / 1024**unit, largest / 1024**unit)
    low, high = levels[0] * 1024**unit, levels[-1] * 1024**unit
    for level in levels:
        y = frame.top + tall - tall * (level * 1024**unit - low) / (high - low)
        number = _text(left - 6, y + 4, f"{level:g} {SIZES[unit]}", "end")
        parts += [_line(left, y, frame.width - frame.right, y), number]
    # One path for each status: a thousand elements would take longer to draw than the rest of the page.
    kinds: dict[str, str] = {}
    for seconds, peak, kind in points:
        x, y = left + wide * seconds / longest, frame.top + tall - tall * (peak - low) / (high - low)
        kinds[kind] = f"{kinds.get(kind, '')}M{x:.1f} {y:.1f}h0"
    parts += [Markup('<path class="dots {}" d="{}"/>').format(kind, dots) for kind, dots in kinds.items()]
    parts.append(_text(left + wide / 2, frame.height - 6, "seconds", "middle"))
    label = f"Time and memory of each submission: {told}."
    return _svg(f"scatter {frame.kind}", frame.width, frame.height, label, parts)


def _svg(kind: str, width: float, height: float, label: str, parts: Iterable[Markup]) -> Markup:
    opened = Markup('<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    return Markup("").join([opened.format(kind, width, height, label), *parts, Markup("</svg>")])


def _line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<path class="grid" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(x1, y1, x2, y2)


def _text(x: float, y: float, text: object, where: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>').format(x, y, where, text)


def _step(span: float) -> float:
    """The round number of which about four make up the span."""
    step = 10 ** math.floor(math.log10(span / 4)) if span > 0 else 1.0
    return step * next((factor for factor in (1, 2, 5) if span / (step * factor) <= 5), 10)


def _marks(highest: float) -> list[float]:
    """About four round numbers up to the highest, from 0."""
    step = _step(highest)
    if highest == int(highest) and step < 1 and highest <= 5:
        step = 1  # there is no half submission
    return [step * number for number in range(int(highest / step + 1e-9) + 1)]


def _levels(lowest: float, highest: float) -> list[float]:
    """Round numbers around all values, from 0, or from just below the values where they are far from 0."""
    lowest = lowest if lowest > highest / 2 else 0.0
    step = _step(highest - lowest if highest > lowest else highest)
    first = math.floor(lowest / step + 1e-9)
    return [step * number for number in range(first, max(math.ceil(highest / step - 1e-9), first + 1) + 1)]


WIDTH, HEIGHT = 480, 216
LEFT, RIGHT, TOP, BOTTOM = 74, 6, 14, 42
LINE: Final = 15  # between the feet of two labels
MOST: Final = 200  # points that evidence may have
HIGHEST: Final = 1e15


@dataclass(frozen=True)
class Curve:
    """The bytes in use after each step; `backward` is the step at which the backward pass begins."""

    label: str
    points: tuple[float, ...]
    backward: int
    peak: float
    kind: str  # a class of the style sheet

    @property
    def told(self) -> str:
        steps = f", {counted(len(self.points), 'operation')}" if len(self.points) < MOST else ""
        return f"peak {size(self.peak)}{steps}"

    @property
    def highest_in(self) -> str:
        return "backward" if self.points.index(max(self.points)) >= self.backward else "forward"


def curve(label: str, found: Any, kind: str) -> Curve | None:
    """A curve from evidence, which is untrusted; None where it cannot be drawn."""
    if not isinstance(found, Mapping):
        return None
    peak: Any = found.get("peak")
    points, backward = found.get("bytes"), found.get("backward")
    if not isinstance(points, list) or not 2 <= len(points) <= MOST or not all(map(drawable, points)):
        return None
    if type(backward) is not int or not 0 <= backward <= len(points) or not drawable(peak) or max(points) <= 0:
        return None
    return Curve(label, tuple(map(float, points)), backward, max(float(peak), *points), kind)


def drawable(value: Any) -> bool:
    """Whether it is a number that fits in a picture."""
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < HIGHEST


def curves(title: str, shown: Sequence[Curve]) -> Markup:
    """Several curves in one chart: areas, and the reference as a line."""
    plot = _Plot(max(each.peak for each in shown), max(len(each.points) for each in shown))
    told = "; ".join(f"{each.label}: {each.told}, highest in {each.highest_in}" for each in shown)
    desc = Markup("<desc>{}. From left to right: the operations in their order. {}.</desc>").format(title, told)
    parts = [desc, *plot.areas(shown), *plot.peaks(shown), *plot.passes(shown)]
    return _svg("curves", WIDTH, HEIGHT, f"{title}. {told}.", parts)


class _Plot:
    def __init__(self, highest: float, steps: int) -> None:
        self.highest, self.steps = highest, steps

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / self.highest

    def areas(self, shown: Sequence[Curve]) -> Iterator[Markup]:
        """Steps: memory is allocated and freed at once."""
        for each in shown:
            outline = "".join(f"V{self.y(value):.1f}H{self.x(n + 1):.1f}" for n, value in enumerate(each.points))
            path = f"M{self.x(0):.1f} {self.y(0):.1f}{outline}V{self.y(0):.1f}"
            yield Markup('<path class="curve {}" d="{}"><title>{}</title></path>').format(
                each.kind, path, f"{each.label}: {each.told}"
            )
        yield Markup('<path class="base" d="M{} {:.1f}H{}"/>').format(LEFT, self.y(0), WIDTH - RIGHT)

    def peaks(self, shown: Sequence[Curve]) -> Iterator[Markup]:
        """A line at each peak, and its size at the axis; labels do not overlap."""
        feet: list[float] = []
        for peak in sorted({each.peak for each in shown}, reverse=True):
            y = self.y(peak)
            foot = max(y + 4, feet[-1] + LINE if feet else 0)
            if foot > HEIGHT - BOTTOM:
                continue  # the list below the picture has it
            feet.append(foot)
            yield Markup('<path class="peak" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" class="end">{}</text>').format(
                LEFT, y, WIDTH - RIGHT, LEFT - 6, foot, size(peak)
            )

    def passes(self, shown: Sequence[Curve]) -> Iterator[Markup]:
        """Where forward ends in each curve; the labels are those of the student's curve."""
        bottom = self.y(0)
        for each in shown:
            x = self.x(each.backward)
            if 0 < each.backward < len(each.points):
                yield Markup('<path class="turn {}" d="M{:.1f} {}V{:.1f}"/>').format(each.kind, x, TOP, bottom + 4)
        mine = next((each for each in shown if each.kind == "mine"), shown[0])
        turn, end = self.x(mine.backward), self.x(len(mine.points))
        if mine.backward:
            yield _text(LEFT, bottom + 17, "forward", "")
        if mine.backward < len(mine.points):
            yield _text(min(max(turn, LEFT + 90), end), bottom + 17, "backward →", "")
        yield _text(WIDTH - RIGHT, bottom + 36, "operations, in order", "end")
