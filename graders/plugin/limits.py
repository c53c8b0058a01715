"""How much may student code take? Some seconds and some output; a real Ctrl-C is told from one of its own making."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import pytest

AGAIN: Final = 0.05  # seconds until a student who has caught the first TimedOut gets another one
INSIST: Final = 0.0005  # and after some of them: often enough to hit a line that no `except:` covers
CHARACTERS: Final = 1_000_000
QUITTING: Final = "Quitting debugger"  # what pytest says when the user leaves the debugger


class TimedOut(BaseException):
    """Raised in student code that runs for too long; no Exception, so that `except Exception` lets it pass."""

    def __init__(self, seconds: float = 0) -> None:
        super().__init__()
        self.seconds = seconds

    def __str__(self) -> str:
        return f"still running after {self.seconds:g} second{'s' * (self.seconds != 1)}"


def _within(frame: FrameType | None, file: str) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return False


def _debugging() -> bool:
    pytest_timeout = sys.modules.get("pytest_timeout")
    return pytest_timeout is not None and bool(pytest_timeout.is_debugging())


@contextlib.contextmanager
def time_limit(seconds: float | None, file: str, method: str = "signal") -> Iterator[None]:
    """Raise TimedOut in the code of `file` once the seconds are over; never in ours, which has a bench to close."""
    if not seconds or seconds <= 0:
        yield
        return
    here = threading.current_thread() is threading.main_thread()
    by_signal = method == "signal" and here and hasattr(signal, "SIGALRM")
    with _by_signal(seconds, file) if by_signal else _by_thread(seconds, file):
        yield


@contextlib.contextmanager
def _by_signal(seconds: float, file: str) -> Iterator[None]:
    end = time.monotonic() + seconds
    raised = 0

    def handler(signum: int, frame: FrameType | None) -> None:
        nonlocal raised
        # Where nothing of the student's is running, something of ours may hang on what the student returned.
        if _debugging() or not (_within(frame, file) or time.monotonic() > end + seconds):
            return
        raised += 1
        if raised == 5:
            signal.setitimer(signal.ITIMER_REAL, INSIST, INSIST)
        raise TimedOut(seconds)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _by_thread(seconds: float, file: str) -> Iterator[None]:
    """For machines without alarms: what waits inside the operating system is not interrupted before it returns."""
    target, done = threading.get_ident(), threading.Event()
    # The thread is given a class and makes the exception itself, without arguments.
    late = type(TimedOut.__name__, (TimedOut,), {"__init__": lambda self: TimedOut.__init__(self, seconds)})

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            wait = AGAIN
            if not _debugging() and _within(sys._current_frames().get(target), file):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), ctypes.py_object(late))

    watcher = threading.Thread(target=watch, name="gpudojo time limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()


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
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield found
        return

    def handler(signum: int, frame: FrameType | None) -> Any:
        found.real = True
        return before(signum, frame)

    found.known = True
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
