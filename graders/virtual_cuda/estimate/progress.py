"""Tells how far an estimate is, while the script prints what it likes."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from virtual_cuda.ledger.texts import count_phrase, short_size

_ERASE: Final = "\r\x1b[2K"
_TICK: Final = 0.3  # seconds between two looks, on a terminal
_SELDOM: Final = 30.0  # elsewhere, where every line stays


class EstimateProgress:
    """What is being done, and how far it is."""

    def __init__(self, steps: int) -> None:
        """Begin before anything is known; `steps` are wanted, 0 for all."""
        self.steps = steps
        self.doing = "importing torch"  # told while nothing is watched
        self.watched: Any = None  # has `steps`, `passes`, `memory` and `has_ended`
        self.began = time.monotonic()

    def do_next(self, doing: str) -> None:
        """Tell from now on that this is being done."""
        self.watched = None
        self.doing = doing

    def text(self) -> str:
        """What is told now."""
        seconds = f"{time.monotonic() - self.began:.0f} s"
        if self.watched is None:
            return f"{self.doing} · {seconds}"
        events = len(self.watched.memory.events)
        peak = short_size(self.watched.memory.memory.peak)
        return f"{self._phase()} · {events:,} allocations · peak {peak} · {seconds}"

    def _phase(self) -> str:
        """How far the script is."""
        if self.watched.has_ended:
            return "working out memory and time"
        done = len(self.watched.steps)
        if done and self.steps:
            return f"{done} of {self.steps} steps"
        if done:
            return count_phrase(done, "step")
        if self.watched.passes:
            return f"no step yet, {count_phrase(self.watched.passes, 'call')} of a model"
        return "no step yet"


class ProgressLine:
    """The last line of a terminal, which makes way for what is written to some streams.

    It is shown while the cursor is at the beginning of a line, and not after a part of one. Where
    there is no terminal, lines are added that stay.
    """

    def __init__(self, terminal: Any) -> None:
        """Begin with nothing shown on a terminal; `terminal` is a stream that leads there."""
        self._terminal = terminal
        self._write = terminal.write
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._is_shown = False
        self._is_line_begun = False  # by somebody else

    def show(self, text: str) -> None:
        """Show a text in place of the one before, as much of it as a line holds."""
        width = shutil.get_terminal_size().columns
        with self._lock:
            if not self._is_line_begun:
                self._write(f"{_ERASE}{text[: width - 1]}")
                self._terminal.flush()
                self._is_shown = True

    def add(self, text: str) -> None:
        """Write a text as a line that stays."""
        with self._lock:
            if self._is_line_begun:
                self._write("\n")
                self._is_line_begun = False
            self._write(f"{text}\n")
            self._terminal.flush()

    def make_way(self) -> None:
        """Take the text away."""
        with self._lock:
            if self._is_shown:
                self._write(_ERASE)
                self._terminal.flush()
                self._is_shown = False

    def end(self) -> None:
        """Leave the cursor at the beginning of an empty line."""
        self.make_way()
        if self._is_line_begun:
            self._write("\n")
            self._terminal.flush()

    @contextlib.contextmanager
    def making_way(self, streams: Sequence[Any]) -> Iterator[None]:
        """Make way, inside the `with` block, for whatever is written to these streams."""
        writes = {}
        for stream in streams:
            writes[stream] = functools.partial(self._write_of_other, stream.write)
            stream.write = writes[stream]
        try:
            yield
        finally:
            for stream, write in writes.items():
                if stream.write is write:  # and nobody has put another one there
                    del stream.write
            self.end()

    def _write_of_other(self, write: Callable[[str], int], text: str) -> int:
        """Write what somebody else writes, by `write`; gives what that gives."""
        if os.getpid() != self._process:  # a fork, in which nothing is shown
            return write(text)
        with self._lock:
            self.make_way()
            if text:
                self._is_line_begun = not text.endswith("\n")
            return write(text)


@contextlib.contextmanager
def showing_progress(progress: EstimateProgress, name: str) -> Iterator[None]:
    """Show how far it is on stderr, inside the `with` block.

    On a terminal that is one line; elsewhere, and where another program may print to the terminal
    what the script prints, it is a new line now and then, which begins with the `name` of the
    command.
    """
    line = ProgressLine(sys.stderr)
    if not sys.stderr.isatty() or _is_piped(sys.stdout):
        streams = [sys.stderr]
        told = _repeating(_SELDOM, lambda: line.add(f"{name}: {progress.text()}"))
    else:
        streams = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        told = _repeating(_TICK, lambda: line.show(progress.text()))
    with line.making_way(streams), told:
        yield


def _is_piped(stream: Any) -> bool:
    """True if what is written to a stream goes to another program, as to `tee`."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it has no file
        return False


@contextlib.contextmanager
def _repeating(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Do something again and again in a thread, inside the `with` block."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
