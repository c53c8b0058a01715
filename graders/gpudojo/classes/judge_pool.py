"""Judges records in other processes, where there are many of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from gpudojo.classes import judging
from gpudojo.classes.verdict_store import VerdictStore, VerdictSummary
from gpudojo.model.catalogue import exercises_of

# A process takes as long to start as it takes to judge some thirty records.
RECORDS_PER_PROCESS: Final = 50
# Stores whose references a process keeps in memory. Those with equal seeds come one after another.
OPENED_STORES: Final = 2
# What starting a process or sending to it raises after one was killed.
POOL_ERRORS: Final = (BrokenProcessPool, OSError, ValueError)


def count_of_processes(records: int, most: int) -> int:
    """How many processes, of at most so many, are worth their start for so many records."""
    return min(most, records // RECORDS_PER_PROCESS)


class JudgePool:
    """Processes that judge records; none where there are few records."""

    def __init__(self, verdicts: VerdictStore, records: int, most: int) -> None:
        """Start up to `most` processes for so many records; none for a few.

        They begin by judging the reference of `verdicts`. Raises OSError where processes cannot be
        started.
        """
        self._children_before = {process.pid for process in multiprocessing.active_children()}
        self._pool: ProcessPoolExecutor | None = None
        count = count_of_processes(records, most)
        if count == 0:
            return
        self._pool = ProcessPoolExecutor(count, _start_method(), _begin_judging)
        with contextlib.suppress(*POOL_ERRORS):
            for _ in range(count):
                self._pool.submit(_judge_reference, _unopened_copy(verdicts))

    def submit(self, verdicts: VerdictStore, key: str) -> Future[VerdictSummary] | None:
        """Have a record judged again, and the verdict kept; None where no process can do it.

        The future raises one of POOL_ERRORS if its process is killed, and BadClass where the
        record of the reference cannot be read.
        """
        if self._pool is None:
            return None
        with contextlib.suppress(*POOL_ERRORS):
            return self._pool.submit(_judge_record, _unopened_copy(verdicts), key)
        return None

    def close(self) -> None:
        """End the processes. What they have not begun is not judged."""
        if self._pool is None:
            return
        if _is_broken(self._pool):
            # One that started while another was killed is not ended by the pool, which would wait
            # for it for ever.
            for process in multiprocessing.active_children():
                if process.pid not in self._children_before:
                    process.kill()
        self._pool.shutdown(cancel_futures=True)


def _unopened_copy(verdicts: VerdictStore) -> VerdictStore:
    """A copy that has not read its reference: each process does that for itself."""
    return dataclasses.replace(verdicts)


def _start_method() -> multiprocessing.context.BaseContext:
    """How processes start: by a fork, which has imported everything, if this one has no threads.

    Otherwise each starts anew.
    """
    method = "spawn"
    if sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1:
        method = "fork"
    return multiprocessing.get_context(method)


def _is_broken(pool: ProcessPoolExecutor) -> bool:
    """True if a process of the pool was killed. Finds out by giving the pool a little work."""
    try:
        pool.submit(int)
    except POOL_ERRORS:
        return True
    return False


# In a process of the pool


@functools.lru_cache(OPENED_STORES)
def _store_of_this_process(verdicts: VerdictStore) -> VerdictStore:
    """The store that came first of those equal to this one: it may have read its reference."""
    return verdicts


def _begin_judging() -> None:
    """Prepare a new process of the pool: it ignores Ctrl-C, and ends with the grader."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader handles Ctrl-C and ends the pool
    threading.Thread(target=_end_with_grader, daemon=True).start()


def _end_with_grader() -> None:
    """End this process with the grader: it would outlive one that was killed.

    It holds both ends of its queue, and so never sees the end of it.
    """
    grader = multiprocessing.parent_process()
    assert grader is not None
    grader.join()
    os._exit(1)


def _judge_reference(verdicts: VerdictStore) -> None:
    """Judge the reference itself, which imports what is needed before there is work.

    The verdict is dropped. What this process has read of the reference is kept for its work.
    Nothing happens where the reference cannot be read. Raises BadDay or BadEvidence, which only the
    future tells.
    """
    verdicts = _store_of_this_process(verdicts)
    if verdicts.has_reference:
        reference = verdicts.reference
        exercises = exercises_of(verdicts.day)
        judging.judge_record(reference, reference.functions, exercises, verdicts.only)


def _judge_record(verdicts: VerdictStore, key: str) -> VerdictSummary:
    """Judge a record, keep the verdict, and return its summary.

    A record that is damaged, or that our own code cannot judge, gets the verdict "unreadable",
    which is not kept; in the latter case an older verdict is deleted.
    Raises BadClass where the record of the reference cannot be read, and OSError where the verdict
    cannot be written. Raises BadDay where the day cannot be imported.
    """
    return VerdictSummary.of_row(_store_of_this_process(verdicts).judge_and_keep(key))
