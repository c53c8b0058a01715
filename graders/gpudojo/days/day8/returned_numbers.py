"""Numbers that students' functions return, as evidence."""

from __future__ import annotations

from typing import Any


def float_or_none(value: Any) -> float | None:
    """A number as a float; None for anything else."""
    return float(value) if isinstance(value, (int, float)) else None


def int_or_none(value: Any) -> int | None:
    """A whole number; None for anything else, a bool included."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value)
