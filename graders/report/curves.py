"""How did memory rise and fall, with activations kept and made again? Areas over the same steps, with their peaks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from graders.report.texts import counted, size

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
        place = max(range(len(self.points)), key=self.points.__getitem__)
        return "backward" if place >= self.backward else "forward"


def curve(label: str, found: Any, kind: str) -> Curve | None:
    """A curve from evidence, which is a stranger's: None where it is none, or cannot be drawn."""
    if not isinstance(found, Mapping):
        return None
    peak: Any = found.get("peak")
    points, backward = found.get("bytes"), found.get("backward")
    if not isinstance(points, list) or not 2 <= len(points) <= MOST or not all(map(_drawable, points)):
        return None
    if type(backward) is not int or not 0 <= backward <= len(points) or not _drawable(peak) or max(points) <= 0:
        return None
    return Curve(label, tuple(map(float, points)), backward, max(float(peak), *points), kind)


def _drawable(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < HIGHEST


def curves(title: str, shown: Sequence[Curve]) -> Markup:
    """Several curves over each other: the first ones as areas, one of a reference as a line over them."""
    plot = _Plot(max(each.peak for each in shown), max(len(each.points) for each in shown))
    told = "; ".join(f"{each.label}: {each.told}, highest in {each.highest_in}" for each in shown)
    opening = Markup('<svg class="chart curves" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        WIDTH, HEIGHT, f"{title}. {told}."
    )
    desc = Markup("<desc>{}. From left to right: the operations in their order. {}.</desc>").format(title, told)
    return (
        opening
        + desc
        + Markup("").join([*plot.areas(shown), *plot.peaks(shown), *plot.passes(shown)])
        + Markup("</svg>")
    )


class _Plot:
    def __init__(self, highest: float, steps: int) -> None:
        self.highest, self.steps = highest, steps

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / self.highest

    def areas(self, shown: Sequence[Curve]) -> Iterator[Markup]:
        """Steps: memory is taken and given back at once."""
        for each in shown:
            outline = "".join(f"V{self.y(value):.1f}H{self.x(n + 1):.1f}" for n, value in enumerate(each.points))
            path = f"M{self.x(0):.1f} {self.y(0):.1f}{outline}V{self.y(0):.1f}"
            yield Markup('<path class="curve {}" d="{}"><title>{}</title></path>').format(
                each.kind, path, f"{each.label}: {each.told}"
            )
        yield Markup('<path class="base" d="M{} {:.1f}H{}"/>').format(LEFT, self.y(0), WIDTH - RIGHT)

    def peaks(self, shown: Sequence[Curve]) -> Iterator[Markup]:
        """A line at each peak, and its size at the axis; labels that would touch make room for each other."""
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
        """Where forward ends, for each; the words stand where they do for the last area, the student's."""
        bottom = self.y(0)
        for each in shown:
            x = self.x(each.backward)
            if 0 < each.backward < len(each.points):
                yield Markup('<path class="turn {}" d="M{:.1f} {}V{:.1f}"/>').format(each.kind, x, TOP, bottom + 4)
        mine = next((each for each in shown if each.kind == "mine"), shown[0])
        turn, end = self.x(mine.backward), self.x(len(mine.points))
        words = Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>')
        if mine.backward:
            yield words.format(LEFT, bottom + 17, "", "forward")
        if mine.backward < len(mine.points):
            yield words.format(min(max(turn, LEFT + 90), end), bottom + 17, "", "backward →")
        yield words.format(WIDTH - RIGHT, bottom + 36, "end", "operations, in their order")
