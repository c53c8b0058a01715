"""Runs submissions on the workers of a Dask cluster.

Dask chooses the worker that runs a submission, and another one where a worker is lost. What is done here: workers are
examined, no more is sent than fits, replies are checked, and a lost scheduler is reached again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.versions import VersionMismatchWarning

from gpudojo.classes.child_scheduler import TICK
from gpudojo.classes.dask_worker import (
    HASH,
    Introduction,
    Order,
    Versions,
    pack,
    unpack,
    unpack_reply,
    versions,
)
from gpudojo.classes.runners import GradingTask, Progress
from gpudojo.classes.store import Incident, IncidentKind, Record
from gpudojo.classes.submission_run import BEFORE
from gpudojo.model.errors import BadMessage, BadWorker, NoCluster
from gpudojo.sandbox.layers import Layers, missing_layers
from gpudojo.sandbox.protocol import RunOptions

if TYPE_CHECKING:
    from distributed import Future

PER_THREAD: Final = 2  # submissions: one runs, and one is there when it ends
REFUSALS: Final = 4  # of one submission, after which no worker can run it
LOSSES: Final = 2  # of a submission with its worker, after which it runs alone; and as many again, then it is given up
STRIKES: Final = 3  # refusals by one worker in a row, after which it is not used
INTRODUCTION: Final = 60.0  # seconds: a worker tries out its isolation first
POLLED: Final = 0.5  # seconds between two looks at which workers there are
ANSWER: Final = 30.0  # seconds for the scheduler to say so
FIRST: Final = 10.0  # seconds to reach a scheduler that has not been reached before
ONCE: Final = 5.0  # seconds for one try of several
AGAIN: Final = 0.5  # seconds between two tries
SETBACKS: Final = 5  # connections lost in a row without any result
# What a client raises where its scheduler is gone; AttributeError: it has closed itself.
LOST: Final = (OSError, TimeoutError, RuntimeError, AttributeError)
INSIDE_DASK: Final = re.compile(r"^in <[^>]*>: ")
T = TypeVar("T")


class Disconnected(Exception):
    """The scheduler is gone, or has forgotten what it was asked."""


class TaskQueue:
    """Tasks to send: first those that came back, then new ones, and last, one at a time, those under suspicion."""

    def __init__(self, tasks: Iterator[GradingTask]) -> None:
        self._tasks = tasks
        self._back: deque[GradingTask] = deque()
        self._suspects: deque[GradingTask] = deque()
        self._refusals: Counter[GradingTask] = Counter()
        self._losses: Counter[GradingTask] = Counter()
        self.done = 0

    def take(self, idle: bool) -> tuple[GradingTask, bool] | None:
        """The next task, and whether it must run alone; `idle` means that nothing else is under way."""
        if not self.left():
            return None
        if self._back:
            return self._back.popleft(), False
        return (self._suspects.popleft(), True) if idle else None

    def left(self) -> bool:
        """Whether anything is left to send."""
        if not self._back and (task := next(self._tasks, None)) is not None:
            self._back.append(task)
        return bool(self._back or self._suspects)

    def put_back(self, task: GradingTask, alone: bool = False) -> None:
        (self._suspects if alone else self._back).append(task)

    def refuse(self, task: GradingTask, why: str) -> None:
        """A worker could not run it: it is sent again, or given up."""
        self._refusals[task] += 1
        if self._refusals[task] >= REFUSALS:
            self.give_up(task, f"no worker could run it: {why}")
        else:
            self.put_back(task)

    def lose(self, task: GradingTask, alone: bool, times: int = 1) -> None:
        """It was lost with its worker, and may be why: it is sent again, alone where that happened before."""
        self._losses[task] += times
        if alone and self._losses[task] >= 2 * LOSSES:
            self.give_up(
                task, f"the worker it ran on was lost, {self._losses[task]} times in a row"
            )
        else:
            self.put_back(task, alone or self._losses[task] >= LOSSES)

    def finish(self, task: GradingTask, record: Record) -> None:
        self.done += 1
        task.done(record)

    def give_up(self, task: GradingTask, why: str) -> None:
        """Its result says why it could not be run, and needs review."""
        task.run.record.incidents.append(Incident(IncidentKind.CRASHED, BEFORE, why))
        self.finish(task, task.run.finish(0, 0.0))


def objection(answer: Introduction | str, ours: Versions, require_isolation: bool) -> str | None:
    """Why a worker may not grade, or None."""
    if isinstance(answer, str):
        return answer
    lacking = missing_layers(answer.layers) if require_isolation else []
    return ours.difference(answer.versions) or (
        f"--require-isolation: {'; '.join(lacking)}" if lacking else None
    )


def held_by_all(workers: Mapping[str, Layers]) -> Layers:
    """The layers of a cluster: one holds if it does on every worker; otherwise the reason names a worker."""
    found: Layers = {}
    for worker, layers in workers.items():
        for name, why in layers.items():
            found[name] = found.get(name) or (f"{why} (on {worker})" if why else "")
    return found


# Functions for workers are nested, so that they are sent by value: gpudojo may be missing there.


def _introduce() -> Callable[..., Awaitable[Any]]:
    async def introduce(day: str, dask_worker: Any) -> Any:
        try:
            from gpudojo.classes import dask_worker as module

            return await module.introduce(dask_worker, day)
        except ImportError as error:
            return f"gpudojo with its extra `cluster` is not installed there, or another version ({error})"
        except Exception as error:
            return f"it could not be examined ({type(error).__name__}: {error})"

    return introduce


def _grade() -> Callable[[bytes], tuple[str, bytes | str]]:
    def grade(message: bytes) -> tuple[str, bytes | str]:
        from distributed import get_worker

        worker = get_worker()
        try:
            from gpudojo.classes import dask_worker

            return worker.address, dask_worker.graded(message, dask_worker.wanted_on(worker))
        except (
            Exception
        ) as error:  # Dask would pickle it, and a client that cannot unpickle it waits for ever
            return worker.address, f"{type(error).__name__}: {error}"

    return grade


async def introductions(
    client: Client, workers: list[str], options: RunOptions
) -> dict[str, Introduction | str]:
    """What each worker is, or why that is unknown; nothing of workers that are gone before they answer."""
    try:
        asking = client.run(_introduce(), options.day, workers=workers, on_error="return")
        answers = await asyncio.wait_for(asking, INTRODUCTION)
    except TimeoutError:
        return (
            dict.fromkeys(workers, f"it did not answer within {INTRODUCTION:g} s")
            if len(workers) == 1
            else {}
        )
    found: dict[str, Introduction | str] = {}
    for worker, answer in answers.items():
        try:
            if not isinstance(answer, OSError):
                found[worker] = (
                    answer
                    if isinstance(answer, str)
                    else unpack(answer, Introduction).on(options.bench)
                )
        except BadMessage as error:
            found[worker] = f"its introduction is damaged: {error}"
    return found


async def threads_of(client: Client) -> dict[str, int]:
    """The addresses of all workers, each with its number of threads; raises Disconnected without a scheduler."""
    try:
        scheduler: Any = client.scheduler
        found = await asyncio.wait_for(scheduler.identity(n_workers=-1), ANSWER)
        return {address: max(1, known["nthreads"]) for address, known in found["workers"].items()}
    except LOST as error:
        raise Disconnected(str(error) or "it does not answer") from None


async def _fetched(future: Future[Any]) -> Any:
    """The reply, or the error in its place."""
    try:
        return await future.result()
    except (FutureCancelledError, FuturesCancelledError) as error:
        return Disconnected(str(error))
    except Exception as error:
        return error


@dataclass(eq=False)
class Sent:
    """A submission that was sent to the cluster."""

    task: GradingTask
    alone: bool
    order: bytes  # the hash of the message
    future: Future[Any]
    workers: frozenset[str]  # one of them runs it
    runs: bool = False


@dataclass(eq=False)
class DaskSession:
    """Has tasks done over one connection to a scheduler."""

    client: Client
    cluster: Cluster
    queue: TaskQueue
    threads: dict[str, int] = field(default_factory=dict)  # of the workers that may grade
    sent: dict[asyncio.Task[Any], Sent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known: dict[
            str, str
        ] = {}  # of workers that were examined: why one may not grade, or ""
        self._meeting: dict[str, asyncio.Task[None]] = {}
        self._strikes: Counter[str] = Counter()

    async def run(self) -> None:
        """Until nothing is left; raises Disconnected, and has put back then what was not done."""
        polling = asyncio.create_task(self._poll())
        try:
            while self.sent or self.queue.left():
                self._send_what_fits()
                done, _ = await asyncio.wait(
                    {polling, *self.sent}, timeout=TICK, return_when=asyncio.FIRST_COMPLETED
                )
                if polling in done:
                    polling.result()
                for fetching in done & self.sent.keys():
                    self._returned(fetching)
                running = list(self.sent.values())[: sum(self.threads.values())]
                for sent in running:
                    if not sent.runs:
                        sent.runs, sent.task.began = True, time.monotonic()
                self.cluster.progress.under_way([sent.task for sent in running])
        finally:  # also after Ctrl-C: workers end what is released
            for task in (polling, *self._meeting.values()):
                task.cancel()
            for sent in map(self._forget, list(self.sent)):
                self.queue.put_back(sent.task, sent.alone)

    async def _poll(self) -> None:
        """Follow which workers there are, and examine new ones; raises Disconnected, and NoCluster without any."""
        last = time.monotonic()  # when there was a worker
        while True:
            threads = await threads_of(self.client)
            self._known = {
                address: why for address, why in self._known.items() if address in threads
            }
            for address in threads.keys() - self._known.keys() - self._meeting.keys():
                self._meeting[address] = asyncio.create_task(self._meet(address))
            self.threads = {
                address: count
                for address, count in threads.items()
                if self._known.get(address) == ""
            }
            for lost in [
                one for one, sent in self.sent.items() if not sent.workers & self.threads.keys()
            ]:
                sent = self._forget(lost)
                self.queue.lose(sent.task, sent.alone)
            refused = [why for why in self._known.values() if why]
            if len(refused) < len(threads):  # also where one is still being examined
                last = time.monotonic()
            elif time.monotonic() - last > self.cluster.wait:
                more = f"; one that is there cannot be used: {refused[0]}" if refused else ""
                why = f"has had no workers for {self.cluster.wait:g} s{more}"
                raise NoCluster(self.cluster.address, why, kept=True)
            await asyncio.sleep(POLLED)

    async def _meet(self, address: str) -> None:
        """Examine a worker, and admit or refuse it."""
        try:
            answer = (await introductions(self.client, [address], self.cluster.options)).get(
                address
            )
            if answer is not None:
                self._decide(
                    address,
                    objection(answer, self.cluster.versions, self.cluster.require_isolation),
                )
        except LOST:
            pass  # the worker is gone, or the scheduler, which polling notices
        finally:
            del self._meeting[address]

    def _decide(self, address: str, why: str | None) -> None:
        self._known[address] = why or ""
        if why:
            self.threads.pop(address, None)
            self.cluster.progress.prepares(f"the worker {address} is not used: {why}")

    def _send_what_fits(self) -> None:
        while len(self.sent) < PER_THREAD * sum(self.threads.values()) and not any(
            s.alone for s in self.sent.values()
        ):
            found = self.queue.take(idle=not self.sent)
            if found is None:
                return
            self._send(*found)

    def _send(self, task: GradingTask, alone: bool) -> None:
        message = pack(
            Order(self.cluster.versions, task.run.record.digest, task.run.files, task.run.options)
        )
        key = (
            f"dojo-{uuid.uuid4().hex}"  # a new one each time: no old result is taken for a new one
        )
        try:
            future = self.client.submit(
                _grade(), message, key=key, workers=list(self.threads), retries=REFUSALS
            )
        except Exception as error:  # of any kind, where a client has closed itself
            self.queue.put_back(task, alone)
            raise Disconnected(str(error)) from None
        sent = Sent(task, alone, message[:HASH], future, frozenset(self.threads))
        self.sent[asyncio.create_task(_fetched(future))] = sent

    def _forget(self, fetching: asyncio.Task[Any]) -> Sent:
        sent = self.sent.pop(fetching)
        # It also ends the fetching; to cancel that would cancel what Dask fetches together with it.
        sent.future.release()  # type: ignore[no-untyped-call]
        return sent

    def _returned(self, fetching: asyncio.Task[Any]) -> None:
        """Something came back from the cluster."""
        reply = Disconnected("it was closed") if fetching.cancelled() else fetching.result()
        if isinstance(reply, Disconnected):
            raise reply
        sent = self._forget(fetching)
        task = sent.task
        if isinstance(reply, KilledWorker):
            self.queue.lose(task, sent.alone, reply.allowed_failures + 1)
        elif isinstance(reply, Exception):
            self.queue.refuse(task, f"{type(reply).__name__}: {reply}")
        else:
            address, answer = reply
            try:
                answer = (
                    answer
                    if isinstance(answer, str)
                    else unpack_reply(answer, sent.order, task.run.record.digest)
                )
            except BadMessage as error:
                answer = f"its reply is damaged: {error}"
            if isinstance(answer, Record):
                self._strikes[address] = 0
                self.queue.finish(task, answer)
                return
            self._strikes[address] += 1
            if self._strikes[address] == STRIKES:
                self._decide(address, answer)
            self.queue.refuse(task, answer)


class Cluster:
    """A runner of tasks: the workers of a Dask scheduler, whoever has started them."""

    def __init__(self, address: str, wait: float = 60.0, require_isolation: bool = False) -> None:
        self.address = address_of(address)
        self.wait = wait
        self.require_isolation = require_isolation

    def start(self, options: RunOptions, progress: Progress) -> Layers:
        self.progress = progress
        self.options = options
        self.versions = versions(options.day)
        progress.prepares(f"looking for workers at {self.address}")
        # A wrong address is reported soon; a scheduler that has been there is waited for.
        return asyncio.run(
            self._persistently(self._examine, min(FIRST, self.wait), lambda: 0, kept=False)
        )

    def run(self, tasks: Iterator[GradingTask]) -> None:
        queue = TaskQueue(tasks)

        async def session(client: Client) -> None:
            await DaskSession(client, self, queue).run()

        asyncio.run(self._persistently(session, self.wait, lambda: queue.done, kept=True))

    def close(self) -> None:
        """Connections last as long as a run, and the workers are not ours: there is nothing to end."""

    async def _examine(self, client: Client) -> Layers:
        """The layers of all workers; raises BadWorker before anything is sent where one cannot be used."""
        until = time.monotonic() + self.wait
        waiting = f"waiting for workers at {self.address}"
        while True:
            threads = await threads_of(client)
            try:
                found = await introductions(client, list(threads), self.options) if threads else {}
            except LOST as error:
                raise Disconnected(str(error)) from None
            if found:
                break
            if time.monotonic() > until:
                raise NoCluster(
                    self.address,
                    f"has no workers, and had none for {self.wait:g} s: start some first",
                )
            if waiting:
                self.progress.prepares(waiting)
                waiting = ""
            await asyncio.sleep(AGAIN)
        for worker, answer in found.items():
            why = objection(answer, self.versions, self.require_isolation)
            if why is not None:
                raise BadWorker(worker, why)
        at_once = sum(threads[worker] for worker in found)
        self.progress.prepares(
            f"{len(found)} worker{'s' * (len(found) != 1)}, {at_once} submissions at once"
        )
        return held_by_all(
            {
                worker: said.layers
                for worker, said in found.items()
                if isinstance(said, Introduction)
            }
        )

    async def _persistently(
        self,
        action: Callable[[Client], Awaitable[T]],
        seconds: float,
        done: Callable[[], int],
        kept: bool,
    ) -> T:
        """What an action returns; it is repeated over another connection where one is lost.

        The scheduler is looked for so many seconds; once it has been there, for `wait` seconds.
        """
        asyncio.get_running_loop().set_exception_handler(_ignore_dask)
        warnings.simplefilter("ignore", VersionMismatchWarning)  # workers are examined by us
        warnings.filterwarnings(
            "ignore", "Sending large graph"
        )  # a submission is as large as it is
        setbacks = 0
        while True:
            before = done()
            client = await self._reached(seconds, kept)
            try:
                return await action(client)
            except Disconnected as lost:
                setbacks = 1 if done() > before else setbacks + 1
                if setbacks > SETBACKS:
                    raise NoCluster(
                        self.address, f"was lost {setbacks} times in a row ({lost})", kept
                    ) from None
                seconds = self.wait
                self.progress.prepares(
                    f"the scheduler at {self.address} is lost; trying to reach it again"
                )
            finally:
                await _close(client)
            await asyncio.sleep(AGAIN)

    async def _reached(self, seconds: float, kept: bool) -> Client:
        """A client that is connected; raises NoCluster where that took longer than so many seconds."""
        until = time.monotonic() + seconds
        while True:
            once = max(0.1, min(ONCE, until - time.monotonic()))
            client = Client(self.address, asynchronous=True, timeout=once, set_as_default=False)  # type: ignore[no-untyped-call]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "ignore", VersionMismatchWarning
                    )  # workers are examined by us
                    await client
                for name in list(
                    logging.root.manager.loggerDict
                ):  # the display says what matters of it
                    if name.partition(".")[0] == "distributed":
                        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
                return client
            except BaseException as error:
                await _close(client)
                if isinstance(error, OSError) and time.monotonic() > until:  # TimeoutError is one
                    why = (
                        INSIDE_DASK.sub("", str(error.__cause__ or error)).strip()
                        or "it does not answer"
                    )
                    raise NoCluster(
                        self.address, f"cannot be reached, tried for {seconds:g} s ({why})", kept
                    ) from None
                if isinstance(error, ValueError | TypeError | RuntimeError | ImportError):
                    raise NoCluster(
                        self.address, f"cannot be connected to: {error}", kept
                    ) from None
                if not isinstance(error, OSError):
                    raise
            await asyncio.sleep(AGAIN)


async def _close(client: Client) -> None:
    with contextlib.suppress(OSError, TimeoutError, RuntimeError):
        await client.close(timeout=ONCE)  # type: ignore[no-untyped-call]


def address_of(given: str) -> str:
    """The address itself, or the one in a scheduler file; raises NoCluster where the file has none."""
    path = Path(given)
    if not path.is_file():
        return given
    try:
        return str(json.loads(path.read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NoCluster(given, "has no address: the file is not a scheduler file") from None


def _ignore_dask(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Dask leaves tasks whose errors nobody awaits, when data is lost with a worker."""
    if not type(context.get("exception")).__module__.startswith("distributed"):
        loop.default_exception_handler(context)
