"""Who runs the works of a class? This machine, with its own nursery; or whoever else keeps the same few promises."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from graders.batch.attempt import Terms
from graders.batch.scheduler import Scheduler, Work
from graders.errors import BadClass
from graders.intake import LeftOut
from graders.results import SubmissionRow
from graders.sandbox.devices import room_for
from graders.sandbox.gpu import DEVICE_AROUND, devices
from graders.sandbox.keeper import Keeper
from graders.sandbox.layers import Layers


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
