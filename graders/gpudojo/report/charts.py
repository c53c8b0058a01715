"""Charts as SVG: bars, histograms, scatter plots, memory curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from gpudojo.report.rendering import SIZES, counted, drawing, duration, size


@dataclass(frozen=True)
class Bar:
    """One bar of several that share a scale."""

    label: str
    value: float
    told: str
    kind: str = ""  # a class of the style sheet


def bars(title: str, entries: Sequence[Bar]) -> Markup:
    """Horizontal bars; the largest value is the longest."""
    told = "; ".join(f"{entry.label}: {entry.told}" for entry in entries)
    most = max((entry.value for entry in entries), default=0) or 1
    return drawing("bars", label=f"{title}. {told}", entries=entries, most=most)


def histogram(scores: Sequence[float], most: float, clickable: bool = False) -> Markup:
    """The score distribution, in ten equal steps of the points; a script lets a clickable bar show whose it is."""
    counts = [0] * 10
    for score in scores:
        counts[min(int(10 * score / most), 9) if most > 0 else 0] += 1
    edges = [most * number / 10 for number in range(11)]
    spans = [f"{one:g} to {other:g}" for one, other in itertools.pairwise(edges)]
    told = "; ".join(f"{span} points: {count}" for span, count in zip(spans, counts, strict=True) if count)
    label, marks = f"Score distribution. {told or 'None.'}", _marks(max(*counts, 1))
    given = {"spans": spans, "counts": counts, "edges": edges, "marks": marks, "clickable": clickable}
    return drawing("histogram", label=label, **given)


def scatter(points: Sequence[tuple[float, int, str]]) -> Markup:
    """One dot per submission: its seconds, its bytes, and its status as a class of the style sheet."""
    longest = max((seconds for seconds, _, _ in points), default=0) or 1
    largest = max((peak for _, peak, _ in points), default=0) or 1
    smallest = min((peak for _, peak, _ in points), default=0)
    told = f"{counted(len(points), 'submission')}; at most {duration(longest)} and {size(largest)}"
    unit = max((place for place in range(len(SIZES)) if largest >= 1024**place), default=0)
    levels = [(n * 1024**unit, f"{n:g} {SIZES[unit]}") for n in _levels(smallest / 1024**unit, largest / 1024**unit)]
    label, marks = f"Time and memory of each submission: {told}.", _marks(longest)
    kinds = sorted({kind for _, _, kind in points}, key=lambda kind: (kind != "graded", kind))  # others are drawn over
    return drawing("scatter", label=label, points=points, kinds=kinds, longest=longest, marks=marks, levels=levels)


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


HEIGHT: Final = 216
TOP, BASE = 14, 174
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
    def steps(self) -> int:
        return len(self.points)

    def outline(self, left: float, foot: float, wide: float, tall: float) -> str:
        """The upper edge, as part of a path, from the left foot of a chart, for the width of a step and of a byte."""
        steps = (f"V{foot - tall * value:.1f}H{left + wide * n:.1f}" for n, value in enumerate(self.points, 1))
        return "".join(steps)

    @property
    def told(self) -> str:
        steps = f", {counted(self.steps, 'operation')}" if self.steps < MOST else ""
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
    if type(backward) is not int or not 0 <= backward <= len(points) or not drawable(peak) or max(points) < 1:
        return None
    return Curve(label, tuple(map(float, points)), backward, max(float(peak), *points), kind)


def drawable(value: Any) -> bool:
    """Whether it is a number that fits in a picture."""
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < HIGHEST


def curves(title: str, shown: Sequence[Curve]) -> Markup:
    """Several curves in one chart: areas, and the reference as a line."""
    told = "; ".join(f"{each.label}: {each.told}, highest in {each.highest_in}" for each in shown)
    # A line at each peak, and its size at the axis. Labels do not overlap; those without room are in the list below.
    labels: list[tuple[tuple[float, float], str]] = []
    peaks = sorted({each.peak for each in shown}, reverse=True)
    for peak in peaks:
        y = BASE - (BASE - TOP) * peak / peaks[0]
        foot = max(y + 4, labels[-1][0][1] + LINE if labels else 0)
        if foot <= BASE:
            labels.append(((y, foot), size(peak)))
    return drawing("curves", title=title, told=told, shown=shown, labels=labels)
