"""Time limits for student code, and detection of processes that wait forever."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

PAUSE: Final = 0.01
LOOKS: Final = 50  # so many times at the same place, and no work done there
ENDLESS: Final = 30.0  # seconds of processor time, which is none that a busy machine adds

_sleep, _processor_time = time.sleep, time.process_time  # a student's file may have others


def _own_time(thread: int) -> tuple[Callable[[], float], float]:
    """The processor time of one thread, or else of all, and how much of it is more than waiting takes."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock, read = time.pthread_getcpuclockid(thread), time.clock_gettime
        return lambda: read(clock), 0.001
    return _processor_time, 0.2  # others look around now and then: gloo's threads, and ours


def watched(tell: Callable[[dict[str, Any]], None]) -> None:
    """From now on `tell` is given {"still": True} whenever this thread has stood still for a while, again and again.

    After too much work in all it is given {"endless": True}, once.
    """
    me, began = threading.get_ident(), _processor_time()
    worked, much = _own_time(me)

    def look() -> None:
        place, looks, used = None, 0, 0.0
        while True:
            _sleep(PAUSE)
            frame = sys._current_frames().get(me)
            here = (id(frame), frame.f_lasti if frame else 0)
            if here != place or worked() - used > much:
                place, looks, used = here, 0, worked()
            looks += 1
            if looks % LOOKS == 0:
                tell({"still": True})
            if _processor_time() - began > ENDLESS:
                tell({"endless": True})
                return

    threading.Thread(target=look, daemon=True).start()


AGAIN: Final = 0.05  # seconds until a student who has caught the first TimedOut gets another one
INSIST: Final = 0.0005  # and after some of them: often enough to hit a line that no `except:` covers
TIDYING: Final = 1.0  # seconds that our own code has at least, once it was interrupted, to close what it has opened


class TimedOut(BaseException):
    """Raised in student code that runs for too long; no Exception, so that `except Exception` lets it pass."""

    def __init__(self, seconds: float = 0) -> None:
        super().__init__()
        self.seconds = seconds

    def __str__(self) -> str:
        return f"still running after {self.seconds:g} second{'s' * (self.seconds != 1)}"


@dataclass
class Limit:
    """What became of it: who has swallowed a TimedOut was out of time all the same."""

    raised: int = 0
    line: int | None = None  # of the student's file, at which it was raised first
    over: bool = False  # the code it was for has come to its end: what is late now is for nobody


def _line(frame: FrameType | None, file: str) -> int | None:
    """The line of the file that is running; None where nothing of it is."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None


def _debugging() -> bool:
    pytest_timeout = sys.modules.get("pytest_timeout")
    return pytest_timeout is not None and bool(pytest_timeout.is_debugging())


@contextlib.contextmanager
def time_limit(seconds: float | None, file: str, method: str = "signal") -> Iterator[Limit]:
    """Raise TimedOut in the code of `file` once the seconds are over; hardly in ours, which has a bench to close."""
    limit = Limit()
    if not seconds or seconds <= 0:
        yield limit
        return
    here = threading.current_thread() is threading.main_thread()
    by_signal = method == "signal" and here and hasattr(signal, "SIGALRM")
    with _by_signal(seconds, file, limit) if by_signal else _by_thread(seconds, file, limit):
        yield limit


@contextlib.contextmanager
def _by_signal(seconds: float, file: str, limit: Limit) -> Iterator[None]:
    end = time.monotonic() + seconds

    def handler(signum: int, frame: FrameType | None) -> None:
        nonlocal end
        if limit.over or _debugging():
            return
        if (line := _line(frame, file)) is not None:
            limit.line = limit.line or line
            limit.raised += 1
            if limit.raised == 5:
                signal.setitimer(signal.ITIMER_REAL, INSIST, INSIST)
            raise TimedOut(seconds)
        if time.monotonic() > end + seconds:
            # Nothing of the student's is running, so something of ours may hang on what the student returned. It is
            # interrupted once, and then has as long again to close what it has opened.
            end += max(seconds, TIDYING)
            raise TimedOut(seconds)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        try:
            yield
        finally:
            limit.over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _by_thread(seconds: float, file: str, limit: Limit) -> Iterator[None]:
    """For machines without alarms: what waits inside the operating system is not interrupted before it returns."""
    target, done = threading.get_ident(), threading.Event()
    # The thread is given a class and makes the exception itself, without arguments.
    late = type(TimedOut.__name__, (TimedOut,), {"__init__": lambda self: TimedOut.__init__(self, seconds)})

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            wait = AGAIN
            line = _line(sys._current_frames().get(target), file)
            if not _debugging() and line is not None:
                limit.line = limit.line or line
                limit.raised += 1
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), ctypes.py_object(late))

    watcher = threading.Thread(target=watch, name="gpudojo time limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
