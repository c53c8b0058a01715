"""A debugger in a student's own run: its time does not count, and leaving it ends the run.

Whoever offers a debugger says when it is entered and left. In a sandbox nobody does.
"""

from __future__ import annotations

import time
from typing import Any, Final

_now: Final = time.monotonic


class LeftDebugger(BaseException):
    """Raised out of student code when the user has left the debugger: the run is to end."""


class _Debugger:
    """The debugger of this process, and the time that was spent in it."""

    def __init__(self) -> None:
        self.session: Any = None  # an object of `bdb.Bdb`, which knows whether it was left
        self.entered_at: float | None = None  # None while student code runs by itself
        self.seconds = 0.0  # until it was left the last time


_debugger: Final = _Debugger()


def enter_debugger(session: Any) -> None:
    """Note that the user is in a debugger, an object of `bdb.Bdb`, until `resume_code`."""
    _debugger.session = session
    if _debugger.entered_at is None:
        _debugger.entered_at = _now()


def resume_code() -> None:
    """Note that student code runs by itself again."""
    if _debugger.entered_at is not None:
        _debugger.seconds += _now() - _debugger.entered_at
        _debugger.entered_at = None


def is_in_debugger() -> bool:
    """True while the user is in the debugger: then nothing is late."""
    return _debugger.entered_at is not None


def running_clock() -> float:
    """The seconds on a clock that stands still while the user is in the debugger."""
    now = _now()
    if _debugger.entered_at is not None:
        now = _debugger.entered_at
    return now - _debugger.seconds


def require_debugger_not_left() -> None:
    """Raise LeftDebugger if the user has left the debugger to end the run.

    It is asked after student code, which may have caught what the debugger raised.
    """
    session = _debugger.session
    if session is not None and session.quitting:
        raise LeftDebugger
