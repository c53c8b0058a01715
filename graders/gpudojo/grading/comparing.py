"""Compares evidence: arrays number for number or with a tolerance, and plain data with arrays."""

from __future__ import annotations

import functools
import math
import struct
from typing import Any, Final, NamedTuple

from gpudojo.model.evidence import Array, Fact
from gpudojo.model.exercise import with_article

FLOATS: Final = {"float16": "e", "float32": "f", "float64": "d"}  # their letters for `struct`
RTOL: Final = 1e-3  # how much values may differ, as in `numpy.allclose`
ATOL: Final = 1e-5


def numpy_values(found: Array) -> Any:
    """The values of an array as a read-only NumPy array of its shape."""
    import numpy as np

    return np.frombuffer(found.data, found.dtype).reshape(found.shape)


def arrays_close(found: Any, right: Any, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """True if two arrays, or two lists of arrays, have nearly the same values.

    Their dtypes and shapes have to be the same. False if only `right` is a single array. The
    tolerances are those of `numpy.allclose`.
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


# ---- plain data with arrays in it ----------------------------------------------------------------


class WrongPart(NamedTuple):
    """What is wrong in a value, and what was expected there, in words."""

    happened: str
    expected: str


def find_difference(found: Fact, right: Fact, what: str = "") -> WrongPart | None:
    """The first difference between a value and the right one. Returns None where there is none.

    Arrays and floats may differ as much as in `arrays_close`; numbers of other types are others,
    but tuples are lists. `what` names a part of a result, and is "" for the whole.
    """
    if type(found) is not type(right):
        name = _name_in_result(what)
        happened = f"{name} is {_type_with_article(found)}"
        return WrongPart(happened, _type_with_article(right))
    if isinstance(right, Array):
        return _difference_of_arrays(found, right, what)
    if isinstance(right, list):
        return _difference_of_lists(found, right, what)
    if isinstance(right, dict):
        return _difference_of_dicts(found, right, what)
    is_same = found == right
    if isinstance(right, float):
        is_same = floats_close(found, right)
    if is_same:
        return None
    name = _name_in_result(what)
    return WrongPart(f"{name} is {found!r}", repr(right))


def floats_close(found: float, right: float) -> bool:
    """True if two floats differ no more than values of arrays may; NaN is close to nothing."""
    if found == right:
        return True
    allowed = ATOL + RTOL * abs(right)
    return abs(found - right) <= allowed < math.inf


def has_array(fact: Fact) -> bool:
    """True if a fact is an array, or has one in it."""
    if isinstance(fact, dict):
        return any(map(has_array, fact.values()))
    if isinstance(fact, list):
        return any(map(has_array, fact))
    return isinstance(fact, Array)


def _difference_of_arrays(found: Array, right: Array, what: str) -> WrongPart | None:
    """How two arrays differ: in shape, in dtype, or in their values.

    `what` names the part of a result that they are, and is "" for the whole.
    """
    name = _name_in_result(what)
    if found.shape != right.shape:
        happened = f"{name} has the shape {found.shape}"
        return WrongPart(happened, f"the shape {right.shape}")
    if found.dtype != right.dtype:
        happened = f"{name} has the dtype {found.dtype}"
        return WrongPart(happened, f"the dtype {right.dtype}")
    if arrays_close(found, right):
        return None
    values = _name_of_part("the values", what)
    return WrongPart(f"{values} are wrong", "the reference's values")


def _difference_of_lists(found: list[Fact], right: list[Fact], what: str) -> WrongPart | None:
    """How two lists differ: in length, or in the first item that is different.

    `what` names the part of a result that they are, and is "" for the whole.
    """
    if len(found) != len(right):
        name = _name_in_result(what)
        happened = f"{name} has the length {len(found)}"
        return WrongPart(happened, f"the length {len(right)}")
    pairs = zip(found, right, strict=True)
    for number, (one, other) in enumerate(pairs, 1):
        item = _name_of_part(f"item {number}", what)
        difference = find_difference(one, other, item)
        if difference is not None:
            return difference
    return None


def _difference_of_dicts(
    found: dict[str, Fact], right: dict[str, Fact], what: str
) -> WrongPart | None:
    """How two dicts differ: in their keys, or in the first value that is different.

    `what` names the part of a result that they are, and is "" for the whole.
    """
    if found.keys() != right.keys():
        name = _name_in_result(what)
        happened = f"{name} has the keys {list(found)}"
        return WrongPart(happened, f"the keys {list(right)}")
    for key, other in right.items():
        value = _name_of_part(f"`{key}`", what)
        difference = find_difference(found[key], other, value)
        if difference is not None:
            return difference
    return None


def _name_in_result(what: str) -> str:
    """A result, or a part of it, in words: "the result", "`losses` of the result"."""
    if what:
        return f"{what} of the result"
    return "the result"


def _name_of_part(part: str, what: str) -> str:
    """The name of a part of a part of a result: "item 1 of `losses`"."""
    if what:
        return f"{part} of {what}"
    return part


def _type_with_article(fact: Fact) -> str:
    """The type that students know, with an article: arrays are made of tensors."""
    name = type(fact).__name__
    if isinstance(fact, Array):
        name = "Tensor"
    return with_article(name)
