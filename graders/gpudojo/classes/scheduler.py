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

from gpudojo.classes.attempt import Attempt, Terms
from gpudojo.classes.store import Record
from gpudojo.model.errors import BadClass, NoNursery
from gpudojo.model.results import SubmissionRow
from gpudojo.sandbox.fork_client import Exit, Keeper, Running
from gpudojo.sandbox.gpus import DEVICE_AROUND, devices, room_for
from gpudojo.sandbox.isolation import Layers
from gpudojo.sandbox.protocol import TOKEN
from gpudojo.submissions.entries import LeftOut

TICK: Final = 0.1
CHUNK: Final = 1 << 20
DEATHS: Final = 5  # of the nursery, one right after another, before something must be wrong with the machine


@dataclass
class Work:
    """A submission under way, and what is told when it is done."""

    name: str
    attempt: Attempt
    done: Callable[[Record], None]
    began: float
    running: Running | None = None
    peak_bytes: int = 0
    device_bytes: int = 0
    cpu_seconds: float = 0.0


class Scheduler:
    """Runs works, `jobs` at a time; `watch` is called with those under way, a few times a second.

    Where works come as they please, None stands for none just now; whoever has another one rings the bell, which is a
    socket that becomes readable.
    """

    def __init__(
        self,
        keeper: Keeper,
        jobs: int,
        watch: Callable[[list[Work]], None] = lambda under_way: None,
        bell: socket.socket | None = None,
    ) -> None:
        self.keeper, self.jobs, self.watch, self.bell = keeper, jobs, watch, bell
        self.under_way: dict[int, Work] = {}
        self._waiting = selectors.DefaultSelector()
        self._deaths = 0

    def run(self, works: Iterator[Work | None]) -> None:
        """Until none is left."""
        self._waiting.register(self.keeper, selectors.EVENT_READ)
        if self.bell is not None:
            self._waiting.register(self.bell, selectors.EVENT_READ, "bell")
        more = True
        last = 0.0
        try:
            while more or self.under_way:
                while more and len(self.under_way) < self.jobs:
                    try:
                        work = next(works)
                    except StopIteration:
                        more = False
                        break
                    if work is None:
                        break
                    self._start(work)
                self._step()
                now = time.monotonic()
                if now - last >= TICK:
                    last = now
                    self.watch(list(self.under_way.values()))
        finally:
            for work in self.under_way.values():
                if work.running is not None:
                    self.keeper.kill(work.running.number)
                    work.running.close()
            self._waiting.close()

    def _start(self, work: Work) -> None:
        while True:
            try:
                running = self.keeper.spawn(work.attempt.job(secrets.token_bytes(TOKEN)))
                break
            except OSError:
                work.attempt.lost()
                self._renew()
        work.running = running
        self.under_way[running.number] = work
        self._waiting.register(running.evidence, selectors.EVENT_READ, (work, running, "evidence"))
        self._waiting.register(running.output, selectors.EVENT_READ, (work, running, "output"))

    def _step(self) -> None:
        for key, _ in self._waiting.select(TICK):
            if key.data is None:
                exits = self.keeper.heard()
                if exits is None:
                    self._renew()
                    return
                for exit_ in exits:
                    self._exited(exit_)
            elif self.bell is not None and key.fileobj is self.bell:
                self.bell.recv(CHUNK)
            else:
                work, running, stream = key.data
                if work.running is running:  # it may have ended since this was found to be readable
                    self._read(work, stream, key.fd)
        now = time.monotonic()
        for work in self.under_way.values():
            if work.running is not None and not work.attempt.ended_by_us and work.attempt.overdue(now):
                work.attempt.ended_by_us = True
                self.keeper.kill(work.running.number)

    def _read(self, work: Work, stream: str, end: int) -> bool:
        """Read what is there; False at the end of the stream."""
        try:
            data = os.read(end, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._waiting.unregister(end)
            return False
        if stream == "output":
            work.attempt.printed(data)
        elif not work.attempt.heard(data) and work.running is not None:
            self.keeper.kill(work.running.number)
        return True

    def _exited(self, exit_: Exit) -> None:
        work = self.under_way.pop(exit_.number, None)
        if work is None:
            return
        assert work.running is not None
        self._deaths = 0
        for end, stream in ((work.running.evidence, "evidence"), (work.running.output, "output")):
            with contextlib.suppress(KeyError):
                self._waiting.get_key(end)
                while self._read(work, stream, end):
                    pass
        self._forget(work)
        work.peak_bytes = max(work.peak_bytes, exit_.peak_bytes)
        work.device_bytes = max(work.device_bytes, exit_.device_bytes)
        work.cpu_seconds += exit_.cpu_seconds
        if work.attempt.exited(exit_.status, exit_.too_heavy, exit_.there):
            self._start(work)
        else:
            work.done(work.attempt.done(work.peak_bytes, work.cpu_seconds, work.device_bytes))

    def _forget(self, work: Work) -> None:
        assert work.running is not None
        for end in (work.running.evidence, work.running.output):
            with contextlib.suppress(KeyError, ValueError):
                self._waiting.unregister(end)
        work.running.close()
        work.running = None

    def _renew(self) -> None:
        """The nursery is gone, and all its children with it: a new one, and the same works again."""
        self._deaths += 1
        if self._deaths > DEATHS:
            raise NoNursery(f"it died {self._deaths} times in a row")
        lost = list(self.under_way.values())
        self.under_way.clear()
        for work in lost:
            self._forget(work)
        with contextlib.suppress(KeyError, ValueError):
            self._waiting.unregister(self.keeper)
        self.keeper.restart()
        self._waiting.register(self.keeper, selectors.EVENT_READ)
        for work in lost:
            work.attempt.lost()
            self._start(work)


class Watcher(Protocol):
    """Who is told how it goes; the terminal, or a test."""

    def begins(self, count: int, known: int, left_out: Sequence[LeftOut]) -> None: ...
    def prepares(self, what: str) -> None: ...
    def fenced(self, layers: dict[str, str]) -> None: ...
    def under_way(self, works: Sequence[Work]) -> None: ...
    def graded(self, row: SubmissionRow, ran: bool) -> None: ...


class Runner(Protocol):
    """Whoever runs works. Each is told when it is done, once, in the thread that called `run`."""

    def start(self, terms: Terms, watcher: Watcher) -> Layers:
        """Get ready; what isolation there is, or nothing where only a submission that has run can tell."""
        ...

    def run(self, works: Iterator[Work]) -> None:
        """All of them, asking for the next one only when there is room for it."""
        ...

    def close(self) -> None: ...


class Here:
    """This machine: one nursery, and so many children at once."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._keeper: Keeper | None = None
        self._watch: Callable[[list[Work]], None] = lambda under_way: None

    def start(self, terms: Terms, watcher: Watcher) -> Layers:
        watcher.prepares("starting the process that runs submissions")
        self._watch = watcher.under_way
        self.jobs = at_once(terms, self.jobs)
        self._keeper = keeper_for(terms.bench)
        self._keeper.started()
        return {}

    def run(self, works: Iterator[Work]) -> None:
        assert self._keeper is not None
        Scheduler(self._keeper, self.jobs, self._watch).run(works)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


def at_once(terms: Terms, jobs: int) -> int:
    """As many as are wanted; on a GPU no more than it has room for, since they would take memory from each other."""
    room = room_for(terms.gpu_memory + DEVICE_AROUND) if terms.bench == "cuda" else None
    return jobs if room is None else min(jobs, max(1, room))


def keeper_for(bench: str) -> Keeper:
    """The nursery that a bench needs, not yet started; raises where this machine cannot have one."""
    if bench == "cuda" and not devices():
        raise BadClass("--bench cuda needs an NVIDIA GPU, and this machine has none; --bench virtual needs none")
    if bench == "mps" and sys.platform != "darwin":
        raise BadClass("--bench mps needs a Mac; --bench virtual is a CUDA device on any machine")
    return Keeper(gpu=bench == "cuda")
