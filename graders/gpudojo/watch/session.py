"""Grades what is saved: one queue of events, and one thread that changes what is known."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from gpudojo.grading.engine import result_of
from gpudojo.grading.limits import DEFAULT_SECONDS
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.exercise import Failed
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.model.time_outs import EXPECTED_TO_END, describe_time_out, still_running_after
from gpudojo.watch.course import BusiestCalls, Course, ExerciseWork
from gpudojo.watch.saves import watch_saves
from gpudojo.watch.standby import (
    DrawnTimelines,
    Ended,
    Frame,
    Ready,
    Standby,
    StandbyJob,
    StandbyResult,
)

# Without a frame for so long, a process is ended: loading, a call, and some.
HANGING_SECONDS: Final = 2 * DEFAULT_SECONDS + 5
# After so long a new spare is started although one runs: the run may have no end.
SPARE_SECONDS: Final = 1.0
TICK_SECONDS: Final = 0.1  # between two looks at the clock while something runs

# `begun`: something is being graded; `verdict`: all of the file that was saved is graded;
# `changed`: anything else to show.
Event = Literal["begun", "verdict", "changed"]


class _Saved(NamedTuple):
    """Files were saved."""

    paths: set[Path]


class _GradeAgain(NamedTuple):
    """The student wants all functions of an exercise graded again."""

    work: ExerciseWork


class _Received(NamedTuple):
    """A process has sent a frame."""

    process: Standby
    frame: Frame


class _Closed(NamedTuple):
    """The session ends."""


class Session:
    """Grades at the beginning what is not known, and then what is saved.

    `handle_events` does it, and calls `show` in its own thread for everything that there is to
    show. Other public methods may be called from any thread.

    Two processes at most are there: the `running` one, and a spare that is ready for the next save.
    """

    def __init__(
        self,
        course: Course,
        show: Callable[[Event, ExerciseWork], None],
        kind: str = "auto",
        seed: int = PUBLIC_SEEDS[0],
    ) -> None:
        """Grade on a device of this `kind`, with inputs drawn from the seed. Starts nothing."""
        self.course = course
        self.kind = kind
        self.seed = seed
        self.running: Standby | None = None
        self.saved_at = 0.0  # when something was saved
        self.took = 0.0  # seconds until its verdict
        self.trouble = ""  # why no process can be started
        self.heard = 0.0  # when the running process began, or sent its last frame
        self._show = show
        self._spare: Standby | None = None
        self._asked: ExerciseWork | None = None  # whose verdict the student waits for
        self._events: queue.SimpleQueue[_Saved | _GradeAgain | _Received | _Closed] = (
            queue.SimpleQueue()
        )
        self._closed = threading.Event()

    @property
    def ready(self) -> bool:
        """True if a save would be graded at once."""
        return self._spare is not None and self._spare.ready

    def report_saves(self, paths: Iterable[Path]) -> None:
        """Tell the session that files were saved: what changed in them is graded."""
        self._events.put(_Saved(set(paths)))

    def grade_again(self, work: ExerciseWork) -> None:
        """Have all functions of an exercise graded again."""
        self._events.put(_GradeAgain(work))

    def close(self) -> None:
        """End `handle_events` and `watch_folder`."""
        self._closed.set()
        self._events.put(_Closed())

    def watch_folder(self) -> None:
        """Report what is saved in the folder until the session is closed."""
        with contextlib.suppress(FileNotFoundError):  # the folder itself was removed
            for paths in watch_saves(self.course.folder, self._closed):
                self.report_saves(paths)

    def handle_events(self) -> None:
        """Handle events until the session is closed, and then end the processes.

        Starts a thread that watches the folder, and writes the progress at the end.
        """
        threading.Thread(target=self.watch_folder, name="gpudojo saves", daemon=True).start()
        self._spare = self._start_process()
        self._grade_first(self.course.current)
        try:
            while not self._closed.is_set():
                self._handle_next_event()
        finally:
            for process in (self.running, self._spare):
                if process is not None:
                    process.close()
            self.course.write_progress()

    def _handle_next_event(self) -> None:
        """Wait for an event and handle it.

        While something runs it waits for one tick, and then looks at the clock.
        """
        timeout = None
        if self.running is not None:
            timeout = TICK_SECONDS
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            self._look_at_clock()
            return
        match event:
            case _Saved(paths):
                self._handle_saves(paths)
            case _GradeAgain(work):
                self.saved_at = time.perf_counter()
                self._add_pending(work, work.names)
                self._interrupt_grading()
                self._grade_first(work)
            case _Received(process, frame):
                self._handle_frame(process, frame)

    def _handle_saves(self, paths: set[Path]) -> None:
        """Read the files that were saved, and have what changed graded before all else.

        What runs is interrupted. Nothing happens where no text has changed.
        """
        now = time.perf_counter()
        changed = []
        for work in self.course.works:
            if work.path not in paths:
                continue
            before = (work.text, work.broken)
            names = work.read_file()
            # The text of a file that is not UTF-8 stays as it was, but `broken` is another.
            if (work.text, work.broken) != before:
                changed.append(work)
                self._add_pending(work, names)
        if changed:
            self.course.move_to(changed[0])
        elif paths.isdisjoint(work.path for work in self.course.works):
            # Modules that the student's file may import.
            self._add_pending(self.course.current, self.course.current.names)
        else:
            return
        self.saved_at = now
        self.took = 0.0
        self._interrupt_grading()
        self._grade_first(self.course.current)

    def _add_pending(self, work: ExerciseWork, names: list[str]) -> None:
        """Add functions to grade, before those of the same file that wait already."""
        waiting = self.course.pending.get(work.stem, [])
        each_once = dict.fromkeys([*names, *waiting])
        if each_once:
            self.course.pending[work.stem] = list(each_once)
        else:
            self.course.pending.pop(work.stem, None)

    def _grade_first(self, work: ExerciseWork) -> None:
        """Have a file graded before all others.

        Shows that this has begun, or the last verdict where nothing is to be graded.
        """
        pending = self.course.pending
        if work.stem in pending:
            names = pending.pop(work.stem)
            self.course.pending = {work.stem: names, **pending}
        if work.stem in self._gradable_functions():
            self._asked = work
            self._show("begun", work)
        else:
            self._asked = None
            self._show("verdict", work)
        self._begin_grading()

    def _gradable_functions(self) -> dict[str, list[str]]:
        """The functions that wait and can be graded, by the stem of their exercise.

        A file that Python cannot read waits until it can.
        """
        gradable = {}
        for stem, names in self.course.pending.items():
            work = self._work_of(stem)
            if work.broken is None and work.text is not None:
                gradable[stem] = names
        return gradable

    def _begin_grading(self) -> None:
        """Give all that can be graded to a process, if none runs: to the spare, or a new one."""
        gradable = self._gradable_functions()
        if self.running is not None or not gradable:
            return
        self.running = self._spare or self._start_process()
        self._spare = None
        jobs = []
        for stem, names in gradable.items():
            path = self._work_of(stem).path
            jobs.append(StandbyJob(stem, str(path), tuple(names)))
        self.running.send_request(jobs)
        self.heard = time.perf_counter()

    def _interrupt_grading(self) -> None:
        """Kill the process that grades: what it would say is about an older file."""
        if self.running is not None:
            self.running.kill()
            self.running = None

    def _start_process(self) -> Standby:
        """Start a process, and forget why an earlier one could not be started."""
        self.trouble = ""
        work = self.course.current
        return Standby(work.stem, work.path, self.kind, self.seed, self._queue_frame)

    def _queue_frame(self, process: Standby, frame: Frame) -> None:
        """Put a frame into the queue. It is called in a thread of the process's own."""
        self._events.put(_Received(process, frame))

    def _look_at_clock(self) -> None:
        """Kill a process that hangs, and start a spare beside one that takes long.

        Otherwise a spare is started after the verdict, so that it does not slow down what runs.
        """
        if self.running is None or not self.running.ready:
            return
        waited = time.perf_counter() - self.heard
        if waited > HANGING_SECONDS:
            self.running.kill()  # its `Ended` frame becomes the verdict
        elif waited > SPARE_SECONDS and self._spare is None:
            self._spare = self._start_process()

    def _handle_frame(self, process: Standby, frame: Frame) -> None:
        """Note what a process says, and show it. One that was interrupted is not heard.

        One that has ended is replaced, and the rest is graded.
        """
        if process is self._spare:
            self._handle_frame_of_spare(frame)
        if process is not self.running:
            return
        now = time.perf_counter()
        hung = now - self.heard > HANGING_SECONDS
        self.heard = now
        match frame:
            case Ready():
                self._show("changed", self.course.current)
            case StandbyResult():
                self._take_verdict(frame)
            case DrawnTimelines():
                work = self._work_of(frame.stem)
                work.timelines[frame.function] = BusiestCalls(frame.yours, frame.theirs)
                self._show("changed", work)
            case Ended():
                self._handle_end_of_running(process, frame, hung)

    def _handle_frame_of_spare(self, frame: Frame) -> None:
        """Show that the spare is ready, or why it has ended."""
        if isinstance(frame, Ended):
            self._spare = None
            self.trouble = _reason_of_end(frame)
        if isinstance(frame, (Ready, Ended)):
            self._show("changed", self.course.current)

    def _handle_end_of_running(self, process: Standby, frame: Ended, hung: bool) -> None:
        """Judge the function during which the process ended, if one did, and go on.

        Starts a spare if there is none. Where the process ended before it was ready, `trouble`
        says why, and nothing more is graded.
        """
        self.running = None
        gradable = self._gradable_functions()
        if gradable and not process.ready:  # not by student code: none has run
            self.trouble = _reason_of_end(frame)
            self._show("changed", self.course.current)
            return
        if gradable:
            stem, names = next(iter(gradable.items()))
            results = _results_of_end(self._work_of(stem), names[0], frame.code, hung)
            self._take_verdict(StandbyResult(stem, names[0], results))
        if self._spare is None:
            self._spare = self._start_process()
        self._begin_grading()

    def _work_of(self, stem: str) -> ExerciseWork:
        """The exercise of this stem. Raises KeyError if the course does not have it."""
        for work in self.course.works:
            if work.stem == stem:
                return work
        raise KeyError(stem)

    def _take_verdict(self, verdict: StandbyResult) -> None:
        """Note the verdict on a function.

        With the last verdict on the file that the student waits for, the session moves on to the
        next exercise if this one is done, and writes the progress.
        """
        # Take the function off the list, and note its results.
        work = self._work_of(verdict.stem)
        was_done = work.state == "done"
        names = self.course.pending.get(work.stem, [])
        if verdict.function in names:
            names.remove(verdict.function)
        if not names:
            self.course.pending.pop(work.stem, None)
        work.note_verdict(verdict.function, verdict.results, verdict.printed, verdict.stopped)
        if names or work is not self._asked:
            self._show("changed", work)
            return
        # All of the file that the student waits for is graded.
        self._asked = None
        following = self.course.work_after(work)
        is_done = work.state == "done"
        if self.saved_at:
            self.took = time.perf_counter() - self.saved_at
            if is_done and not was_done and work is self.course.current:
                self.course.move_to(following or work, finished=work)
        elif is_done and following is not None:  # begin where there is something to do
            self.course.move_to(following)
            self._grade_first(following)
            return
        self.course.write_progress()
        self._show("verdict", work)


def _reason_of_end(frame: Ended) -> str:
    """Why a process ended that had not begun to grade."""
    return frame.said.strip() or f"exit code {frame.code}"


def _results_of_end(work: ExerciseWork, name: str, code: int, hung: bool) -> list[CheckResult]:
    """The results of a function during which the process ended: its first check failed.

    The others are blocked by it. `code` is the exit code; `hung` that it was ended by us.
    """
    function = work.exercise.function_named(name)
    happened = f"`{name}` ended the process that ran it (exit code {code})"
    expected = "a function that returns"
    if hung:
        happened = describe_time_out(name, still_running_after(HANGING_SECONDS))
        expected = EXPECTED_TO_END
    first, *rest = function.checks
    failed = Failed(happened, expected)
    results = [result_of(work.exercise, function, first, Outcome.FAILED, failed)]
    for check in rest:
        blocked = result_of(work.exercise, function, check, Outcome.BLOCKED, blocked_by=first.name)
        results.append(blocked)
    return results


def has_full_screen() -> bool:
    """True if the libraries of the full-screen app are installed."""
    try:
        import textual
        import watchfiles
    except ImportError:
        return False
    return bool(textual and watchfiles)
