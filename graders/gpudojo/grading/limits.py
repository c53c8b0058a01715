"""Limits on student code: time, printed output, interrupts."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from gpudojo.grading.debugger import LeftDebugger, is_in_debugger, running_clock
from gpudojo.grading.thread_frames import frame_of_thread
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


def _line_running(frame: FrameType | None, file: str) -> int | None:
    """The line of the file that is running. Returns None where nothing of the file runs."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_debugging() -> bool:
    """True if a debugger holds up student code: then nothing is late.

    pytest-timeout knows those of editors, too.
    """
    if is_in_debugger():
        return True
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
    """Raise TimedOut in the code of `file` once the seconds are over, as long as the block runs.

    Gives a Limit that tells whether, and at which line, it was raised. It is seldom raised in our
    own code, which has a device to close. `waited` returns the seconds so far in which the process
    could have run but others had the processors. They do not count, up to a point; only the method
    "signal" heeds them. That method replaces the handler of SIGALRM in the block, and notes each
    time-out in `LATE`; outside of the main thread, a thread does its work. None or 0 seconds are no
    limit.
    """
    limit = Limit()
    if not seconds or seconds <= 0:
        yield limit
        return
    in_main_thread = threading.current_thread() is threading.main_thread()
    if method == "signal" and in_main_thread and hasattr(signal, "SIGALRM"):
        raising = _raise_by_signal(_Alarm(seconds, file, limit, waited))
    else:
        raising = _raise_by_thread(seconds, file, limit)
    with raising:
        yield limit


def _set_handler(number: int, handler: Any) -> Any:
    """Set the handler of a signal, and return the one before.

    `signal.signal` also looks for enums in handlers, which takes longer than the rest.
    """
    return _signals.signal(number, handler)


class _Alarm:
    """Decides at each alarm whether code of a file is out of time."""

    def __init__(
        self, seconds: float, file: str, limit: Limit, waited: Callable[[], float]
    ) -> None:
        """Begin to count the seconds now. The alarm itself is set by `begin`.

        It is for code of the file, and what becomes of it will be noted in `limit`.
        `waited` returns how many seconds have been spent waiting so far, which do not count.
        """
        self.seconds = seconds
        self.file = file
        self.limit = limit
        self.waited = waited
        self.waited_before = waited()
        self.began = running_clock()
        self.end = self.began + seconds

    def begin(self) -> None:
        """Have the alarm go off when the time is over, and again and again after that."""
        self._go_off_in(self.seconds, AGAIN)

    def stop(self) -> None:
        self._go_off_in(0, 0)

    def ring(self, frame: FrameType | None) -> None:
        """Handle one alarm, in the code of `frame`: raise TimedOut if student code is out of time.

        Where the process waited for a processor, the alarm is set anew instead. A time-out is noted
        in `limit` and `LATE`. If only our code is running, TimedOut is raised once, much later.
        """
        if self.limit.over or _is_debugging():
            return
        # Time in which the process waited for a processor is given back: the alarm moves.
        if not self.limit.raised:
            left = self._remaining_seconds()
            if left > 0:
                self.end = max(self.end, running_clock() + left)
                self._go_off_in(max(left, INSIST), AGAIN)
                return
        # Student code is running: interrupt it, and more often if it catches that.
        line = _line_running(frame, self.file)
        if line is not None:
            self.limit.line = self.limit.line or line
            self.limit.raised += 1
            LATE.append(self.seconds)
            if self.limit.raised == 5:
                self._go_off_in(INSIST, INSIST)
            raise TimedOut(self.seconds)
        # Nothing of the student's is running, so something of ours may hang on what the student
        # returned. It is interrupted once, and then has as long again to close what it has opened.
        if running_clock() > self.end + self.seconds:
            self.end += max(self.seconds, TIDYING)
            raise TimedOut(self.seconds)

    def _remaining_seconds(self) -> float:
        """How long the limit still lasts, without the time in which it waited for others or in
        which the user was in the debugger.

        May be negative.
        """
        elapsed = running_clock() - self.began
        waited = self.waited() - self.waited_before
        return self.seconds - charged_seconds(elapsed, waited)

    def _go_off_in(self, seconds: float, interval: float) -> None:
        """Set the timer: once in so many seconds, and then at every interval. 0 seconds stop it."""
        if sys.platform == "win32":  # for mypy; `time_limit` uses threads there
            raise NotImplementedError
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)


@contextlib.contextmanager
def _raise_by_signal(alarm: _Alarm) -> Iterator[None]:
    """Have an alarm raise TimedOut in the block.

    Replaces the handler of SIGALRM and sets the timer; both are undone at the end, and the limit is
    marked as over.
    """
    if sys.platform == "win32":  # for mypy; `time_limit` uses threads there
        raise NotImplementedError

    # A function, and no method: that would lead whoever asks for the handler to the limit.
    def handler(signum: int, frame: FrameType | None) -> None:
        alarm.ring(frame)

    before = _set_handler(signal.SIGALRM, handler)
    try:
        alarm.begin()
        try:
            yield
        finally:
            alarm.limit.over = True
    finally:
        alarm.stop()
        _set_handler(signal.SIGALRM, before)


