"""What became of indices, and which loop went round more often, is found by general rules."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from gpudojo.days.day8.line_counting import Loop, loops_that_grew
from gpudojo.days.day8.vectorizing_pixel_loops.wrong_indices import explain_indices

RIGHT = np.array([0, 5, 3, 7, 2, 300, 599])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (RIGHT + 1, "every index is 1 too large"),
        (RIGHT - 2, "every index is 2 too small"),
        ((RIGHT + 1) % 600, "every index is 1 too large, and begins again at the other end"),
        ((RIGHT - 1) % 600, "every index is 1 too small, and begins again at the other end"),
        (RIGHT.clip(max=4), "no index is above 4"),
        (RIGHT.clip(min=4), "no index is below 4"),
        (RIGHT % 256, "from 256 on the indices begin again at 0"),
        (599 - RIGHT, "the indices count from the end"),
        (-RIGHT % 600, "the indices count from the end"),
        (0 * RIGHT, "every index is 0"),
        (RIGHT[[1, 0, 2, 3, 4, 5, 6]], None),
    ],
)
def test_what_became_of_indices(found: np.ndarray, words: str | None) -> None:
    changed = explain_indices(found, RIGHT, 600)
    assert (changed.words if changed else None) == words


LOOPS = """def mix(sprites):
    weights = [w / 2 for w in (1, 2)]
    for sprite in sprites:
        for weight in weights:
            use(sprite, weight)
    rows = [
        row(y)
        for y in sprites
    ]
    return rows


def row(y):
    for channel in y:
        use(channel)
"""


def test_the_outermost_loop_that_went_round_more_often_is_found() -> None:
    few = Counter({1: 1, 2: 3, 3: 3, 4: 6, 5: 4, 6: 1, 7: 2, 8: 3, 13: 2, 14: 8, 15: 6})
    many = Counter({1: 1, 2: 3, 3: 5, 4: 12, 5: 8, 6: 1, 7: 4, 8: 5, 13: 4, 14: 16, 15: 12})
    assert loops_that_grew(LOOPS, few, many) == [Loop(3, 5, 2), Loop(8, 9, 2)]
    assert loops_that_grew(LOOPS, few, few) == []
