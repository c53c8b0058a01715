"""Who owns a worker's nursery? One thread, to which the threads of Dask bring their orders, and wait.

A nursery speaks over one socket, and a scheduler listens to it: neither is for several threads at once. The nursery
ends with the worker, however that ends, and every submission's process with the nursery.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

from graders.batch.attempt import Attempt, Terms
from graders.batch.records import Record
from graders.batch.running import at_once, keeper_for
from graders.batch.scheduler import Scheduler, Work

AT_ONCE: Final = sys.maxsize  # as many as orders come: Dask gives a worker no more of them than it has threads

Waiting = tuple[Callable[[], Attempt], "Future[Record]"]


class Workshop:
    """Turns attempts into records, for any thread that asks."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms  # those of its first order
        self._orders: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._open: set[Future[Record]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)

    def record(self, begin: Callable[[], Attempt]) -> Record:
        """What becomes of an attempt, which begins when there is a nursery to run it; raises where there is none."""
        waiting: Future[Record] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dojo workshop", daemon=True)
                self._thread.start()
            self._open.add(waiting)
            self._orders.put((begin, waiting))
        with contextlib.suppress(BlockingIOError):  # it is ringing already
            self._rope.send(b"!")
        return waiting.result()

    def close(self) -> None:
        """End the nursery, when nothing is under way; a worker that ends does not have to be told to."""
        thread = self._thread
        if thread is not None:
            self._orders.put(None)
            self._rope.send(b"!")
            thread.join()
        self._bell.close()
        self._rope.close()

    def _work(self) -> None:
        try:
            with contextlib.closing(keeper_for(self.terms.bench)) as keeper:
                keeper.started()
                Scheduler(keeper, at_once(self.terms, AT_ONCE), bell=self._bell).run(self._works())
        except BaseException as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Whoever waits is told why; the next order gets a new thread and a new nursery."""
        with self._lock:
            self._thread = None
            self._orders = queue.SimpleQueue()
            left, self._open = self._open, set()
        for waiting in left:
            waiting.set_exception(error)

    def _works(self) -> Iterator[Work | None]:
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                yield None
                continue
            if order is None:
                return
            begin, waiting = order

            def done(record: Record, waiting: Future[Record] = waiting) -> None:
                with self._lock:
                    self._open.discard(waiting)
                waiting.set_result(record)

            yield Work("an order", begin(), done, time.monotonic())
