"""Compares the updates that steps make: the changes of all parameters, one after the other."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpudojo.grading.comparing import numpy_values
from gpudojo.model.evidence import Array


class Difference(NamedTuple):
    """An update beside the right one, in units of the right one's length."""

    ratio: float  # of the lengths
    distance: float


UNLIKE: Final = Difference(math.inf, math.inf)


def compare_updates(found: Array, right: Array) -> Difference:
    """How an update differs from the right one, in units of the right one's length.

    It is UNLIKE where shape or dtype differ, or a value is not finite. Callers allow for half
    precision: bfloat16 is as good an answer as float16. Raises ZeroDivisionError if the right one
    is zero.
    """
    import numpy as np

    if found.shape != right.shape or found.dtype != right.dtype:
        return UNLIKE
    values = numpy_values(found).astype("float64")
    right_values = numpy_values(right).astype("float64")
    if not np.isfinite(values).all():
        return UNLIKE
    right_length = float(np.linalg.norm(right_values))
    length = float(np.linalg.norm(values))
    distance = float(np.linalg.norm(values - right_values))
    return Difference(length / right_length, distance / right_length)
