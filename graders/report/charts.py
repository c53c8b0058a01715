"""How are numbers drawn? As small SVG pictures whose colours come from the page, each with its text alternative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from graders.report.texts import counted, duration, size

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 22, 46


@dataclass(frozen=True)
class Bar:
    """One bar of several that share a scale."""

    label: str
    value: float
    told: str
    kind: str = ""  # a class of the style sheet


def share(value: float, most: float, kind: str = "") -> Markup:
    """A bar of a table; the number stands beside it, so that it says nothing by itself."""
    filled = 100 * min(max(value / most, 0.0), 1.0) if most > 0 else 0.0
    return Markup(
        '<svg class="share {}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<rect class="ground" width="100" height="8"/><rect class="fill" width="{:.1f}" height="8"/></svg>'
    ).format(kind, filled)


def bars(title: str, entries: Sequence[Bar]) -> Markup:
    """Some bars below each other, longest is the largest value."""
    most = max((entry.value for entry in entries), default=0) or 1
    told = "; ".join(f"{entry.label}: {entry.told}" for entry in entries)
    height = 30 * len(entries) + 6
    parts = [_opened("bars", 480, height, f"{title}. {told}")]
    for number, entry in enumerate(entries):
        y = 4 + 30 * number
        length = max(250 * entry.value / most, 2)
        parts.append(
            Markup(
                '<text x="122" y="{}" class="end">{}</text><rect class="bar {}" x="130" y="{}" width="{:.1f}" '
                'height="20" rx="3"/><text x="{:.1f}" y="{}">{}</text>'
            ).format(y + 15, entry.label, entry.kind, y, length, 138 + length, y + 15, entry.told)
        )
    return Markup("").join([*parts, Markup("</svg>")])


def histogram(scores: Sequence[float], most: float) -> Markup:
    """How many reached how much, in tenths of what can be reached."""
    counts = [0] * 10
    for score in scores:
        counts[min(int(10 * score / most), 9) if most > 0 else 0] += 1
    edges = [most * number / 10 for number in range(11)]
    spans = [f"{edges[n]:g} to {edges[n + 1]:g}" for n in range(10)]
    told = "; ".join(f"{span} points: {count}" for span, count in zip(spans, counts, strict=True) if count)
    parts = [_opened("histogram", WIDTH, HEIGHT, f"How many submissions have how many points. {told or 'None.'}")]
    highest = max(max(counts), 1)
    wide, tall = (WIDTH - LEFT - RIGHT) / 10, HEIGHT - TOP - BOTTOM
    for mark in _marks(highest):
        y = TOP + tall - tall * mark / highest
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y) + _text(LEFT - 8, y + 4, f"{mark:g}", "end"))
    for number, count in enumerate(counts):
        x, high = LEFT + wide * number, tall * count / highest
        parts.append(
            Markup(
                '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2">'
                "<title>{} points: {}</title></rect>"
            ).format(x + 3, TOP + tall - high, wide - 6, high, spans[number], counted(count, "submission"))
        )
        if count:
            parts.append(_text(x + wide / 2, TOP + tall - high - 5, str(count), "middle"))
    for number, edge in enumerate(edges):
        parts.append(_text(LEFT + wide * number, HEIGHT - BOTTOM + 18, f"{edge:g}", "middle"))
    parts.append(_text(LEFT + wide * 5, HEIGHT - 6, "points", "middle"))
    return Markup("").join([*parts, Markup("</svg>")])


def scatter(points: Sequence[tuple[float, int, str]]) -> Markup:
    """Seconds and bytes of each submission, and a class of the style sheet for its status; many lie on each other."""
    longest = max((seconds for seconds, _, _ in points), default=0) or 1
    largest = max((peak for _, peak, _ in points), default=0) or 1
    told = f"{counted(len(points), 'submission')}; the longest took {duration(longest)}, the largest {size(largest)}"
    parts = [_opened("scatter", WIDTH, HEIGHT, f"Time and memory of each submission: {told}.")]
    left = 2 * LEFT  # sizes are longer than counts
    wide, tall = WIDTH - left - RIGHT, HEIGHT - TOP - BOTTOM
    for mark in _marks(longest):
        x = left + wide * mark / longest
        parts.append(_line(x, TOP, x, TOP + tall) + _text(x, HEIGHT - BOTTOM + 18, f"{mark:g}", "middle"))
    for number in range(3):
        y = TOP + tall * (2 - number) / 2
        parts.append(_line(left, y, WIDTH - RIGHT, y) + _text(left - 6, y + 4, size(largest * number / 2), "end"))
    # One path for each status: a thousand elements would take longer to draw than the rest of the page.
    kinds: dict[str, list[str]] = {}
    for seconds, peak, kind in points:
        x, y = left + wide * seconds / longest, TOP + tall - tall * peak / largest
        kinds.setdefault(kind, []).append(f"M{x:.1f} {y:.1f}h0")
    for kind, dots in kinds.items():
        parts.append(Markup('<path class="dots {}" d="{}"/>').format(kind, "".join(dots)))
    parts.append(_text(left + wide / 2, HEIGHT - 6, "seconds", "middle"))
    return Markup("").join([*parts, Markup("</svg>")])


def _opened(kind: str, width: float, height: float, label: str) -> Markup:
    return Markup('<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        kind, width, height, label
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<path class="grid" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(x1, y1, x2, y2)


def _text(x: float, y: float, text: str, where: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>').format(x, y, where, text)


def _marks(highest: float) -> list[float]:
    """About four round numbers up to the highest, from 0."""
    step = 10 ** math.floor(math.log10(highest / 4)) if highest > 0 else 1.0
    step *= next((factor for factor in (1, 2, 5) if highest / (step * factor) <= 5), 10)
    if highest == int(highest) and step < 1 and highest <= 5:
        step = 1  # nobody is counted in halves
    return [step * number for number in range(int(highest / step + 1e-9) + 1)]
