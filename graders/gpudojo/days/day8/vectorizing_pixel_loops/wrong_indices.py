"""Says what became of indices: shifted, cut off, wrapped around, read from the end."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# Patterns for the line that changes indices. `[index]` is where the index of a lookup is made.
_SHIFTED: Final = ("+ number", "- number", "roll(", "[index]")
_CUT_OFF: Final = (
    *("clamp(", "clip(", "clamp_max(", "clamp_min(", "minimum(", "maximum(", "where("),
    "[index]",
)
_WRAPPED: Final = (
    *("% number", "%", "remainder(", "fmod(", "bitwise_and("),
    *(".uint8", "byte(", ".int8", "char(", "[index]"),
)
_FROM_THE_END: Final = ("flip(", "[::-1]", "neg(", "[index]")
_ALL_THE_SAME: Final = ("[0]", "[index]")


class ChangedIndices(NamedTuple):
    """What became of indices."""

    words: str  # a clause, such as "no index is above 3"
    at: tuple[str, ...]  # patterns for the line to show


def explain_indices(found: Any, right: Any, count: int) -> ChangedIndices | None:
    """What became of the indices `right`, below `count`, in `found`; None if nothing is known.

    Both are arrays with one dimension, of whole numbers, and not equal.
    """
    import numpy as np

    least = int(found.min())
    most = int(found.max())
    if most > 0 and np.array_equal(found, np.minimum(right, most)):
        return ChangedIndices(f"no index is above {most}", _CUT_OFF)
    if least == most and (right != right[0]).any():
        return ChangedIndices(f"every index is {most}", _ALL_THE_SAME)
    shift = found - right
    if (shift == shift[0]).all():
        return ChangedIndices(f"every index is {_by_how_much(int(shift[0]))}", _SHIFTED)
    if np.array_equal(found, np.maximum(right, least)):
        return ChangedIndices(f"no index is below {least}", _CUT_OFF)
    if np.array_equal(found, count - 1 - right) or np.array_equal(found, -right % count):
        return ChangedIndices("the indices count from the end", _FROM_THE_END)
    turned = shift % count
    if (turned == turned[0]).all():
        step = int(turned[0])
        if step > count // 2:
            step -= count
        words = f"every index is {_by_how_much(step)}, and begins again at the other end"
        return ChangedIndices(words, _SHIFTED)
    around = int(np.gcd.reduce(shift.astype(int)))
    if around > 1 and np.array_equal(found, right % around):
        return ChangedIndices(f"from {around} on the indices begin again at 0", _WRAPPED)
    return None


def _by_how_much(step: int) -> str:
    """A difference of indices in words: "1 too large"."""
    if step > 0:
        return f"{step} too large"
    return f"{-step} too small"