@contextlib.contextmanager
def _raise_by_thread(seconds: float, file: str, limit: Limit) -> Iterator[None]:
    """Raise TimedOut in the block from another thread, for machines without alarms.

    Code that waits inside the operating system is not interrupted before it returns. How often it
    was raised, and at which line first, is noted in `limit`. The thread ends with the block.
    """
    target = threading.get_ident()
    done = threading.Event()

    # The thread is given a class, and the exception is made of it without arguments.
    class TimedOutHere(TimedOut):
        def __init__(self) -> None:
            super().__init__(seconds)

    TimedOutHere.__name__ = TimedOut.__name__

    def raise_when_late() -> None:
        """Raise TimedOut in the thread of the block, again and again until that has ended.

        Only while a line of the file runs; it is noted in `limit`.
        """
        end = running_clock() + seconds
        wait = seconds
        while not done.wait(wait):
            wait = max(end - running_clock(), AGAIN)
            if running_clock() < end:
                continue
            line = _line_running(frame_of_thread(target), file)
            if line is None or _is_debugging():
                continue
            limit.line = limit.line or line
            limit.raised += 1
            thread = ctypes.c_ulong(target)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimedOutHere))

    watcher = threading.Thread(target=raise_when_late, name="gpudojo time limit", daemon=True)
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

    def is_users_wish(self, error: BaseException) -> bool:
        """True if an exception is the user's wish to stop: by Ctrl-C, or in the debugger."""
        if isinstance(error, LeftDebugger):
            return True
        if not isinstance(error, KeyboardInterrupt):
            return False
        return self.real or not self.known


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


def probe_running() -> str:
    """The name of the probe that runs. It is empty outside of probes."""
    return _running.probe


@contextlib.contextmanager
def in_probe(name: str) -> Iterator[None]:
    """Name the probe that runs in the block. What is printed outside of scenarios gets its name.

    The name from before is put back at the end.
    """
    before = _running.probe
    _running.probe = name
    try:
        yield
    finally:
        _running.probe = before


@contextlib.contextmanager
def in_scenario(name: str) -> Iterator[None]:
    """Name the scenario that runs in the block. What is printed in it gets its name.

    The name from before is put back at the end.
    """
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
        streams = [sys.stdout]
        if sys.stderr is not sys.stdout:
            streams.append(sys.stderr)
        for stream in streams:
            _bound_stream(stream, _BoundedWriter(stream.write, characters, named), undo)
        yield


class _BoundedWriter:
    """Writes texts as long as there are characters left.

    With `named`, the name of a scenario stands above what is printed in it.
    """

    def __init__(self, write: Callable[[str], Any], characters: int, named: bool) -> None:
        """Pass at most so many characters on to `write`.

        With `named`, the name of a scenario will stand above what is printed in it.
        """
        self.write_on = write
        self.characters = characters
        self.left = characters
        self.named = named
        self.last_name = ""  # of the scenario whose name was written last
        self.last_text = "\n"

    def write(self, text: str) -> int:
        """Write a text, or as much of it as there are characters left; the rest is dropped.

        With the last character, a line says so. With `named`, the name of a scenario that is new
        is written first. Returns the length of the text, as streams do.
        """
        if self.left <= 0 or not text:
            return len(text)
        self._write_name()
        self.last_text = text
        self.write_on(text[: self.left])
        self.left -= len(text)
        if self.left <= 0:
            most = f"{self.characters:,}"
            self.write_on(f"\n… more than {most} characters were printed; the rest was not kept\n")
        return len(text)

    def _write_name(self) -> None:
        """Write the name of the scenario that runs, on a line of its own, if it is another one."""
        name = _running.scenario or _running.probe
        if not self.named or name == self.last_name:
            return
        self.last_name = name
        if name:
            new_line = "\n"
            if self.last_text.endswith("\n"):
                new_line = ""
            self.write_on(f"{new_line}[scenario {name}]\n")


def _bound_stream(stream: Any, writer: _BoundedWriter, undo: contextlib.ExitStack) -> None:
    """Put a writer in place of the stream's own `write`, until `undo` is closed."""

    # A function, and no method: that would lead student code to the writer.
    def write(text: str) -> int:
        return writer.write(text)

    def restore() -> None:
        with contextlib.suppress(AttributeError):  # somebody else has taken it out
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

    @contextlib.contextmanager
    def apply_to(self, path: Path, seconds: float | None) -> Iterator[tuple[Interrupts, Limit]]:
        """Apply the limits in the block to code of the file at `path`; `seconds` is its time limit.

        Gives what notices a Ctrl-C, and what became of the time limit. TimedOut, KeyboardInterrupt
        and LeftDebugger come out of the block. Handlers and streams are put back at the end.
        """
        with contextlib.ExitStack() as undo:
            interrupts = Interrupts(True)
            if self.interruptible:
                interrupts = undo.enter_context(notice_interrupts())
            if self.characters is not None:
                undo.enter_context(bounded_output(self.characters, named=True))
            limited = time_limit(seconds, str(path), self.method, self.waited)
            limit = undo.enter_context(limited)
            yield interrupts, limit


UNLIMITED: Final = Limits()
