"""Grades what is saved: one queue of events, and one thread that changes what is known."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from gpudojo.grading.engine import result_of
from gpudojo.grading.limits import DEFAULT_SECONDS
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.exercise import Failed
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.model.time_outs import EXPECTED_TO_END, describe_time_out, still_running_after
from gpudojo.watch.course import BusiestCalls, Course, ExerciseWork, SkippedBreakpoint
from gpudojo.watch.saves import watch_saves
from gpudojo.watch.standby import (
    DrawnTimelines,
    Ended,
    Frame,
    JobDone,
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


@dataclass
class _RunningJob:
    """What the running process grades; empty where none runs."""

    stem: str = ""
    unanswered: list[str] = field(default_factory=list)  # functions without a verdict so far
    text: str = ""  # of the file
    had_file_before: bool = False  # whether the process has graded an earlier text of the file
    confirms: bool = False  # whether the verdict is known already
    is_outdated: bool = False  # whether there is a newer text by now


class Session:
    """Grades at the beginning what is not known, and then what is saved.

    `handle_events` does it, and calls `show` in its own thread for everything that there is to
    show. Other public methods may be called from any thread.

    Two processes at most are there: one that grades or has graded, and a spare that loads or is
    ready for the next save. A save never ends a process that loads: the spare gets the newest text
    when it is ready. Until then, the process that has graded before grades again. Where it had the
    same file before, the spare confirms its verdicts as soon as it is ready.
    """

    def __init__(
        self,
        course: Course,
        show: Callable[[Event, ExerciseWork], None],
        kind: str = "auto",
        seed: int = PUBLIC_SEEDS[0],
    ) -> None:
        """Grade on a device of this `kind`, with inputs drawn from the seed. Starts nothing.

        `show` will be called with everything that there is to show.
        """
        self.course = course
        self.kind = kind
        self.seed = seed
        self.running: Standby | None = None  # the process that grades
        self.loading = False  # whether something waits until a process has loaded torch
        self.saved_at = 0.0  # when something was saved
        self.took = 0.0  # seconds until its verdict
        self.trouble = ""  # why no process can be started
        self.heard = 0.0  # when the running process began, or sent its last frame
        self._show = show
        self._spare: Standby | None = None  # a process that has graded nothing
        self._used: Standby | None = None  # a process that has graded, and waits
        self._job = _RunningJob()
        self._asked: ExerciseWork | None = None  # whose verdict the student waits for
        # By exercise: the functions whose verdict was reached in a process that had graded an
        # earlier text of the same file.
        self._unconfirmed: dict[str, list[str]] = {}
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
        """Report what is saved in the folder until the session is closed, or the folder removed."""
        with contextlib.suppress(FileNotFoundError):  # the folder itself was removed
            for paths in watch_saves(self.course.folder, self._closed):
                self.report_saves(paths)

    def handle_events(self) -> None:
        """Handle events until the session is closed, and then end the processes.

        Starts a thread that watches the folder, and writes the progress at the end. Raises BadDay
        or OSError where the day's own files cannot be read, and what `show` raises.
        """
        threading.Thread(target=self.watch_folder, name="gpudojo saves", daemon=True).start()
        self._start_spare()
        self._grade_first(self.course.current)
        try:
            while not self._closed.is_set():
                self._handle_next_event()
        finally:
            for process in (self.running, self._used, self._spare):
                if process is not None:
                    process.close()
            self.course.write_progress()

    def _handle_next_event(self) -> None:
        """Wait for an event and handle it.

        While something runs it waits for one tick, and then looks at the clock. Raises BadDay or
        OSError where the day's own files cannot be read, and what `show` raises.
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
                self._grade_first(work)
                self._prefer_spare()
            case _Received(process, frame):
                self._handle_frame(process, frame)

    def _handle_saves(self, paths: set[Path]) -> None:
        """Read the files that were saved, and have what changed graded before all else.

        The first of them becomes the current exercise. Nothing happens where no text has changed.
        Raises BadDay or OSError where the day's own files cannot be read.
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
        self._grade_first(self.course.current)
        self._prefer_spare()

    def _add_pending(self, work: ExerciseWork, names: list[str]) -> None:
        """Add functions to grade, before those of the same file that wait already.

        What runs of the same file is about an older text from now on.
        """
        if self._job.stem == work.stem:
            self._job.is_outdated = True
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
        return self._readable(self.course.pending)

    def _readable(self, functions: dict[str, list[str]]) -> dict[str, list[str]]:
        """Those of the functions, by the stem of their exercise, whose file Python can read."""
        readable = {}
        for stem, names in functions.items():
            work = self._work_of(stem)
            if work.broken is None and work.text is not None:
                readable[stem] = names
        return readable

    def _prefer_spare(self) -> None:
        """Kill what runs, if it is not what is to be graded first and a spare is ready.

        Where none is ready, one is started: what runs may have no end.
        """
        gradable = self._gradable_functions()
        is_first = next(iter(gradable), "") == self._job.stem and not self._job.is_outdated
        if self.running is None or not gradable or is_first:
            return
        if self.ready:
            self.running.kill()
            self._forget_running()
            self._begin_grading()
        elif self._spare is None:
            self._start_spare()

    def _forget_running(self) -> None:
        """Hear nothing more of the process that runs."""
        self.running = None
        self._job = _RunningJob()

    def _begin_grading(self) -> None:
        """Give the file to be graded first to a process, if none runs: to the spare, if it is
        ready, else to one that has graded before.

        The latter is ended where the spare begins. Without either, the file waits for the spare,
        which is started if there is none. Where nothing is to be graded, a ready spare confirms
        verdicts.
        """
        self.loading = False
        if self.running is not None:
            return
        gradable = self._gradable_functions()
        if not gradable and self.ready:
            gradable = self._readable(self._unconfirmed)
        if not gradable:
            return
        if self.ready:
            self.running = self._spare
            self._spare = None
            self._end_used()
        else:
            self.running = self._used
            self._used = None
        if self.running is None:
            self.loading = True
            if self._spare is None:
                self._start_spare()
            return
        stem, names = next(iter(gradable.items()))
        self._send_job(self.running, stem, names)

    def _send_job(self, process: Standby, stem: str, names: list[str]) -> None:
        """Have a process grade functions of an exercise, and note that."""
        work = self._work_of(stem)
        self._job = _RunningJob(
            stem,
            unanswered=list(names),
            text=work.graded or "",
            had_file_before=stem in process.graded,
            confirms=stem not in self.course.pending,
        )
        if not self._job.had_file_before:
            self._unconfirmed.pop(stem, None)
        process.send_job(StandbyJob(stem, str(work.path), tuple(names)))
        self.heard = time.perf_counter()

    def _end_used(self) -> None:
        """End the process that has graded and waits, if there is one."""
        if self._used is not None:
            self._used.kill()
            self._used = None

    def _start_spare(self) -> None:
        """Start the spare. Forgets why an earlier process could not be started.

        What the process says will be put into the queue. Where the system refuses to start one,
        that is shown, and the next save tries again.
        """
        trouble_before = self.trouble
        self.trouble = ""
        work = self.course.current
        try:
            self._spare = Standby(work.stem, work.path, self.kind, self.seed, self._queue_frame)
        except OSError as error:
            reason = error.strerror or str(error)
            self.trouble = f"no process could be started ({reason}); save again to try again"
            self.loading = False
            if self.trouble != trouble_before:
                self._show("changed", work)

    def _queue_frame(self, process: Standby, frame: Frame) -> None:
        """Put a frame into the queue. It is called in a thread of the process's own."""
        self._events.put(_Received(process, frame))

    def _look_at_clock(self) -> None:
        """Kill a process that hangs, and start a spare beside one that takes long.

        Otherwise a spare is started after the verdict, so that it does not slow down what runs.
        """
        if self.running is None:
            return
        waited = time.perf_counter() - self.heard
        if waited > HANGING_SECONDS:
            self.running.kill()  # its `Ended` frame becomes the verdict
        elif waited > SPARE_SECONDS and self._spare is None:
            self._start_spare()

    def _handle_frame(self, process: Standby, frame: Frame) -> None:
        """Note what a process says, and show it. One that was interrupted is not heard.

        Raises KeyError for a frame about an unknown exercise, and BadDay or OSError where the day's
        own files cannot be read.
        """
        if process is self._used and isinstance(frame, Ended):
            self._used = None
        if process is self._spare:
            self._handle_frame_of_spare(frame)
        if process is not self.running:
            return
        now = time.perf_counter()
        hung = now - self.heard > HANGING_SECONDS
        self.heard = now
        match frame:
            case StandbyResult():
                self._handle_result(frame)
            case DrawnTimelines():
                self._handle_timelines(frame)
            case JobDone():
                self._used = process
                self._finish_job()
            case Ended():
                self._handle_end_of_running(frame, hung)

    def _handle_frame_of_spare(self, frame: Frame) -> None:
        """Show that the spare is ready, or why it has ended.

        A ready one grades at once what waits, also in the place of a process that grades something
        else.
        """
        if isinstance(frame, Ended):
            self._spare = None
            self.trouble = _reason_of_end(frame)
        if isinstance(frame, Ready):
            self._prefer_spare()
            self._begin_grading()
        if self.ready and self.running is None:
            self._end_used()
        if isinstance(frame, (Ready, Ended)):
            self._show("changed", self.course.current)

    def _finish_job(self) -> None:
        """Grade what waits, and start a spare if there is none.

        If a spare is ready and nothing waits, the process that has graded is ended.
        """
        self._forget_running()
        self._begin_grading()
        if self._spare is None:
            self._start_spare()
        elif self.ready and self.running is None:
            self._end_used()

    def _handle_end_of_running(self, frame: Ended, hung: bool) -> None:
        """Judge the function during which the process ended, and go on.

        `hung` is whether it was ended by us, after a long silence. Raises BadDay or OSError where
        the day's own files cannot be read.
        """
        job = self._job
        if job.unanswered:
            work = self._work_of(job.stem)
            name = job.unanswered[0]
            results = _results_of_end(work, name, frame.code, hung)
            self._handle_result(StandbyResult(job.stem, name, results))
        # What the process would have said of the other functions, another one will say.
        self._finish_job()

    def _work_of(self, stem: str) -> ExerciseWork:
        """The exercise of this stem. Raises KeyError if the course does not have it."""
        for work in self.course.works:
            if work.stem == stem:
                return work
        raise KeyError(stem)

    def _handle_result(self, result: StandbyResult) -> None:
        """Note the verdict on a function that the running process has reached, and show it.

        A verdict on an older text is shown until there is one on the newest. One that only confirms
        another is shown if it differs. Raises KeyError for an unknown exercise, and BadDay or
        OSError where the day's own files cannot be read.
        """
        job = self._job
        if result.function in job.unanswered:
            job.unanswered.remove(result.function)
        work = self._work_of(result.stem)
        waiting = self.course.pending.get(result.stem, [])
        if job.is_outdated:
            if result.function in waiting:
                self._note_result(work, result)
                self._show("changed", work)
        elif job.confirms:
            if work.results.get(result.function) != result.results:
                self._note_result(work, result)
                self.course.write_progress()
                self._show("changed", work)
        else:
            self._take_verdict(work, result)

    def _handle_timelines(self, drawn: DrawnTimelines) -> None:
        """Note the timelines of a function's busiest call, and show them."""
        if self._job.confirms or self._job.is_outdated:
            return
        work = self._work_of(drawn.stem)
        work.timelines[drawn.function] = BusiestCalls(drawn.yours, drawn.theirs)
        self._show("changed", work)

    def _note_result(self, work: ExerciseWork, result: StandbyResult) -> None:
        """Note a verdict in its exercise, with the text that the running process was given."""
        work.note_verdict(
            result.function, result.results, self._job.text, result.printed, result.stopped
        )
        if result.breakpoint is not None:
            work.breakpoint = SkippedBreakpoint(result.function, result.breakpoint)

    def _take_verdict(self, work: ExerciseWork, result: StandbyResult) -> None:
        """Note the verdict on a function's newest text, and show it.

        With the last verdict on the file that the student waits for, the session moves on to the
        next exercise if this one is done, and writes the progress. Raises BadDay or OSError where
        the day's own files cannot be read.
        """
        # Take the function off the list, and note its results.
        was_done = work.state == "done"
        names = self.course.pending.get(work.stem, [])
        if result.function in names:
            names.remove(result.function)
        if not names:
            self.course.pending.pop(work.stem, None)
        self._note_result(work, result)
        if self._job.had_file_before:
            self._unconfirmed.setdefault(work.stem, []).append(result.function)
        is_done = work.state == "done"
        # The exercise before was finished just now, and this one turns out to be done as well.
        is_done_too = is_done and self.course.finished is not None and work is self.course.current
        if names or (work is not self._asked and not is_done_too):
            self._show("changed", work)
            return
        # All of the file that the student waits for is graded.
        self._asked = None
        following = self.course.work_after(work)
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

    The others are blocked by it. `code` is the exit code; `hung` that it was ended by us. Raises
    KeyError if the exercise has no function `name`.
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
