"""Numbers that students' functions return, as evidence."""

from __future__ import annotations

from typing import Any

from gpudojo.model.evidence import Case


class ReturnedNumber(Case, frozen=True):
    """What was returned where a number was asked for."""

    kind: str  # the type's name
    is_float: bool
    value: float | None  # None if it is no number


def describe_number(value: Any) -> ReturnedNumber:
    """What was returned where a number was asked for, as evidence."""
    kind = type(value).__name__
    is_float = isinstance(value, float)
    return ReturnedNumber(kind, is_float, float_or_none(value))


def float_or_none(value: Any) -> float | None:
    """A number as a float; None for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    return None


def int_or_none(value: Any) -> int | None:
    """A whole number; None for anything else, a bool included."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value)
