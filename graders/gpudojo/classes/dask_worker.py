"""Runs submissions on one Dask worker."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

from gpudojo.classes.attempt import Attempt, Terms
from gpudojo.classes.dask_messages import HASH, Introduction, Order, Reply, pack, unpack_order, versions
from gpudojo.classes.scheduler import Scheduler, Work, at_once, keeper_for
from gpudojo.classes.store import Record, encode
from gpudojo.model.errors import BadParcel, DojoError
from gpudojo.sandbox.isolation import Layers, examine

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


_workshops: Final[dict[str, Workshop]] = {}
_opening: Final = threading.Lock()
_stopped: Final[set[str]] = set()  # runs that nobody waits for
STOPPED: Final = "nobody waits for it any more"


async def introduced(day: str) -> bytes:
    """Dask calls this in the loop that also keeps the worker alive: nothing here may take long in it."""
    layers = await asyncio.to_thread(_layers)
    return pack(Introduction(versions(day), layers))


@functools.cache
def _layers() -> Layers:
    return examine()


def stopped(run: str) -> None:
    """The grader has stopped: what is under way for that run is ended, and what comes late is not begun."""
    _stopped.add(run)


class Ordered(Attempt):
    """An attempt that ends early where its run has stopped."""

    def __init__(self, order: Order) -> None:
        super().__init__(order.digest, order.files, order.terms)
        self.run = order.run

    def overdue(self, now: float) -> bool:
        return self.run in _stopped or super().overdue(now)

    def exited(self, status: int | None, too_heavy: bool = False, there: bool = False) -> bool:
        return super().exited(status, too_heavy, there) and self.run not in _stopped


def attempted(parcel: bytes) -> bytes:
    """The reply to an order."""
    try:
        number, order = unpack_order(parcel)
    except BadParcel as error:
        return pack(Reply(parcel[:HASH], refused=f"what the worker got is damaged: {error}"))
    differing = order.versions.difference(versions(order.terms.day))
    if differing is not None:
        return pack(Reply(number, refused=differing))
    if order.run in _stopped:
        return pack(Reply(number, refused=STOPPED))
    try:
        record = _workshop(order.terms).record(lambda: Ordered(order))
    except DojoError as error:
        return pack(Reply(number, refused=str(error)))
    except Exception as error:
        return pack(Reply(number, refused=f"{type(error).__name__}: {error}"))
    if order.run in _stopped:  # ended early, it would look like a submission that took too long
        return pack(Reply(number, refused=STOPPED))
    return pack(Reply(number, record=encode(record)))


def _workshop(terms: Terms) -> Workshop:
    """One for each bench, since what its children may use is settled when a nursery begins."""
    with _opening:
        if terms.bench not in _workshops:
            _workshops[terms.bench] = Workshop(terms)
        return _workshops[terms.bench]
