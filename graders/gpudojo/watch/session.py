"""Sees what the student saves, and has it graded: one request at a time, which the next save ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from gpudojo.grading.judge import result_of
from gpudojo.grading.limits import SECONDS
from gpudojo.grading.references import PUBLIC_SEEDS
from gpudojo.model.exercise import Failed
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.watch.course import Course, Work
from gpudojo.watch.standby import Drawn, Ended, Frame, Graded, Job, Ready, Standby

HANGING: Final = 2 * SECONDS + 5  # seconds without a frame, after which the process is ended: loading, a call, and some
SOON: Final = 1.0  # seconds of a run, after which a new spare is started: the run may have no end
QUIET: Final = 15  # milliseconds without a change, after which a file counts as saved
POLLING: Final = 0.2  # seconds between two looks, where watchfiles is not installed

# `begun`: something is being graded; `verdict`: all of the file that was saved is; `changed`: anything else to show.
Event = Literal["begun", "verdict", "changed"]


class Session:
    """Grades at the beginning what is not known, and then what is saved.

    `loop` does it, and calls `show` in its own thread for everything that there is to show. Other methods may be
    called from any thread.
    """

    def __init__(
        self, course: Course, show: Callable[[Event, Work], None], kind: str = "auto", seed: int = PUBLIC_SEEDS[0]
    ) -> None:
        self.course, self.kind, self.seed = course, kind, seed
        self.running: Standby | None = None
        self.saved_at = self.took = 0.0  # when something was saved, and seconds until its verdict
        self.trouble = ""  # why no process can be started
        self._show = show
        self._spare: Standby | None = None
        self.heard = 0.0  # when the running process began, or sent its last frame
        self._asked: Work | None = None  # whose verdict the student waits for
        self._events: queue.SimpleQueue[set[Path] | Work | tuple[Standby, Frame] | None] = queue.SimpleQueue()
        self._closed = threading.Event()

    @property
    def ready(self) -> bool:
        return self._spare is not None and self._spare.ready

    def save(self, paths: Iterable[Path]) -> None:
        """Tells that files were saved."""
        self._events.put(set(paths))

    def again(self, work: Work) -> None:
        """Grades all functions of an exercise again."""
        self._events.put(work)

    def close(self) -> None:
        """Ends `loop` and `watch`."""
        self._closed.set()
        self._events.put(None)

    def watch(self) -> None:
        """Tells what is saved in the folder until the session is closed."""
        with contextlib.suppress(FileNotFoundError):  # the folder itself was removed
            for paths in saves(self.course.folder, self._closed):
                self.save(paths)

    def loop(self) -> None:
        """Until the session is closed."""
        threading.Thread(target=self.watch, name="gpudojo saves", daemon=True).start()
        self._spare = self._standby()
        self._wait_for(self.course.current)
        try:
            while not self._closed.is_set():
                try:
                    event = self._events.get(timeout=0.1 if self.running else None)
                except queue.Empty:
                    self._look_at_clock()
                    continue
                match event:
                    case set():
                        self._saved(event)
                    case Work():
                        self.saved_at = time.perf_counter()
                        self._put(event, event.names)
                        self._interrupt()
                        self._wait_for(event)
                    case (Standby() as process, frame):
                        self._frame(process, frame)
        finally:
            for left in (self.running, self._spare):
                if left is not None:
                    left.close()
            self.course.remember()

    def _saved(self, paths: set[Path]) -> None:
        now, changed = time.perf_counter(), []
        for work in (work for work in self.course.works if work.path in paths):
            before, names = work.text, work.read()
            if work.text != before:
                changed.append(work)
                self._put(work, names)
        if changed:
            self.course.move(changed[0])
        elif paths.isdisjoint(work.path for work in self.course.works):  # modules that the student's file may import
            self._put(self.course.current, self.course.current.names)
        else:
            return
        self.saved_at, self.took = now, 0.0
        self._interrupt()
        self._wait_for(self.course.current)

    def _put(self, work: Work, names: list[str]) -> None:
        """In front of what waits of the same file."""
        self.course.pending[work.stem] = list(dict.fromkeys([*names, *self.course.pending.get(work.stem, [])]))
        if not self.course.pending[work.stem]:
            del self.course.pending[work.stem]

    def _wait_for(self, work: Work) -> None:
        """Has a file graded before all others."""
        if work.stem in self.course.pending:
            self.course.pending = {work.stem: self.course.pending.pop(work.stem), **self.course.pending}
        waits = work.stem in self._waiting()
        self._asked = work if waits else None
        self._show("begun" if waits else "verdict", work)
        self._begin()

    def _waiting(self) -> dict[str, list[str]]:
        """What is to be graded and can be: a file that Python cannot read waits until it can."""
        able = {work.stem for work in self.course.works if work.broken is None and work.text is not None}
        return {stem: names for stem, names in self.course.pending.items() if stem in able}

    def _begin(self) -> None:
        waiting = self._waiting()
        if self.running is not None or not waiting:
            return
        self.running, self._spare = self._spare or self._standby(), None
        paths = {work.stem: str(work.path) for work in self.course.works}
        self.running.ask([Job(stem, paths[stem], tuple(names)) for stem, names in waiting.items()])
        self.heard = time.perf_counter()

    def _interrupt(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running = None

    def _standby(self) -> Standby:
        self.trouble, work = "", self.course.current
        return Standby(work.stem, work.path, self.kind, self.seed, lambda *frame: self._events.put(frame))

    def _look_at_clock(self) -> None:
        """A spare is started after the verdict, so that it does not slow down what runs; or when that takes long."""
        if self.running is None or not self.running.ready:
            return
        waited = time.perf_counter() - self.heard
        if waited > HANGING:
            self.running.kill()  # what is to be said of it is said when it has ended
        elif waited > SOON and self._spare is None:
            self._spare = self._standby()

    def _frame(self, process: Standby, frame: Frame) -> None:
        if process is self._spare and isinstance(frame, Ended):
            self._spare, self.trouble = None, frame.said.strip() or f"exit code {frame.code}"
        if process is self._spare and isinstance(frame, (Ready, Ended)):
            self._show("changed", self.course.current)
        if process is not self.running:
            return
        late = time.perf_counter() - self.heard > HANGING
        self.heard = time.perf_counter()
        match frame:
            case Ready():
                self._show("changed", self.course.current)
            case Graded():
                self._verdict(frame.stem, frame.function, frame.results, frame)
            case Drawn():
                self._work(frame.stem).timelines[frame.function] = (frame.yours, frame.theirs)
                self._show("changed", self._work(frame.stem))
            case Ended():
                self.running = None
                waiting = self._waiting()
                if waiting and not process.ready:  # not by student code: none has run
                    self.trouble = frame.said.strip() or f"exit code {frame.code}"
                    self._show("changed", self.course.current)
                    return
                for stem, names in itertools.islice(waiting.items(), 1):
                    self._verdict(stem, names[0], _ended(self._work(stem), names[0], frame.code, late))
                if self._spare is None:
                    self._spare = self._standby()
                self._begin()

    def _work(self, stem: str) -> Work:
        return next(work for work in self.course.works if work.stem == stem)

    def _verdict(self, stem: str, function: str, results: list[CheckResult], frame: Graded | None = None) -> None:
        work, names = self._work(stem), self.course.pending.get(stem, [])
        before = work.state
        if function in names:
            names.remove(function)
        if not names:
            self.course.pending.pop(stem, None)
        work.take(function, results, frame.printed if frame else "", frame.stopped if frame else None)
        if names or work is not self._asked:
            self._show("changed", work)
            return
        self._asked, following = None, self.course.after(work)
        if self.saved_at:
            self.took = time.perf_counter() - self.saved_at
            if work.state == "done" and before != "done" and work is self.course.current:
                self.course.move(following or work, finished=work)
        elif work.state == "done" and following is not None:  # begin where there is something to do
            self.course.move(following)
            self._wait_for(following)
            return
        self.course.remember()
        self._show("verdict", work)


def _ended(work: Work, function: str, code: int, late: bool) -> list[CheckResult]:
    """The results of a function during which the process ended."""
    found = next(each for each in work.exercise.functions if each.name == function)
    happened = f"`{function}` ended the process that ran it (exit code {code})"
    expected = "a function that returns"
    if late:
        happened = f"time-out: `{function}` was still running after {HANGING:g} seconds"
        expected = "an end; look for a loop that never ends, or for something it waits for that never comes"
    first, *rest = found.checks
    return [
        result_of(work.exercise, found, first, Outcome.FAILED, Failed(happened, expected)),
        *(result_of(work.exercise, found, check, Outcome.BLOCKED, blocked_by=first.name) for check in rest),
    ]


def full_screen() -> bool:
    """Whether the libraries of the full-screen app are installed."""
    try:
        import textual
        import watchfiles
    except ImportError:
        return False
    return bool(textual and watchfiles)


def saves(folder: Path, stop: threading.Event) -> Iterator[set[Path]]:
    """The Python files of a folder that were saved, each time some were: also by an editor that replaces the file.

    All of them first, when it begins to see saves: one may have been saved before.
    """
    try:
        from watchfiles import watch
    except ImportError:
        yield from _polled(folder, stop)
        return
    paths = {*_stamps(folder)}
    for changes in watch(
        folder,
        recursive=False,
        step=QUIET,
        debounce=10 * QUIET,
        stop_event=stop,
        rust_timeout=500,
        yield_on_timeout=True,
    ):
        paths |= {Path(path) for _, path in changes if path.endswith(".py")}
        if paths:
            yield paths
        paths = set()


def _polled(folder: Path, stop: threading.Event) -> Iterator[set[Path]]:
    known = _stamps(folder)
    yield {*known}
    while not stop.wait(POLLING):
        before, known = known, _stamps(folder)
        paths = {path for path in before.keys() | known if before.get(path) != known.get(path)}
        if paths:
            yield paths


def _stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """For each Python file what changes when it is saved."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                with contextlib.suppress(OSError):
                    stat = entry.stat()
                    found[Path(entry.path)] = stat.st_mtime_ns, stat.st_size
    return found
