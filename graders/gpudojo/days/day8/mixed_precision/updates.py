"""Compares the updates that steps make."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from gpudojo.grading.comparing import numpy_values
from gpudojo.model.evidence import Array


class Difference(NamedTuple):
    """An update beside the right one, in units of the right one's length."""

    ratio: float  # of the lengths
    distance: float


UNLIKE: Final = Difference(math.inf, math.inf)


def compare_updates(found: list[Array], right: list[Array]) -> Difference:
    """How an update differs from the right one. Raises ZeroDivisionError if the right one is zero.

    Callers allow for half precision: bfloat16 is as good an answer as float16.
    """
    import numpy as np

    if not have_same_shapes(found, right):
        return UNLIKE
    values = _joined_values(found)
    right_values = _joined_values(right)
    if not np.isfinite(values).all():
        return UNLIKE
    length = _length_of(right_values)
    distance = _length_of(values - right_values)
    return Difference(_length_of(values) / length, distance / length)


def _length_of(values: Any) -> float:
    import numpy as np

    return float(np.linalg.norm(values))


def _joined_values(arrays: list[Array]) -> Any:
    """The values of several arrays in one."""
    import numpy as np

    return np.concatenate([flat_values(array) for array in arrays])


def have_same_shapes(found: list[Array], right: list[Array]) -> bool:
    """True if two lists of arrays have the same shapes and dtypes."""
    found_shapes = [(array.shape, array.dtype) for array in found]
    return found_shapes == [(array.shape, array.dtype) for array in right]


def flat_values(found: Array) -> Any:
    return numpy_values(found).astype("float64").reshape(-1)
