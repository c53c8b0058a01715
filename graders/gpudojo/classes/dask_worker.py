"""Runs submissions on one Dask worker, and the messages between it and the grader."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import importlib.metadata
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec
from distributed import WorkerPlugin

from gpudojo import __version__
from gpudojo.classes import submission_run
from gpudojo.classes.child_scheduler import ChildScheduler
from gpudojo.classes.fingerprints import fingerprint_of_observing
from gpudojo.classes.local_runner import fork_client_for, jobs_that_fit
from gpudojo.classes.runners import GradingTask
from gpudojo.classes.store import Record, decode_whole, encode
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.model.errors import BadEvidence, BadMessage, DojoError
from gpudojo.model.evidence import decode_untrusted
from gpudojo.sandbox import fork_client
from gpudojo.sandbox.layers import DEVICE, examine_layers
from gpudojo.sandbox.protocol import WHOLE, RunOptions

HASH: Final = 32  # bytes of a SHA-256
T = TypeVar("T")


class Versions(msgspec.Struct, frozen=True):
    """What evidence depends on, and whether two machines understand each other."""

    gpudojo: str
    probes: str  # the fingerprint of their sources
    torch: str
    python: str
    distributed: str

    def difference(self, there: Versions) -> str | None:
        """The first difference in words, or None; it usually explains the others."""
        for name in ("python", "distributed", "torch", "gpudojo", "probes"):
            ours = getattr(self, name)
            theirs = getattr(there, name)
            if ours != theirs:
                called = {"python": "Python", "probes": "other probes:"}.get(name, name)
                return f"it has {called} {theirs}, and the grader {ours}"
        return None


class Order(msgspec.Struct, frozen=True):
    """One submission to run. It holds the seeds that were drawn from the secret, but not the secret."""

    versions: Versions
    digest: str
    files: dict[str, bytes]
    options: RunOptions


class Reply(msgspec.Struct, frozen=True):
    """An encoded record for the order with that hash, or the reason why there is none."""

    order: bytes
    record: bytes = b""
    refused: str = ""


class Introduction(msgspec.Struct, frozen=True):
    """A worker's versions, and its layers of isolation."""

    versions: Versions
    layers: dict[str, str]

    def on(self, bench: str) -> Introduction:
        """The same without the layer that only a real GPU needs, unless grading uses one."""
        layers = {
            name: why for name, why in self.layers.items() if bench == "cuda" or name != DEVICE
        }
        return Introduction(self.versions, layers)


@functools.cache
def versions(day: str) -> Versions:
    """The versions of this process."""
    # A build for another processor or GPU has the same release and another name: 2.13.0+cpu, 2.13.0+cu130.
    torch = importlib.metadata.version("torch").partition("+")[0]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    probes = fingerprint_of_observing(day)
    return Versions(__version__, probes, torch, python, importlib.metadata.version("distributed"))


def pack(content: Order | Reply | Introduction) -> bytes:
    """The content as bytes, with their hash in front."""
    body = msgspec.msgpack.encode(content)
    return hashlib.sha256(body).digest() + body


def unpack(message: object, kind: type[T]) -> T:
    """The content of a message; raises BadMessage where a byte has changed or it is of another kind."""
    if not isinstance(message, bytes) or len(message) < HASH:
        raise BadMessage("it is not a message of gpudojo")
    if not hmac.compare_digest(message[:HASH], hashlib.sha256(message[HASH:]).digest()):
        raise BadMessage("its hash does not match")
    try:
        return decode_untrusted(msgspec.msgpack.Decoder(kind).decode, message[HASH:])
    except BadEvidence as error:
        raise BadMessage(error.reason) from None


def unpack_reply(message: object, order: bytes, digest: str) -> Record | str:
    """The record for an order, or the reason why there is none; raises BadMessage where it answers another order."""
    reply = unpack(message, Reply)
    if reply.refused:
        return reply.refused
    if not hmac.compare_digest(reply.order, order):
        raise BadMessage("it answers another order")
    try:
        record = decode_whole(reply.record)
    except BadEvidence as error:
        raise BadMessage(str(error)) from None
    if record.digest != digest:
        raise BadMessage("it is about another submission")
    return record


UNLIMITED: Final = sys.maxsize  # Dask sends a worker no more orders than it has threads
STOPPED: Final = "the grader no longer waits for it"


