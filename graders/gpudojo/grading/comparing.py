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
        if not isinstance(found, Array):
            return False
        return arrays_close([found], [right], rtol, atol)
    forms_found = [_form_of(array) for array in found]
    right_forms = [_form_of(array) for array in right]
    if forms_found != right_forms:
        return False
    for one, other in zip(found, right, strict=True):
        if arrays_identical(one, other):
            continue
        if not values_close(numpy_values(one), numpy_values(other), rtol, atol):
            return False
    return True


def _form_of(array: Array) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of an array."""
    return array.dtype, array.shape


def arrays_identical(found: Array, right: Array) -> bool:
    """True if two arrays are the same number for number, as most are. NaN is equal to nothing.

    False for complex numbers, which are not looked at. This needs no NumPy.
    """
    if found.data != right.data or _form_of(found) != _form_of(right):
        return False
    return _has_no_nan(right.dtype, right.data)


@functools.lru_cache(512)  # a reference's array is compared with those of many submissions
def _has_no_nan(dtype: str, data: bytes) -> bool:
    """True if no value in an array is NaN. Complex numbers are not looked at: False."""
    letter = FLOATS.get(dtype)
    if letter is None:
        return not dtype.startswith("complex")
    count = len(data) // struct.calcsize(letter)
    values = struct.unpack(f"<{count}{letter}", data)
    return not any(map(math.isnan, values))


def values_close(found: Any, right: Any, rtol: float, atol: float) -> bool:
    """True if two NumPy arrays have nearly the same values."""
    import numpy as np

    return bool(np.allclose(found, right, rtol=rtol, atol=atol))
