"""Limits on student code: time, printed output, interrupts."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from gpudojo.model.evidence import Raised
from gpudojo.model.time_outs import still_running_after

# What a function may take where nothing else is asked for, in a student's own run and in a class.
DEFAULT_SECONDS: Final = 10.0
AGAIN: Final = 0.05  # seconds until a student who has caught the first TimedOut gets another one
# The same after some of them: often enough to hit a line that no `except:` covers.
INSIST: Final = 0.0005
# Seconds that our own code has at least, once it was interrupted, to close what it has opened.
TIDYING: Final = 1.0
STRETCH: Final = 4.0  # times its limit is the longest that student code runs on a busy machine


# The C module inside `signal`. The sandbox changes functions of it.
_signals: Final[Any] = importlib.import_module("_signal")
LATE: Final[list[float]] = []  # of this process: the limits, in seconds, that code has exceeded


class TimedOut(BaseException):
    """Raised in student code that runs for too long.

    It is no subclass of Exception, so that `except Exception` does not catch it.
    """

    def __init__(self, seconds: float = 0) -> None:
        super().__init__()
        self.seconds = seconds

    def __str__(self) -> str:
        return still_running_after(self.seconds)


@dataclass
class Limit:
    """What became of a time limit. Code that caught a TimedOut was out of time all the same."""

    raised: int = 0
    line: int | None = None  # of the student's file, at which it was raised first
    over: bool = False  # the code it was for has come to its end: what is late now is for nobody


def _line(frame: FrameType | None, file: str) -> int | None:
    """The line of the file that is running. Returns None where nothing of the file runs."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None


def _debugging() -> bool:
    pytest_timeout = sys.modules.get("pytest_timeout")
    return pytest_timeout is not None and bool(pytest_timeout.is_debugging())


def charged_seconds(elapsed: float, waited: float) -> float:
    """The seconds that count against a limit.

    Seconds in which code waited for a processor do not count, but at least a quarter of `elapsed`
    does (see STRETCH).
    """
    return max(elapsed - waited, elapsed / STRETCH)


@contextlib.contextmanager
def time_limit(
    seconds: float | None,
    file: str,
    method: str = "signal",
    waited: Callable[[], float] = lambda: 0.0,
) -> Iterator[Limit]:
    """Raise TimedOut in the code of `file` once the seconds are over.

    It is seldom raised in our own code, which has a device to close. `waited` returns the seconds
    so far in which the process could have run but others had the processors. They do not count, up
    to a point; only the method "signal" heeds them. None or 0 seconds are no limit.
    """
    limit = Limit()
    if not seconds or seconds <= 0:
        yield limit
        return
    here = threading.current_thread() is threading.main_thread()
    by_signal = method == "signal" and here and hasattr(signal, "SIGALRM")
    with (
        _by_signal(seconds, file, limit, waited) if by_signal else _by_thread(seconds, file, limit)
    ):
        yield limit


def _set_handler(number: int, handler: Any) -> Any:
    """Set the handler of a signal, and return the one before.

    `signal.signal` also looks for enums in handlers, which takes longer than the rest.
    """
    return _signals.signal(number, handler)


