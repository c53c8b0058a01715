"""Who judges when there is much to judge? Several processes, each with a share; no student code has run in any."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from graders.batch.store import Store
from graders.batch.verdicts import Verdicts, record_of
from graders.curriculum import day as exercises_of
from graders.errors import BadClass, DojoError

SHARE: Final = 16  # records at a time
WORTHWHILE: Final = 100  # a process takes as long to start as it takes to judge some forty records


@dataclass(frozen=True)
class Measure:
    """What a judge must know to come to the verdict that any other would come to."""

    out: Path
    day: str
    only: frozenset[str]
    reference_key: str
    name: str

    def verdicts(self) -> Verdicts:
        store = Store(self.out)
        return Verdicts(store, exercises_of(self.day), self.only, record_of(store, self.reference_key), self.name)


def judged(measure: Measure, keys: Sequence[str], jobs: int) -> Iterator[str]:
    """Every key, in order, once the verdict on its record has been made anew and is on disk."""
    shares = [list(keys[first : first + SHARE]) for first in range(0, len(keys), SHARE)]
    jobs = min(jobs, len(shares))
    if len(keys) < WORTHWHILE or jobs < 2:
        verdicts = measure.verdicts()
        for key in keys:
            verdicts.of(key, anew=True)
            yield key
        return
    with contextlib.ExitStack() as room:
        judges = [_seated(measure, room) for _ in range(jobs)]
        done: set[int] = set()
        told = 0
        for number in _answered(judges, shares):
            done.add(number)
            while told in done:
                yield from shares[told]
                told += 1


def _seated(measure: Measure, room: contextlib.ExitStack) -> Connection:
    """One more judge, who leaves with the others. Not a pool of the library's: one of whose processes is killed may
    wait for itself for ever."""
    fresh = multiprocessing.get_context("spawn")
    here, there = fresh.Pipe()
    process = fresh.Process(target=_judge, args=(measure, there), daemon=True)
    process.start()
    there.close()
    room.callback(process.join)
    room.callback(process.kill)
    room.callback(here.close)
    return here


def _answered(judges: Sequence[Connection], shares: Sequence[list[str]]) -> Iterator[int]:
    """The number of each share, as soon as it has been judged."""
    left = iter(enumerate(shares))
    busy: dict[Connection, int] = {}

    def give(judge: Connection) -> None:
        share = next(left, None)
        if share is not None:
            busy[judge] = share[0]
            judge.send(share[1])

    try:
        for judge in judges:
            give(judge)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                problem = ready.recv()
                if problem is not None:
                    raise BadClass(problem)
                yield busy.pop(ready)
                give(ready)
    except (EOFError, OSError):
        raise BadClass("a process that judges was ended from outside; the same command begins anew") from None


def _judge(measure: Measure, there: Connection) -> None:
    """What one of them does: shares come, and for each a word goes back, None where all is well."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader hears it, and ends the panel
    with contextlib.suppress(EOFError):
        verdicts = measure.verdicts()
        while True:
            try:
                for key in there.recv():
                    verdicts.of(key, anew=True)
            except DojoError as error:
                there.send(str(error))
            else:
                there.send(None)
