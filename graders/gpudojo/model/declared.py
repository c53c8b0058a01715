"""Refuses values that an author cannot declare: points, counts and names of another type."""

from __future__ import annotations

import math
from collections.abc import Iterable


def require_points(what: str, points: object) -> None:
    """Raise ValueError unless these are points: a finite number, not below 0."""
    refusal = ValueError(f"{what}: points={points!r} must be a number, 0 or more")
    if isinstance(points, bool) or not isinstance(points, (int, float)):
        raise refusal
    if not math.isfinite(points) or points < 0:
        raise refusal


def require_count(what: str, name: str, count: object) -> None:
    """Raise ValueError unless `count`, the argument `name`, is a whole number and not below 0."""
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return
    raise ValueError(f"{what}: {name}={count!r} must be a whole number, 0 or more")


def require_texts(what: str, name: str, texts: Iterable[object]) -> tuple[str, ...]:
    """Return several texts as a tuple; `name` is that of the argument.

    Raises ValueError for a single text, whose letters would be taken for texts, and for values of
    another type.
    """
    if isinstance(texts, str):
        raise ValueError(
            f"{what}: {name}={texts!r} is one text and must be a tuple; write: {name}=({texts!r},)"
        )
    try:
        every = tuple(texts)
    except TypeError:
        raise ValueError(f"{what}: {name}={texts!r} must be a tuple of texts") from None
    found = []
    for text in every:
        if not isinstance(text, str):
            raise ValueError(f"{what}: {text!r} in {name} must be a text")
        found.append(text)
    return tuple(found)
