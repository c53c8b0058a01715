"""Runs several children at once on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gpudojo.classes.store import UnreadRecord
from gpudojo.classes.submission_run import GAP, SubmissionRun
from gpudojo.model.errors import BadClass, ForkServerFailed
from gpudojo.model.results import SubmissionStatus
from gpudojo.sandbox.fork_client import ChildExit, ChildPipes, ForkClient
from gpudojo.sandbox.layers import Layers
from gpudojo.sandbox.protocol import TOKEN, RunOptions
from gpudojo.sandbox.real_gpus import CUDA_DEVICE_BYTES, device_files, room_for
from gpudojo.submissions.entries import IgnoredPath

TICK: Final = 0.1
PAUSE: Final = (
    0.05  # seconds between two looks into pipes that have room for what is written meanwhile
)
AGAIN: Final = 0.001  # the same after a look that found much
CHUNK: Final = 1 << 20
ROOM: Final = 256 << 10  # bytes that a pipe is to hold: much more than a child writes in that time
MUCH: Final = ROOM // 4
DEATHS: Final = (
    5  # of the fork server in a row, after which something must be wrong with the machine
)


@dataclass(eq=False)
class GradingTask:
    """A submission to run; `done` is called with its record."""

    name: str
    run: SubmissionRun
    done: Callable[[UnreadRecord], None]
    began: float
    pipes: ChildPipes | None = None
    peak_bytes: int = 0
    device_bytes: int = 0
    cpu_seconds: float = 0.0


class Progress(Protocol):
    """Is told how grading goes: the terminal, or a test."""

    def begins(self, count: int, known: int, ignored: Sequence[IgnoredPath]) -> None: ...
    def prepares(self, what: str) -> None: ...
    def isolated(self, layers: dict[str, str]) -> None: ...
    def under_way(self, tasks: Sequence[GradingTask]) -> None: ...
    def graded(self, submission: str, status: SubmissionStatus, ran: bool) -> None: ...


class Runner(Protocol):
    """Runs tasks, on this machine or elsewhere, and calls each task's `done` once, in the thread that called `run`."""

    def start(self, options: RunOptions, progress: Progress) -> Layers:
        """Get ready. Returns the isolation, or nothing where it is known only after a submission has run."""
        ...

    def run(self, tasks: Iterator[GradingTask]) -> None:
        """Run all of them; the next one is taken only when there is room for it."""
        ...

    def close(self) -> None: ...


class Stops:
    """Finds out for how long this process was stopped (Ctrl-Z) or the whole machine stood still.

    Time in which it ran, or waited for a processor, is no such time: submissions can use up the processors.
    """

    def __init__(self) -> None:
        self._looked, self._threads = time.monotonic(), _scheduled()

    def length(self) -> float:
        """Seconds since the last call, to be called after each time this process has slept for TICK or less."""
        now = time.monotonic()
        if now - self._looked < TICK:
            return 0.0
        threads = _scheduled()
        own = sum(seconds - self._threads.get(name, 0.0) for name, seconds in threads.items())
        slept = 2 * TICK  # in this call's turn, and in turns that were too short to look
        stopped = now - self._looked - own - slept
        self._looked = now
        self._threads = threads
        return max(0.0, stopped)


