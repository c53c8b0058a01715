"""How two updates of weights are compared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gpudojo.days.day8.mixed_precision.updates import compare_updates
from gpudojo.model.evidence import Array


def array(values: list[float]) -> Array:
    return Array("float32", (len(values),), np.array(values, "float32").tobytes())


RIGHT = [0.5, -0.25, 3.0]


@pytest.mark.parametrize(
    ("found", "ratio", "distance"),
    [
        ([0.5, -0.25, 3.0], 1.0, 0.0),
        ([1.0, -0.5, 6.0], 2.0, 1.0),
        ([0.0, 0.0, 0.0], 0.0, 1.0),
        ([math.inf, -0.25, 3.0], math.inf, math.inf),
        ([math.nan, -0.25, 3.0], math.inf, math.inf),
        ([0.5, -0.25], math.inf, math.inf),
    ],
)
def test_an_update_is_measured_in_lengths_of_the_right_one(
    found: list[float], ratio: float, distance: float
) -> None:
    assert compare_updates(array(found), array(RIGHT)) == (ratio, distance)


@pytest.mark.parametrize("spoiled", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_no_update_even_if_both_have_them(spoiled: float) -> None:
    both = [spoiled, 1.0]
    assert compare_updates(array(both), array(both)) == (math.inf, math.inf)


def test_no_length_is_measured_in_lengths_of_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        compare_updates(array([0.0]), array([0.0]))
