"""Charts of a report as SVG: bars, the score distribution, time and memory, memory curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from virtual_cuda.ledger import count_phrase

from gpudojo.model.results_file import format_points
from gpudojo.report.rendering import SIZES, draw_chart, format_duration, format_size

# The chart of memory curves: its height, and where its lines begin and end.
HEIGHT: Final = 216
TOP: Final = 14
BASE: Final = 174
LINE: Final = 15  # between the feet of two labels
MOST_POINTS: Final = 200  # that evidence may have
LARGEST_NUMBER: Final = 1e15


@dataclass(frozen=True)
class Bar:
    """One bar of several that share a scale."""

    label: str
    value: float
    told: str  # the value, as people read it
    kind: str = ""  # a class of the style sheet


def draw_bars(title: str, entries: Sequence[Bar]) -> Markup:
    """Draw horizontal bars as SVG; the largest value is the longest."""
    descriptions = []
    values = []
    for entry in entries:
        descriptions.append(f"{entry.label}: {entry.told}")
        values.append(entry.value)
    return draw_chart(
        "bars",
        label=f"{title}. {'; '.join(descriptions)}",
        entries=entries,
        most=_largest_or_1(values),
    )


def _largest_or_1(values: Sequence[float]) -> float:
    """Return the largest of these numbers; 1 where there is none, or it is 0."""
    return max(values, default=0) or 1


def draw_histogram(scores: Sequence[float], most: float, clickable: bool = False) -> Markup:
    """Draw the score distribution as SVG, in ten equal steps of the points.

    `most` are the points that can be had. A script lets a clickable bar show whose it is.
    """
    counts = [0] * 10
    for score in scores:
        step = 0
        if most > 0:
            step = int(10 * score / most)
        counts[min(step, 9)] += 1
    edges = [most * number / 10 for number in range(11)]
    spans = []
    descriptions = []
    pairs = itertools.pairwise(edges)
    for (start, end), count in zip(pairs, counts, strict=True):
        span = f"{format_points(start)} to {format_points(end)}"
        spans.append(span)
        if count:
            descriptions.append(f"{span} points: {count}")
    return draw_chart(
        "histogram",
        label=f"Score distribution. {'; '.join(descriptions) or 'None.'}",
        spans=spans,
        counts=counts,
        edges=edges,
        marks=_marks_up_to(max(*counts, 1)),
        clickable=clickable,
    )


class Dot(NamedTuple):
    """One submission in the chart of time and memory."""

    seconds: float
    bytes: int
    kind: str  # its status, as a class of the style sheet


def draw_scatter(dots: Sequence[Dot]) -> Markup:
    """Draw one dot per submission as SVG: how long it took, and how much memory.

    The axes have round numbers; that of memory need not begin with 0.
    """
    longest = _largest_or_1([dot.seconds for dot in dots])
    sizes = [dot.bytes for dot in dots]
    smallest = min(sizes, default=0)
    largest = _largest_or_1(sizes)
    # Graded ones first: the others are drawn over them.
    kinds = {dot.kind for dot in dots}
    drawn_first = sorted(kinds & {"graded"})
    drawn_last = sorted(kinds - {"graded"})
    count = count_phrase(len(dots), "submission")
    most = f"at most {format_duration(longest)} and {format_size(largest)}"
    return draw_chart(
        "scatter",
        label=f"Time and memory of each submission: {count}; {most}.",
        points=dots,
        kinds=drawn_first + drawn_last,
        longest=longest,
        marks=_marks_up_to(longest),
        levels=_levels_of_memory(smallest, largest),
    )


def _levels_of_memory(smallest: float, largest: float) -> list[tuple[float, str]]:
    """Return round numbers of bytes around all values, each as a number and as a text.

    They are told in the largest unit of which the largest value is one at least.
    """
    unit, *larger_units = SIZES
    bytes_of_unit = 1
    for larger_unit in larger_units:
        if largest < 1024 * bytes_of_unit:
            break
        unit = larger_unit
        bytes_of_unit *= 1024
    levels = []
    for level in levels_around(smallest / bytes_of_unit, largest / bytes_of_unit):
        level_in_bytes = level * bytes_of_unit
        levels.append((level_in_bytes, f"{level:g} {unit}"))
    return levels


def _round_step(span: float) -> float:
    """Return the round number of which about four make up the span."""
    if span <= 0:
        return 1.0
    exponent = math.floor(math.log10(span / 4))
    power: float = 10**exponent
    for factor in (1, 2, 5):
        if span / (power * factor) <= 5:
            return power * factor
    return power * 10


def _marks_up_to(highest: float) -> list[float]:
    """Return about four round numbers up to the highest, from 0."""
    step = _round_step(highest)
    is_small_count = highest == int(highest) and highest <= 5
    if is_small_count:
        step = max(step, 1)  # there is no half submission
    count = int(highest / step + 1e-9)
    return [step * number for number in range(count + 1)]


def levels_around(lowest: float, highest: float) -> list[float]:
    """Return round numbers around all values.

    They begin with 0, or just below the values where these are far from 0.
    """
    if lowest <= highest / 2:
        lowest = 0.0
    span = highest
    if highest > lowest:
        span = highest - lowest
    step = _round_step(span)
    first = math.floor(lowest / step + 1e-9)
    last = math.ceil(highest / step - 1e-9)
    last = max(last, first + 1)
    return [step * number for number in range(first, last + 1)]


@dataclass(frozen=True)
class Curve:
    """The bytes in use after each step of a call."""

    label: str
    points: tuple[float, ...]
    backward: int  # the step at which the backward pass begins
    peak: float
    kind: str  # a class of the style sheet

    @property
    def steps(self) -> int:
        """How many points there are."""
        return len(self.points)

    def outline_path(self, left: float, foot: float, wide: float, tall: float) -> str:
        """Return the upper edge as part of a path, from the left foot of a chart.

        `wide` is the width of a step, `tall` the height of a byte.
        """
        path = ""
        for step, value in enumerate(self.points, 1):
            x = left + wide * step
            y = foot - tall * value
            path += f"V{y:.1f}H{x:.1f}"
        return path

    @property
    def told(self) -> str:
        """The peak, and how many steps there were, if all of them are points."""
        text = f"peak {format_size(self.peak)}"
        if self.steps < MOST_POINTS:
            text += f", {count_phrase(self.steps, 'operation')}"
        return text

    @property
    def highest_in(self) -> str:
        """The pass in which the peak is."""
        step_of_peak = self.points.index(max(self.points))
        if step_of_peak < self.backward:
            return "forward"
        return "backward"


def curve_from(label: str, evidence: Any, kind: str) -> Curve | None:
    """Return a curve from evidence, which is untrusted; None where it cannot be drawn.

    `kind` is a class of the style sheet.
    """
    if not isinstance(evidence, Mapping):
        return None
    peak: Any = evidence.get("peak")
    points = evidence.get("bytes")
    backward = evidence.get("backward")
    if not isinstance(points, list) or not 2 <= len(points) <= MOST_POINTS:
        return None
    for value in (peak, *points):
        if not is_drawable(value):
            return None
    if max(points) < 1:
        return None
    if type(backward) is not int or not 0 <= backward <= len(points):
        return None
    heights = tuple(float(point) for point in points)
    highest = max(float(peak), *points)
    return Curve(label, heights, backward, highest, kind)


def is_drawable(value: Any) -> bool:
    """True if it is a number that fits in a picture."""
    if type(value) not in (int, float):
        return False
    return math.isfinite(value) and 0 <= value < LARGEST_NUMBER


class PeakLabel(NamedTuple):
    """The size of a peak, at the axis of the chart of memory curves."""

    y: float  # of a line at the peak
    foot: float  # of the text
    text: str


def draw_curves(title: str, curves: Sequence[Curve]) -> Markup:
    """Draw several curves in one chart as SVG: areas, and the reference as a line.

    The peaks have labels at the axis. There is at least one curve.
    """
    descriptions = []
    peaks = set()
    for curve in curves:
        peaks.add(curve.peak)
        descriptions.append(f"{curve.label}: {curve.told}, highest in {curve.highest_in}")
    labels = _labels_of_peaks(sorted(peaks, reverse=True))
    told = "; ".join(descriptions)
    return draw_chart("curves", title=title, told=told, shown=curves, labels=labels)


def _labels_of_peaks(peaks: Sequence[float]) -> list[PeakLabel]:
    """Return the labels of peaks, of which the first is the highest.

    They do not overlap; those without room are left out, and are in the list below the chart.
    """
    labels = []
    free_foot = 0.0  # no text may stand above it
    for peak in peaks:
        y = BASE - (BASE - TOP) * peak / peaks[0]
        foot = max(y + 4, free_foot)
        if foot <= BASE:
            labels.append(PeakLabel(y, foot, format_size(peak)))
            free_foot = foot + LINE
    return labels
