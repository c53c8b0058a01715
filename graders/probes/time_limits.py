"""How long may student code run? Some seconds, after which an exception is raised in it, where it is."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

AGAIN: Final = 0.05  # seconds until a student who has caught the first TimedOut gets another one
INSIST: Final = 0.0005  # and after some of them: often enough to hit a line that no `except:` covers


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
