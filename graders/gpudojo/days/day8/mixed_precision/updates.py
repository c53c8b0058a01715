"""Compares the updates that steps make."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final, NamedTuple

from gpudojo.grading.comparing import numpy_values
from gpudojo.model.evidence import Array


class Difference(NamedTuple):
    """An update beside the right one, in units of the right one's length."""

    ratio: float  # of the lengths
    distance: float


UNLIKE: Final = Difference(math.inf, math.inf)


def compare_updates(found: list[Array], right: list[Array]) -> Difference:
    """How an update differs from the right one.

    Callers allow for half precision: bfloat16 is as good an answer as float16.
    """
    import numpy as np

    if not have_same_shapes(found, right):
        return UNLIKE
    joined, length, finite = _joined_reference(tuple(right))
    if found == right:  # as most are
        return Difference(length / length, 0.0 / length) if finite else UNLIKE
    values = np.concatenate([flat_values(each) for each in found])
    if not np.isfinite(values).all():
        return UNLIKE
    distance = float(np.linalg.norm(values - joined))
    return Difference(float(np.linalg.norm(values)) / length, distance / length)


@lru_cache(64)
def _joined_reference(right: tuple[Array, ...]) -> tuple[Any, float, bool]:
    """The values of a reference's arrays in one, its length, and whether all are finite."""
    import numpy as np

    joined = np.concatenate([flat_values(each) for each in right])
    return joined, float(np.linalg.norm(joined)), bool(np.isfinite(joined).all())


def have_same_shapes(found: list[Array], right: list[Array]) -> bool:
    return [(a.shape, a.dtype) for a in found] == [(b.shape, b.dtype) for b in right]


def flat_values(found: Array) -> Any:
    return numpy_values(found).astype("float64").reshape(-1)
