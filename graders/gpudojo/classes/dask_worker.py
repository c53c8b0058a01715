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
from typing import Any, Final, NamedTuple

from distributed import WorkerPlugin

from gpudojo.classes import submission_run
from gpudojo.classes.child_scheduler import ChildScheduler
from gpudojo.classes.dask_messages import (
    HASH,
    Introduction,
    Order,
    Reply,
    pack_message,
    unpack_message,
    versions_here,
)
from gpudojo.classes.local_runner import fork_client_for, jobs_that_fit
from gpudojo.classes.records import Record, encode_record
from gpudojo.classes.runners import GradingTask
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.model.errors import BadMessage, DojoError
from gpudojo.sandbox import fork_client
from gpudojo.sandbox.layers import examine_layers
from gpudojo.sandbox.protocol import WHOLE, RunOptions

UNLIMITED: Final = sys.maxsize  # Dask sends a worker no more orders than it has threads
NOT_WANTED: Final = "the grader no longer waits for it"


class _QueuedRun(NamedTuple):
    """A run to begin when there is a fork server, and where its record is awaited."""

    begin: Callable[[], SubmissionRun]
    record: Future[Record]


class ForkServerThread:
    """A thread with a fork server that runs submissions for any other thread."""

    def __init__(self, options: RunOptions) -> None:
        """Start nothing yet."""
        self.options = options  # of the first order
        self._queue: queue.SimpleQueue[_QueuedRun | None] = queue.SimpleQueue()
        self._awaited: set[Future[Record]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # What is written to the second wakes up the scheduler, which waits for the first.
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)

    def run_and_wait(self, begin: Callable[[], SubmissionRun]) -> Record:
        """Have a submission run by the fork server, and wait for its record.

        `begin` makes the run when there is a fork server. Starts the thread if none runs. Raises
        what ended the fork server, and TimeoutError where nothing came of it.
        """
        record: Future[Record] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_queue, name="dojo fork server", daemon=True
                )
                self._thread.start()
            self._awaited.add(record)
            self._put_and_ring(_QueuedRun(begin, record))
            # On a GPU they may have to take turns.
            seconds = len(self._awaited) * longest_wait(self.options)
        return record.result(seconds)

    def close(self, wait: bool = True) -> None:
        """End the fork server when nothing is under way; `wait` until then."""
        thread = self._thread
        if thread is not None:
            self._put_and_ring(None)
        if wait:
            if thread is not None:
                thread.join()
            self._bell.close()
            self._rope.close()

    def _put_and_ring(self, run: _QueuedRun | None) -> None:
        """Queue a run, or None for the end, and wake up the scheduler."""
        self._queue.put(run)
        with contextlib.suppress(BlockingIOError):  # it is ringing already
            self._rope.send(b"!")

    def _run_queue(self) -> None:
        """Run what is queued until the end: the body of the thread.

        After any error, whoever waits gets it, and the next run a new thread and fork server. No
        error comes out of here.
        """
        error: BaseException = RuntimeError("the worker is closing")
        try:
            with contextlib.closing(fork_client_for(self.options.bench)) as client:
                client.start_and_wait()
                jobs = jobs_that_fit(self.options, UNLIMITED)
                ChildScheduler(client, jobs, bell=self._bell).run(self._queued_tasks())
        except BaseException as raised:  # also SystemExit: somebody waits for the record
            error = raised
        with self._lock:
            self._thread = None
            self._queue = queue.SimpleQueue()
            awaited = self._awaited
            self._awaited = set()
        for record in awaited:
            record.set_exception(error)

    def _queued_tasks(self) -> Iterator[GradingTask | None]:
        """Yield what is queued, as tasks, and None where there is nothing at the moment.

        Ends at the None that `close` has queued.
        """
        while True:
            try:
                queued = self._queue.get_nowait()
            except queue.Empty:
                yield None
                continue
            if queued is None:
                return
            done = functools.partial(self._hand_over, queued.record)
            yield GradingTask("an order", queued.begin(), done, time.monotonic())

    def _hand_over(self, awaited: Future[Record], record: Record) -> None:
        """Give the record to the thread that waits for it."""
        with self._lock:
            self._awaited.discard(awaited)
        awaited.set_result(record)


