"""Who judges when there is much to judge? Several processes, each with a share; no student code has run in any."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graders.batch.store import Store
from graders.batch.verdicts import Verdicts, record_of
from graders.curriculum import day as exercises_of
from graders.errors import BadClass

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


class _Judge:
    """This process, where it is one of the panel."""

    verdicts: Verdicts


def judged(measure: Measure, keys: Sequence[str], jobs: int) -> Iterator[str]:
    """Every key, in order, once the verdict on its record has been made anew and is on disk."""
    jobs = min(jobs, len(keys) // SHARE)
    if len(keys) < WORTHWHILE or jobs < 2:
        verdicts = measure.verdicts()
        for key in keys:
            verdicts.of(key, anew=True)
            yield key
        return
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=fresh, initializer=_sit, initargs=(measure,))
    try:
        yield from pool.map(_judge, keys, chunksize=SHARE)
    except BrokenProcessPool:
        raise BadClass("a process that judges was ended from outside; the same command begins anew") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _sit(measure: Measure) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader hears it, and ends the panel
    _Judge.verdicts = measure.verdicts()


def _judge(key: str) -> str:
    _Judge.verdicts.of(key, anew=True)
    return key