class ForkServerThread:
    """A thread with a fork server that runs submissions for any other thread."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options  # of the first order
        self._orders: queue.SimpleQueue[
            tuple[Callable[[], SubmissionRun], Future[Record]] | None
        ] = queue.SimpleQueue()
        self._open: set[Future[Record]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)

    def record(self, begin: Callable[[], SubmissionRun]) -> Record:
        """The record of a run, which begins when there is a fork server; raises where there can be none."""
        waiting: Future[Record] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="dojo fork server", daemon=True
                )
                self._thread.start()
            self._open.add(waiting)
            self._put((begin, waiting))
            most = len(self._open) * patience(self.options)  # on a GPU they may have to take turns
        return waiting.result(most)

    def close(self, wait: bool = True) -> None:
        """End the fork server when nothing is under way."""
        thread = self._thread
        if thread is not None:
            self._put(None)
        if wait:
            if thread is not None:
                thread.join()
            self._bell.close()
            self._rope.close()

    def _put(self, order: tuple[Callable[[], SubmissionRun], Future[Record]] | None) -> None:
        self._orders.put(order)
        with contextlib.suppress(BlockingIOError):  # it is ringing already
            self._rope.send(b"!")

    def _work(self) -> None:
        error: BaseException = RuntimeError("the worker is closing")
        try:
            with contextlib.closing(fork_client_for(self.options.bench)) as client:
                client.start_and_wait()
                ChildScheduler(client, jobs_that_fit(self.options, UNLIMITED), bell=self._bell).run(
                    self._tasks()
                )
        except BaseException as raised:
            error = raised
        with (
            self._lock
        ):  # whoever waits gets the error; the next order gets a new thread and a new fork server
            self._thread = None
            self._orders = queue.SimpleQueue()
            left = self._open
            self._open = set()
        for waiting in left:
            waiting.set_exception(error)

    def _tasks(self) -> Iterator[GradingTask | None]:
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

            yield GradingTask("an order", begin(), done, time.monotonic())


def patience(options: RunOptions) -> float:
    """Seconds after which a submission must be back: twice all it may take and the start of a fork server."""
    whole = WHOLE * options.seconds + submission_run.GRACE + submission_run.STARTING
    return 2 * whole + fork_client.STARTS * fork_client.STARTING


class ForkServers(WorkerPlugin):
    """A Dask plugin that owns the fork servers of a worker: one for each kind of device."""

    def __init__(self) -> None:
        self.threads: dict[str, ForkServerThread] = {}
        self._lock = threading.Lock()

    def thread_for(self, options: RunOptions) -> ForkServerThread:
        with self._lock:
            if options.bench not in self.threads:
                self.threads[options.bench] = ForkServerThread(options)
            return self.threads[options.bench]

    def teardown(self, worker: Any) -> None:
        """The worker is closing; submissions that are under way end with its process."""
        for thread in self.threads.values():
            thread.close(wait=False)


PLUGIN: Final = "gpudojo"
fork_servers: Final = ForkServers()
_layers = functools.cache(examine_layers)


async def introduce(worker: Any, day: str) -> bytes:
    """What this worker is; called in the loop that keeps the worker alive, where nothing may block."""
    if PLUGIN not in worker.plugins:
        await worker.plugin_add(plugin=fork_servers, name=PLUGIN)
    return pack(Introduction(versions(day), await asyncio.to_thread(_layers)))


class StoppableRun(SubmissionRun):
    """Ends early where nobody waits for it any longer."""

    def __init__(self, order: Order, wanted: Callable[[], bool]) -> None:
        super().__init__(order.digest, order.files, order.options)
        self.wanted = wanted

    def overdue(self, now: float) -> bool:
        return not self.wanted() or super().overdue(now)

    def child_exited(
        self, code: int | None, over_memory: bool = False, on_gpu: bool = False
    ) -> bool:
        return super().child_exited(code, over_memory, on_gpu) and self.wanted()


def wanted_on(worker: Any) -> Callable[[], bool]:
    """Tells whether Dask still wants what this thread of a worker computes: not after the grader has stopped."""
    tasks = worker.state.tasks
    key = worker.get_current_task()
    wanted = True

    def ask() -> bool:
        nonlocal wanted
        wanted = (
            wanted and key in tasks and tasks[key].state == "executing"
        )  # once cancelled, for ever
        return wanted

    return ask


def graded(message: bytes, wanted: Callable[[], bool]) -> bytes:
    """The reply to an order. It raises nothing: Dask would pickle the error."""
    number = message[:HASH]
    try:
        order = unpack(message, Order)
    except BadMessage as error:
        return pack(Reply(number, refused=f"the worker received a damaged message: {error}"))
    refused = order.versions.difference(versions(order.options.day))
    if refused is None and wanted():
        try:
            record = fork_servers.thread_for(order.options).record(
                lambda: StoppableRun(order, wanted)
            )
        except Exception as error:
            refused = (
                str(error) if isinstance(error, DojoError) else f"{type(error).__name__}: {error}"
            )
    if (
        refused is None and not wanted()
    ):  # ended early, it would look like a submission that took too long
        refused = STOPPED
    return pack(
        Reply(number, refused=refused) if refused is not None else Reply(number, encode(record))
    )
