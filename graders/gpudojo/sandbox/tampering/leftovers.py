"""Removes what student code leaves in place and Python or torch would call later.

A tracer, a signal handler or a hook for all modules would run while the grader works. After a call
of student code all of them are as they were before it. Nobody is told: to forget one is no fault.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from virtual_cuda.hooks import operator_hooks

# What torch calls for every module and every optimizer: tables in these modules, by how they begin.
_HOLDERS: Final = ("torch.nn.modules.module", "torch.optim.optimizer")
_TABLES_BEGIN: Final = "_global"
_COMPILER: Final = "torch._C._dynamo.eval_frame"  # the module that hands frames to torch's compiler
_SIGNALS: Final = tuple(sorted(signal.valid_signals()))
# CPython's own function, where there is one: `signal.getsignal` tries to make an enum of each
# handler, which takes ten times as long.
_handler_of: Final = sys.modules.get("_signal", signal).getsignal


class Leftovers:
    """Remembers what is in place before a call, and removes what the call has added."""

    def __init__(self) -> None:
        self._lists: list[list[Any]] = [gc.callbacks, operator_hooks]
        self._tables = _tables_of_hooks()

    def remember(self) -> Callable[[], None]:
        """Return a function that puts everything back as it is now.

        That is tracers, handlers of signals, callbacks of the collector, and torch's tables of
        hooks.
        """
        tracers = (sys.gettrace(), sys.getprofile())
        handlers = [_handler_of(each) for each in _SIGNALS]
        lists = [list(each) for each in self._lists]
        tables = [dict(each) for each in self._tables]

        def put_back() -> None:
            """Remove what was added since `remember`, and put back what was replaced."""
            _remove_tracers(*tracers)
            _put_back_handlers(handlers)
            for held, before in zip(self._lists, lists, strict=True):
                held[:] = before
            for table, entries in zip(self._tables, tables, strict=True):
                table.clear()
                table.update(entries)

        return put_back


def _tables_of_hooks() -> list[dict[Any, Any]]:
    """The tables of hooks for all modules and optimizers, those that this release of torch has."""
    tables = []
    for holder in _HOLDERS:
        for name, value in vars(sys.modules[holder]).items():
            if name.startswith(_TABLES_BEGIN) and isinstance(value, dict):
                tables.append(value)
    return tables


def _remove_tracers(tracer: Any, profiler: Any) -> None:
    """Remove a tracer and a profiler that were not there before, and a callback of the compiler.

    One of the grader's own is not set again: what it counts would have a gap. A release of torch
    that does not tell of such a callback keeps it.
    """
    if sys.gettrace() is not tracer:
        sys.settrace(None)
    if sys.getprofile() is not profiler:
        sys.setprofile(None)
    compiler: Any = sys.modules.get(_COMPILER)
    find_callback = getattr(compiler, "get_eval_frame_callback", None)
    if find_callback is not None and find_callback():  # None or False where nothing is compiled
        compiler.set_eval_frame(None)


def _put_back_handlers(handlers: list[Any]) -> None:
    for number, before in zip(_SIGNALS, handlers, strict=True):
        # A handler that C has set is None here, and cannot be set by Python.
        if before is not None and _handler_of(number) is not before:
            signal.signal(number, before)