def _scheduled() -> dict[str, float]:
    """By thread of this process, the seconds that it ran or waited for a processor."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/task"):
            with (
                contextlib.suppress(OSError, ValueError),
                open(f"/proc/self/task/{name}/schedstat", "rb") as file,
            ):
                found[name] = sum(map(int, file.read().split()[:2])) / 1e9
    return found or {"all": time.process_time()}


class ChildScheduler:
    """Runs tasks in children of one fork server, `jobs` at a time; `watch` is called with those under way.

    Where tasks arrive over time, None stands for none at the moment; `bell`, a socket, becomes readable when there is
    another one.
    """

    def __init__(
        self,
        client: ForkClient,
        jobs: int,
        watch: Callable[[list[GradingTask]], None] = lambda under_way: None,
        bell: socket.socket | None = None,
    ) -> None:
        self.client = client
        self.jobs = jobs
        self.watch = watch
        self.bell = bell
        self.under_way: dict[int, GradingTask] = {}
        self._waiting = selectors.DefaultSelector()
        self._roomy = selectors.DefaultSelector()  # pipes that need not be read at once
        self._pause = PAUSE
        self._looked = 0.0
        self._deaths = 0
        self._stops = Stops()

    def run(self, tasks: Iterator[GradingTask | None]) -> None:
        """Run tasks until none is left."""
        self._waiting.register(self.client, selectors.EVENT_READ)
        if self.bell is not None:
            self._waiting.register(self.bell, selectors.EVENT_READ, "bell")
        more = True
        last = 0.0
        self._stops = Stops()
        try:
            while more or self.under_way:
                while more and len(self.under_way) < self.jobs:
                    try:
                        task = next(tasks)
                    except StopIteration:
                        more = False
                        break
                    if task is None:
                        break
                    self._start(task)
                if not more and not self.under_way:
                    break
                self._step()
                now = time.monotonic()
                if now - last >= TICK:
                    last = now
                    self.watch(list(self.under_way.values()))
        finally:
            for task in self.under_way.values():
                if task.pipes is not None:
                    self.client.kill(task.pipes.number)
                    task.pipes.close()
            self._waiting.close()
            self._roomy.close()

    def _start(self, task: GradingTask) -> None:
        while True:
            try:
                pipes = self.client.spawn(task.run.job(secrets.token_bytes(TOKEN)))
                break
            except OSError:
                task.run.child_lost()
                self._renew()
        task.pipes = pipes
        self.under_way[pipes.number] = task
        for end, stream in ((pipes.evidence, "evidence"), (pipes.output, "output")):
            # A child writes some sixty times: to wake up for each of these would cost the grader more than to read it.
            which = self._roomy if _enlarged(end) else self._waiting
            which.register(end, selectors.EVENT_READ, (task, pipes, stream))

    def _step(self) -> None:
        """Read what has arrived, and only then end those whose time is over."""
        ready = self._waiting.select(self._pause)
        self._notice_stop()
        for key, _ in ready:
            if key.data is None:
                events = self.client.events()
                if events is None:
                    self._renew()
                    return
                for event in events:
                    if isinstance(event, ChildExit):
                        self._exited(event)
                    elif event.number in self.under_way:
                        self.under_way[event.number].run.waited(event.seconds)
            elif self.bell is not None and key.fileobj is self.bell:
                self.bell.recv(CHUNK)
            else:
                self._read_ready(key)
        now = time.monotonic()
        if now - self._looked < self._pause:
            return
        found = [self._read_ready(key) for key, _ in self._roomy.select(0)]
        self._looked, self._pause = now, AGAIN if max(found, default=0) >= MUCH else PAUSE
        for task in self.under_way.values():
            if task.pipes is not None and not task.run.killed_by_us and task.run.overdue(now):
                task.run.killed_by_us = True
                self.client.kill(task.pipes.number)

    def _notice_stop(self) -> None:
        """Put off what children have to end by, if this process was stopped."""
        stopped = self._stops.length()
        if stopped >= GAP:
            for task in self.under_way.values():
                task.run.postpone(stopped)

    def _read_ready(self, key: selectors.SelectorKey) -> int:
        task, pipes, stream = key.data
        return (
            self._read(task, stream, key.fd) if task.pipes is pipes else 0
        )  # it may have ended since

    def _read(self, task: GradingTask, stream: str, end: int) -> int:
        """Read what there is; returns how many bytes."""
        try:
            data = os.read(end, CHUNK)
        except BlockingIOError:
            return 0
        self._notice_stop()  # which may have been since the last look, as while another submission was judged
        if not data:
            self._unregister(end)
        elif stream == "output":
            task.run.add_output(data)
            if (
                len(data) == ROOM
            ):  # it was full: so much output is read in larger pieces, and the child waits less
                _enlarged(end, CHUNK)
        elif not task.run.receive(data) and task.pipes is not None:
            self.client.kill(task.pipes.number)
        return len(data)

    def _unregister(self, end: int) -> None:
        for selector in (self._waiting, self._roomy):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(end)

    def _exited(self, exit_: ChildExit) -> None:
        task = self.under_way.get(exit_.number)
        if task is None:
            return
        assert task.pipes is not None
        self._deaths = 0
        for end, stream in ((task.pipes.evidence, "evidence"), (task.pipes.output, "output")):
            if end in self._waiting.get_map() or end in self._roomy.get_map():
                while self._read(task, stream, end):
                    pass
        del self.under_way[exit_.number]
        self._forget(task)
        task.peak_bytes = max(task.peak_bytes, exit_.peak_bytes)
        task.device_bytes = max(task.device_bytes, exit_.device_bytes)
        task.cpu_seconds += exit_.cpu_seconds
        if task.run.child_exited(exit_.code, exit_.over_memory, exit_.on_gpu):
            self._start(task)
        else:
            task.done(task.run.finish(task.peak_bytes, task.cpu_seconds, task.device_bytes))

    def _forget(self, task: GradingTask) -> None:
        assert task.pipes is not None
        for end in (task.pipes.evidence, task.pipes.output):
            self._unregister(end)
        task.pipes.close()
        task.pipes = None

    def _renew(self) -> None:
        """The fork server is gone with all its children: start another one, and the same tasks again."""
        self._deaths += 1
        if self._deaths > DEATHS:
            raise ForkServerFailed(f"it died {self._deaths} times in a row")
        lost = list(self.under_way.values())
        self.under_way.clear()
        for task in lost:
            self._forget(task)
        with contextlib.suppress(KeyError, ValueError):
            self._waiting.unregister(self.client)
        self.client.restart()
        self._waiting.register(self.client, selectors.EVENT_READ)
        for task in lost:
            task.run.child_lost()
            self._start(task)


def _enlarged(end: int, size: int = ROOM) -> bool:
    """Let a pipe hold more; False where it cannot."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            return fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, size) >= size
    return False


