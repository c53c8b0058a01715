"""Compares arrays of evidence: number for number, or with a tolerance."""

from __future__ import annotations

import functools
import math
import struct
from typing import Any, Final

from gpudojo.model.evidence import Array

FLOATS: Final = {"float16": "e", "float32": "f", "float64": "d"}  # their letters for `struct`


def numpy_values(found: Array) -> Any:
    """The values of an array, for NumPy."""
    import numpy as np

    return np.frombuffer(found.data, found.dtype).reshape(found.shape)


def arrays_close(found: Any, right: Any, rtol: float = 1e-3, atol: float = 1e-5) -> bool:
    """True if two arrays, or two lists of arrays, have nearly the same values.

    Their dtypes and shapes have to be the same.
    """
    if isinstance(right, Array):
        return isinstance(found, Array) and arrays_close([found], [right], rtol, atol)
    if [(a.dtype, a.shape) for a in found] != [(b.dtype, b.shape) for b in right]:
        return False
    found_data: dict[str, list[bytes]] = {}  # by dtype, of those that are not identical
    right_data: dict[str, list[bytes]] = {}
    for one, other in zip(found, right, strict=True):
        if not arrays_identical(one, other):
            found_data.setdefault(other.dtype, []).append(one.data)
            right_data.setdefault(other.dtype, []).append(other.data)
    if not right_data:
        return True
    import numpy as np

    # All arrays of one dtype at once: to compare a few numbers takes as long as to compare all.
    for dtype in right_data:
        one = np.frombuffer(b"".join(found_data[dtype]), dtype)
        other = np.frombuffer(b"".join(right_data[dtype]), dtype)
        if not values_close(one, other, rtol, atol):
            return False
    return True


def arrays_identical(found: Array, right: Array) -> bool:
    """True if two arrays are the same number for number, as most are. NaN is equal to nothing.

    This needs no NumPy.
    """
    if found.data != right.data or found.dtype != right.dtype or found.shape != right.shape:
        return False
    return _has_no_nan(right.dtype, right.data)


@functools.lru_cache(512)  # a reference's array is compared with those of many submissions
def _has_no_nan(dtype: str, data: bytes) -> bool:
    """True if no value in an array is NaN. Complex numbers are not looked at: False."""
    letter = FLOATS.get(dtype)
    if letter is None:
        return not dtype.startswith("complex")
    count = len(data) // struct.calcsize(letter)
    return not any(map(math.isnan, struct.unpack(f"<{count}{letter}", data)))


def values_close(found: Any, right: Any, rtol: float, atol: float) -> bool:
    """True if two NumPy arrays have nearly the same values, by the rule of `numpy.allclose`.

    That takes several times as long, above all where all numbers are equal.
    """
    import numpy as np

    equal = found == right
    if equal.all():
        return True
    if right.dtype.kind != "f":
        return bool(np.allclose(found, right, rtol=rtol, atol=atol))
    with np.errstate(invalid="ignore"):  # of infinite numbers
        near = abs(found - right) <= atol + rtol * abs(right)
    return bool((near & np.isfinite(right) | equal).all())
