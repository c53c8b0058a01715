"""Compares arrays of evidence: number for number, or with a tolerance."""

from __future__ import annotations

import functools
import math
import struct
from typing import Any, Final

from gpudojo.model.evidence import ELEMENTS, Array


def numpy_values(found: Array) -> Any:
    """The values of an array, for NumPy."""
    import numpy as np

    return np.frombuffer(found.data, found.dtype).reshape(found.shape)


def arrays_close(found: Any, right: Any, rtol: float = 1e-3, atol: float = 1e-5) -> bool:
    """Whether two arrays, or two lists of arrays, have the same dtypes and shapes and nearly the same values."""
    if isinstance(right, Array):
        return isinstance(found, Array) and arrays_close([found], [right], rtol, atol)
    if [(a.dtype, a.shape) for a in found] != [(b.dtype, b.shape) for b in right]:
        return False
    others = [(a, b) for a, b in zip(found, right, strict=True) if not arrays_identical(a, b)]
    if not others:
        return True
    import numpy as np

    # All arrays of one dtype at once: comparing a few numbers takes as long as comparing all of them.
    for dtype in {each.dtype for _, each in others}:
        one, other = (
            b"".join(pair[side].data for pair in others if pair[side].dtype == dtype)
            for side in (0, 1)
        )
        if not values_close(np.frombuffer(one, dtype), np.frombuffer(other, dtype), rtol, atol):
            return False
    return True


def arrays_identical(found: Array, right: Array) -> bool:
    """Whether two arrays are the same number for number, as most are: this takes no NumPy. NaN is equal to nothing."""
    return (
        found.data == right.data
        and found.dtype == right.dtype
        and found.shape == right.shape
        and _all_numbers(right.dtype, right.data)
    )


@functools.lru_cache(512)
def _all_numbers(dtype: str, data: bytes) -> bool:
    """Whether no value in a reference's array is NaN."""
    if (letter := FLOATS.get(dtype)) is None:
        return not dtype.startswith("complex")
    return not any(map(math.isnan, struct.unpack(f"<{len(data) // ELEMENTS[dtype]}{letter}", data)))


FLOATS: Final = {"float16": "e", "float32": "f", "float64": "d"}  # their letters for `struct`


def values_close(found: Any, right: Any, rtol: float, atol: float) -> bool:
    """As `numpy.allclose`, which takes several times as long, above all where all numbers are equal."""
    import numpy as np

    equal = found == right
    if equal.all():
        return True
    if right.dtype.kind != "f":
        return bool(np.allclose(found, right, rtol=rtol, atol=atol))
    with np.errstate(invalid="ignore"):  # of infinite numbers
        near = abs(found - right) <= atol + rtol * abs(right)
    return bool((near & np.isfinite(right) | equal).all())