@contextlib.contextmanager
def _by_signal(
    seconds: float, file: str, limit: Limit, waited: Callable[[], float]
) -> Iterator[None]:
    if sys.platform == "win32":
        raise NotImplementedError
    began = time.monotonic()
    before_that = waited()
    end = began + seconds

    def handler(signum: int, frame: FrameType | None) -> None:
        if sys.platform == "win32":
            raise NotImplementedError
        nonlocal end
        if limit.over or _debugging():
            return
        # Time in which the process waited for a processor is given back: the alarm moves.
        if (
            not limit.raised
            and (
                left := seconds - charged_seconds(time.monotonic() - began, waited() - before_that)
            )
            > 0
        ):
            end = max(end, time.monotonic() + left)
            signal.setitimer(signal.ITIMER_REAL, max(left, INSIST), AGAIN)
            return
        # Student code is running: interrupt it, and more often if it catches that.
        if (line := _line(frame, file)) is not None:
            limit.line = limit.line or line
            limit.raised += 1
            LATE.append(seconds)
            if limit.raised == 5:
                signal.setitimer(signal.ITIMER_REAL, INSIST, INSIST)
            raise TimedOut(seconds)
        if time.monotonic() > end + seconds:
            # Nothing of the student's is running, so something of ours may hang on what the student
            # returned. It is interrupted once, and then has as long again to close what it has
            # opened.
            end += max(seconds, TIDYING)
            raise TimedOut(seconds)

    before = _set_handler(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        try:
            yield
        finally:
            limit.over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _set_handler(signal.SIGALRM, before)


@contextlib.contextmanager
def _by_thread(seconds: float, file: str, limit: Limit) -> Iterator[None]:
    """Raise TimedOut from another thread, for machines without alarms.

    Code that waits inside the operating system is not interrupted before it returns.
    """
    target = threading.get_ident()
    done = threading.Event()
    # The thread is given a class and makes the exception itself, without arguments.
    late = type(
        TimedOut.__name__, (TimedOut,), {"__init__": lambda self: TimedOut.__init__(self, seconds)}
    )

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            wait = AGAIN
            line = _line(sys._current_frames().get(target), file)
            if not _debugging() and line is not None:
                limit.line = limit.line or line
                limit.raised += 1
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(target), ctypes.py_object(late)
                )

    watcher = threading.Thread(target=watch, name="gpudojo time limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()


class Interrupts:
    """Tells a Ctrl-C of the user's from a KeyboardInterrupt that student code raises."""

    def __init__(self, known: bool) -> None:
        self.known = known  # whether a Ctrl-C would have been noticed
        self.real = False

    def ours(self, error: BaseException) -> bool:
        """True if an exception is the user's wish to stop."""
        return isinstance(error, KeyboardInterrupt) and (self.real or not self.known)


@contextlib.contextmanager
def notice_interrupts() -> Iterator[Interrupts]:
    """Note each Ctrl-C inside the block, and pass it on. Replaces the handler of SIGINT there."""
    found = Interrupts(threading.current_thread() is threading.main_thread())
    before = signal.getsignal(signal.SIGINT)
    # A handler that cannot be called ignores Ctrl-C, as in the background of a script.
    if not found.known or not callable(before):
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


@dataclass
class _Running:
    """The names of the probe and of the scenario that run. A name is empty where none runs."""

    probe: str = ""
    scenario: str = ""


_running: Final = _Running()


def scenario_running() -> str:
    """The name of the scenario that runs. It is empty outside of scenarios."""
    return _running.scenario


@contextlib.contextmanager
def in_probe(name: str) -> Iterator[None]:
    """Name the probe that runs in the block. What is printed outside of scenarios gets its name."""
    before = _running.probe
    _running.probe = name
    try:
        yield
    finally:
        _running.probe = before


@contextlib.contextmanager
def in_scenario(name: str) -> Iterator[None]:
    """Name the scenario that runs in the block. What is printed in it gets its name."""
    before = _running.scenario
    _running.scenario = name
    try:
        yield
    finally:
        _running.scenario = before


@contextlib.contextmanager
def bounded_output(characters: int, named: bool = False) -> Iterator[None]:
    """Keep only the first characters of what is printed to each of stdout and stderr in the block.

    An endless loop would fill the disk on which output is captured. With `named`, the name of a
    scenario stands above what is printed in it. Replaces `write` of both streams in the block.
    """
    with contextlib.ExitStack() as undo:
        for stream in {id(each): each for each in (sys.stdout, sys.stderr)}.values():
            _bound(stream, characters, named, undo)
        yield


def _bound(stream: Any, characters: int, named: bool, undo: contextlib.ExitStack) -> None:
    original = stream.write
    left = characters
    told, last = "", "\n"  # the scenario whose name was written last, and the last text

    # Stands in place of the stream's own `write`.
    def write(text: str) -> int:
        nonlocal left, told, last
        if left > 0 and text:
            name = _running.scenario or _running.probe
            if named and told != name:
                told = name
                original(
                    f"{'' if last.endswith(chr(10)) else chr(10)}[scenario {told}]\n"
                    if told
                    else ""
                )
            last = text
            original(text[:left])
            left -= len(text)
            if left <= 0:
                original(
                    f"\n… more than {characters:,} characters were printed; the rest was not kept\n"
                )
        return len(text)

    def restore() -> None:
        with contextlib.suppress(AttributeError):
            del stream.write

    with contextlib.suppress(AttributeError):  # a stream whose methods cannot be replaced
        stream.write = write
        undo.callback(restore)


@dataclass(frozen=True)
class Limits:
    """What student code may take, and what ends grading instead of becoming evidence."""

    seconds: float | None = None  # to load a file, and for each scenario
    shared: bool = False  # whether all scenarios of a function share the seconds
    method: str = "signal"  # how TimedOut is raised: "signal" or "thread"
    characters: int | None = None  # that may be printed, each time
    waited: Callable[[], float] = lambda: 0.0  # see `time_limit`
    # Whether a Ctrl-C ends grading. In a sandbox, student code could send itself one.
    interruptible: bool = True
    # May end the run, where an exception is the user's wish.
    on_raised: Callable[[Raised], None] = lambda raised: None

    @contextlib.contextmanager
    def applied(self, path: Path, seconds: float | None) -> Iterator[tuple[Interrupts, Limit]]:
        """Apply the limits in the block to code of the file at `path`.

        Yields what notices a Ctrl-C, and what became of the limit of these seconds.
        """
        with (
            notice_interrupts()
            if self.interruptible
            else contextlib.nullcontext(Interrupts(True)) as stop,
            contextlib.nullcontext()
            if self.characters is None
            else bounded_output(self.characters, named=True),
            time_limit(seconds, str(path), self.method, self.waited) as limit,
        ):
            yield stop, limit


UNLIMITED: Final = Limits()
