"""Calls student code on a stack of its own, where no frame of the grader is above it.

A frame leads to the variables of whoever called, and Python has many ways to a frame: exceptions,
coroutines, template engines, debuggers. On another stack there is nothing to find. A greenlet has
such a stack in the same thread, so that everything that belongs to a thread stays as it is: signals
and time limits, grad mode, autocast, the current GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final

from greenlet import greenlet

_UNSET: Final = object()  # made here: student code may have replaced `object`


def call_without_callers(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function on a stack of its own, where no frame is above that of the function.

    Returns what it returns, and raises what it raises, also MemoryError without memory for a stack.
    Context variables that it sets are set for the caller afterwards.
    """
    context = copy_context()
    stack = greenlet(function)
    stack.gr_context = context
    try:
        return stack.switch(*args, **kwargs)
    finally:
        _take_over_variables(context)


def _take_over_variables(context: Context) -> None:
    """Set the variables of the current context to their values in this one."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


def forget_greenlets() -> None:
    """Take the module `greenlet` out of `sys.modules`, where code finds modules by name.

    A greenlet knows the one that has started it, and so the frame of our caller. Who imports the
    module again raises an audit event.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "greenlet"]:
        del sys.modules[name]