def longest_wait(options: RunOptions) -> float:
    """Seconds after which a submission must be back.

    They are twice all it may take, and the start of a fork server.
    """
    run = WHOLE * options.seconds + submission_run.GRACE_SECONDS + submission_run.START_SECONDS
    return 2 * run + fork_client.STARTS * fork_client.STARTING


class ForkServers(WorkerPlugin):
    """A Dask plugin that owns the fork servers of a worker: one for each kind of device."""

    def __init__(self) -> None:
        self.threads: dict[str, ForkServerThread] = {}
        self._lock = threading.Lock()

    def thread_for(self, options: RunOptions) -> ForkServerThread:
        """The object that owns thread and fork server for a device; made when first asked for.

        Both start with its first run. Of `options` only the device counts.
        """
        with self._lock:
            if options.bench not in self.threads:
                self.threads[options.bench] = ForkServerThread(options)
            return self.threads[options.bench]

    def teardown(self, worker: Any) -> None:
        """End the fork servers, since the worker is closing.

        Submissions that are under way end with its process.
        """
        for thread in self.threads.values():
            thread.close(wait=False)


PLUGIN: Final = "gpudojo"
fork_servers: Final = ForkServers()
_examine_once = functools.cache(examine_layers)


async def introduce_worker(worker: Any, day: str) -> bytes:
    """The introduction of this worker, packed; adds our plugin to the worker.

    It is called in the loop that keeps the worker alive, where nothing may block. Raises OSError if
    sources of ours cannot be read.
    """
    if PLUGIN not in worker.plugins:
        await worker.plugin_add(plugin=fork_servers, name=PLUGIN)
    layers = await asyncio.to_thread(_examine_once)
    return pack_message(Introduction(versions_here(day), layers))


class StoppableRun(SubmissionRun):
    """A run that ends early where nobody waits for it any longer."""

    def __init__(self, order: Order, is_wanted: Callable[[], bool]) -> None:
        super().__init__(order.digest, order.files, order.options)
        self.is_wanted = is_wanted

    def is_overdue(self, now: float) -> bool:
        """True if the step is out of time, or nobody wants the result any more."""
        return not self.is_wanted() or super().is_overdue(now)

    def note_child_exit(
        self, code: int | None, over_memory: bool = False, on_gpu: bool = False
    ) -> bool:
        """Note how a child ended. Returns True if another one is to continue, and is wanted.

        `code` is None where it could not be forked; `over_memory` and `on_gpu` tell which memory it
        exceeded.
        """
        return super().note_child_exit(code, over_memory, on_gpu) and self.is_wanted()


class DaskTask:
    """The task of Dask that this thread of a worker computes."""

    def __init__(self, worker: Any) -> None:
        self._queued_tasks = worker.state.tasks
        self._key = worker.get_current_task()
        self._wanted = True

    def is_wanted(self) -> bool:
        """True until the grader has stopped; the first False is remembered, and stays."""
        task = self._queued_tasks.get(self._key)
        if task is None or task.state != "executing":
            self._wanted = False
        return self._wanted


def run_order(message: bytes, is_wanted: Callable[[], bool]) -> bytes:
    """Run an order, and return the packed reply.

    Errors are told in the reply, as Dask would pickle them; only an OSError for sources of ours
    that cannot be read comes out. `is_wanted` tells whether the grader still waits for it.
    """
    order_hash = message[:HASH]
    try:
        order = unpack_message(message, Order)
    except BadMessage as error:
        reason = f"the worker received a damaged message: {error}"
        return pack_message(Reply(order_hash, refused=reason))
    difference = order.versions.describe_difference(versions_here(order.options.day))
    if difference is not None:
        return pack_message(Reply(order_hash, refused=difference))
    if not is_wanted():
        return pack_message(Reply(order_hash, refused=NOT_WANTED))
    begin = functools.partial(StoppableRun, order, is_wanted)
    try:
        record = fork_servers.thread_for(order.options).run_and_wait(begin)
    except DojoError as error:
        return pack_message(Reply(order_hash, refused=str(error)))
    except Exception as error:  # whatever it is, the grader is told and tries another worker
        why = f"{type(error).__name__}: {error}"
        return pack_message(Reply(order_hash, refused=why))
    if not is_wanted():
        # Ended early, it would look like a submission that took too long.
        return pack_message(Reply(order_hash, refused=NOT_WANTED))
    return pack_message(Reply(order_hash, encode_record(record)))
