"""How much may student code print in a student's own run? And was a Ctrl-C real, or of its own making?"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import pytest

from graders.probes.time_limits import TimedOut, time_limit

__all__ = ["QUITTING", "Interrupts", "TimedOut", "bounded_output", "interrupts", "time_limit"]

CHARACTERS: Final = 1_000_000
QUITTING: Final = "Quitting debugger"  # what pytest says when the user leaves the debugger


class Interrupts:
    """Whether an exception is the user's wish to stop, and not the student's code speaking."""

    def __init__(self) -> None:
        self.real = False
        self.known = False

    def ours(self, error: BaseException) -> bool:
        if isinstance(error, KeyboardInterrupt):
            return self.real or not self.known
        return isinstance(error, pytest.exit.Exception) and str(error) == QUITTING


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Note a Ctrl-C when it comes."""
    found = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    found.known = True
    if not callable(before):  # ignored, as in the background of a script: then none can come
        yield found
        return

    def handler(signum: int, frame: FrameType | None) -> Any:
        found.real = True
        return before(signum, frame)

    signal.signal(signal.SIGINT, handler)
    try:
        yield found
    finally:
        if signal.getsignal(signal.SIGINT) is handler:  # a debugger puts its own there
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def bounded_output(characters: int = CHARACTERS) -> Iterator[None]:
    """Keep only so much of what is printed: an endless loop would fill the disk pytest captures it on."""
    with contextlib.ExitStack() as undo:
        for stream in (sys.stdout, sys.stderr):
            _bound(stream, characters, undo)
        yield


def _bound(stream: Any, characters: int, undo: contextlib.ExitStack) -> None:
    original, left = stream.write, characters

    def write(text: str) -> int:
        nonlocal left
        if left > 0:
            original(text[:left])
            left -= len(text)
            if left <= 0:
                original(f"\n… more than {characters:,} characters were printed; the rest was not kept\n")
        return len(text)

    try:
        stream.write = write
    except AttributeError:
        return
    undo.callback(_unbound, stream)


def _unbound(stream: Any) -> None:
    with contextlib.suppress(AttributeError):
        del stream.write