class LocalRunner:
    """Runs tasks on this machine: one fork server, and up to `jobs` children at once; `client` may have started it."""

    def __init__(self, jobs: int, client: ForkClient | None = None) -> None:
        self.jobs = jobs
        self._client = client
        self._watch: Callable[[list[GradingTask]], None] = lambda under_way: None

    def start(self, options: RunOptions, progress: Progress) -> Layers:
        progress.prepares("starting the process that runs submissions")
        self._watch = progress.under_way
        self.jobs = at_once(options, self.jobs)
        self._client = self._client or fork_client_for(options.bench)
        self._client.start_and_wait()
        return {}

    def run(self, tasks: Iterator[GradingTask]) -> None:
        assert self._client is not None
        ChildScheduler(self._client, self.jobs, self._watch).run(tasks)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def at_once(options: RunOptions, jobs: int) -> int:
    """How many submissions may run at once: `jobs`, and with a real GPU no more than its memory has room for."""
    room = room_for(options.gpu_memory + CUDA_DEVICE_BYTES) if options.bench == "cuda" else None
    return jobs if room is None else min(jobs, max(1, room))


def fork_client_for(bench: str) -> ForkClient:
    """The client for a device, not started yet; raises BadClass where this machine does not have that device."""
    if bench == "cuda" and not device_files():
        raise BadClass(
            "--bench cuda needs an NVIDIA GPU, and this machine has none; --bench virtual needs none"
        )
    if bench == "mps" and sys.platform != "darwin":
        raise BadClass("--bench mps needs a Mac; --bench virtual is a CUDA device on any machine")
    return ForkClient(gpu=bench == "cuda")
