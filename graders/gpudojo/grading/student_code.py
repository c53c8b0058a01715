"""Calls code of a submission: the one place where that happens.

A student's own run calls it as any function. The sandbox, which runs code that nobody has read, has
a way of its own (`gpudojo.sandbox.tampering.stacks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Calls the function with the arguments and returns its result.
Caller = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_caller: Caller | None = None


def call_students_by(caller: Caller) -> None:
    """Have all code of submissions called by `caller` from now on. For the sandbox, once."""
    global _caller
    _caller = caller


def call_student(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call code of a submission. Returns what it returns and raises what it raises."""
    if _caller is None:
        return function(*args, **kwargs)
    return _caller(function, args, kwargs)
