"""Runs submissions on the workers of a Dask cluster.

Workers that may grade get a resource, and every submission asks for one unit of it. Dask chooses the worker, and sends
a submission to another one where a worker is lost. What is done here: workers are examined, no more is sent than fits,
replies are checked, and a lost scheduler is reached again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.versions import VersionMismatchWarning

from gpudojo.classes import submission_run
from gpudojo.classes.dask_worker import HASH, Introduction, Order, Versions, pack, unpack, unpack_reply, versions
from gpudojo.classes.local_runner import TICK, GradingTask, Progress
from gpudojo.classes.store import Incident, IncidentKind, Record
from gpudojo.classes.submission_run import BEFORE
from gpudojo.model.errors import BadMessage, BadWorker, NoCluster
from gpudojo.sandbox import fork_client
from gpudojo.sandbox.layers import Layers, missing
from gpudojo.sandbox.protocol import WHOLE, RunOptions

if TYPE_CHECKING:
    from distributed import Future

PER_THREAD: Final = 2  # submissions: one runs, and one is there when it ends
REFUSALS: Final = 4  # of one submission, after which no worker can run it
STRIKES: Final = 3  # refusals by one worker in a row, after which it is not used
INTRODUCTION: Final = 60.0  # seconds: a worker tries out its isolation first
POLLED: Final = 0.5  # seconds between two looks at which workers there are
ANSWER: Final = 30.0  # seconds for the scheduler to say so
STOPPING: Final = 3.0  # seconds for workers to hear that the grader has stopped
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
        self.done = 0

    def take(self, idle: bool) -> tuple[GradingTask, bool] | None:
        """The next task, and whether it must run alone; `idle` means that nothing else is under way."""
        if self._more():
            return self._back.popleft(), False
        return (self._suspects.popleft(), True) if self._suspects and idle else None

    def left(self) -> bool:
        """Whether anything is left to send."""
        return self._more() or bool(self._suspects)

    def _more(self) -> bool:
        if not self._back and (task := next(self._tasks, None)) is not None:
            self._back.append(task)
        return bool(self._back)

    def put_back(self, task: GradingTask, alone: bool = False) -> None:
        (self._suspects if alone else self._back).append(task)

    def refuse(self, task: GradingTask, why: str) -> None:
        """A worker could not run it: it is sent again, or given up."""
        self._refusals[task] += 1
        if self._refusals[task] >= REFUSALS:
            self.give_up(task, f"no worker could run it: {why}")
        else:
            self.put_back(task)

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
    lacking = missing(answer.layers) if require_isolation else []
    return ours.difference(answer.versions) or (f"--require-isolation: {'; '.join(lacking)}" if lacking else None)


def held_by_all(workers: Mapping[str, Layers]) -> Layers:
    """The layers of a cluster: one holds if it does on every worker; otherwise the reason names a worker."""
    found: Layers = {}
    for worker, layers in workers.items():
        for name, why in layers.items():
            found[name] = found.get(name) or (f"{why} (on {worker})" if why else "")
    return found


def patience(options: RunOptions) -> float:
    """Seconds after which a submission must be back: twice all it may take and the start of a fork server."""
    whole = WHOLE * options.seconds + submission_run.GRACE + submission_run.STARTING
    return 2 * whole + fork_client.STARTS * fork_client.STARTING


# Functions for workers and the scheduler are nested, so that they are sent by value: gpudojo may be missing there.


def _remote(name: str) -> Callable[..., Awaitable[Any]]:
    """Calls a function of `dask_worker` on a worker; returns a text where that fails."""

    async def call(*args: Any, dask_worker: Any) -> Any:
        try:
            from gpudojo.classes import dask_worker as module

            return await getattr(module, name)(dask_worker, *args)
        except ImportError as error:
            return f"gpudojo with its extra `cluster` is not installed there, or another version ({error})"
        except Exception as error:
            return f"it could not be examined ({type(error).__name__}: {error})"

    return call


def _grade() -> Callable[[bytes], tuple[str, bytes | str]]:
    def grade(message: bytes) -> tuple[str, bytes | str]:
        from distributed import get_worker

        address = str(get_worker().address)
        try:
            from gpudojo.classes import dask_worker

            return address, dask_worker.graded(message)
        except Exception as error:  # Dask would pickle it, and a client that cannot unpickle it waits for ever
            return address, f"{type(error).__name__}: {error}"

    return grade


def _set_resource() -> Callable[..., None]:
    def set_resource(worker: str, resource: str, quantity: int, dask_scheduler: Any) -> None:
        known = dask_scheduler.workers.get(worker)
        if known is not None:
            dask_scheduler.add_resources(worker=worker, resources={resource: quantity})
            # Dask does so when a worker joins, but not when one gets a resource.
            waiting = dask_scheduler.bulk_schedule_unrunnable_after_adding_worker(known)
            dask_scheduler.transitions(waiting, stimulus_id="gpudojo")

    return set_resource


async def introductions(client: Client, workers: list[str], day: str) -> dict[str, Introduction | str]:
    """What each worker is, or why that is unknown; nothing of workers that are gone before they answer."""
    try:
        asking = client.run(_remote("introduce"), day, workers=workers, on_error="return")
        answers = await asyncio.wait_for(asking, INTRODUCTION)
    except TimeoutError:
        return dict.fromkeys(workers, f"it did not answer within {INTRODUCTION:g} s") if len(workers) == 1 else {}
    found: dict[str, Introduction | str] = {}
    for worker, answer in answers.items():
        try:
            if not isinstance(answer, OSError):
                found[worker] = answer if isinstance(answer, str) else unpack(answer, Introduction)
        except BadMessage as error:
            found[worker] = f"its introduction is damaged: {error}"
    return found


async def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """What the scheduler knows of its workers, by address; raises Disconnected where it does not answer."""
    try:
        scheduler: Any = client.scheduler
        found = await asyncio.wait_for(scheduler.identity(n_workers=-1), ANSWER)
        return dict(found["workers"])
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
    fetching: asyncio.Task[Any]
    since: float
    runs: bool = False


@dataclass(eq=False)
class Session:
    """Has tasks done over one connection to a scheduler."""

    client: Client
    cluster: Cluster
    queue: TaskQueue
    threads: dict[str, int] = field(default_factory=dict)  # of the workers that may grade
    refused: dict[str, str] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._strikes: Counter[str] = Counter()
        self._meeting: dict[str, asyncio.Task[None]] = {}
        self._run = uuid.uuid4().hex
        self._count = 0
        self._worked = time.monotonic()  # when there was a worker last

    async def run(self) -> None:
        """Until nothing is left; raises Disconnected, and has put back then what was not done."""
        polling = asyncio.create_task(self._poll())
        try:
            while self.sent or self.queue.left():
                self._send_what_fits()
                waited = {polling, *(sent.fetching for sent in self.sent)}
                await asyncio.wait(waited, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)
                if polling.done():
                    polling.result()
                for sent in [sent for sent in self.sent if sent.fetching.done()]:
                    if sent in self.sent:  # else it was put back with its worker
                        await self._returned(sent)
                await self._look_after(time.monotonic())
        except Disconnected:
            raise
        except BaseException:  # also Ctrl-C: nobody waits for what is under way
            with contextlib.suppress(*LOST):
                stopping = self.client.run(_remote("stop"), self._run, workers=list(self.threads), on_error="ignore")
                await asyncio.wait_for(stopping, STOPPING)
            raise
        finally:
            for task in (polling, *self._meeting.values()):
                task.cancel()
            for sent in list(self.sent):
                self._forget(sent)
                self.queue.put_back(sent.task, sent.alone)

    async def _poll(self) -> None:
        """Follow which workers there are, and examine new ones; raises Disconnected."""
        while True:
            workers = await workers_of(self.client)
            resource = self.cluster.resource
            threads = {address: max(1, known["nthreads"]) for address, known in workers.items()}
            usable = {address for address in threads if address not in self.refused}
            admitted = {address for address in usable if workers[address]["resources"].get(resource)}
            self.threads = {address: threads[address] for address in admitted}
            if usable:  # also where it is still being examined
                self._worked = time.monotonic()
            for address in usable - admitted - self._meeting.keys():
                self._meeting[address] = asyncio.create_task(self._meet(address, threads[address]))
            await asyncio.sleep(POLLED)

    async def _meet(self, address: str, threads: int) -> None:
        """Examine a worker, and admit or refuse it."""
        try:
            answer = (await introductions(self.client, [address], self.cluster.options.day)).get(address)
            if answer is None:
                return
            why = objection(answer, self.cluster.versions, self.cluster.require_isolation)
            if why is None:
                resource = self.cluster.resource
                why = (await self.client.run(_remote("admit"), resource, workers=[address])).get(address)
            if why is None:
                await self._set_resource(address, threads)
            else:
                self._refuse_worker(address, why)
        except LOST:
            pass  # the worker is gone, or the scheduler, which polling notices
        finally:
            del self._meeting[address]

    async def _set_resource(self, address: str, quantity: int) -> None:
        client: Any = self.client
        asking = client.run_on_scheduler(_set_resource(), address, self.cluster.resource, quantity)
        await asyncio.wait_for(asking, ANSWER)

    def _refuse_worker(self, address: str, why: str) -> None:
        self.refused[address] = why
        self.threads.pop(address, None)
        self.cluster.progress.prepares(f"the worker {address} is not used: {why}")

    async def _dismiss(self, address: str, why: str) -> None:
        """Send nothing more to a worker that was admitted."""
        self._refuse_worker(address, why)
        with contextlib.suppress(*LOST):
            await self._set_resource(address, 0)

    def _send_what_fits(self) -> None:
        while len(self.sent) < PER_THREAD * sum(self.threads.values()) and not any(sent.alone for sent in self.sent):
            found = self.queue.take(idle=not self.sent)
            if found is None:
                return
            self._send(*found)

    def _send(self, task: GradingTask, alone: bool) -> None:
        run = task.run
        message = pack(Order(self.cluster.versions, run.record.digest, run.files, run.options, self._run))
        self._count += 1
        try:
            future = self.client.submit(
                _grade(),
                message,
                key=f"dojo-{self._run}-{self._count}",  # a new one each time: no old result is taken for a new one
                resources={self.cluster.resource: 1},
                pure=False,
                retries=REFUSALS,
            )
        except Exception as error:  # of any kind, where a client has closed itself
            self.queue.put_back(task, alone)
            raise Disconnected(str(error)) from None
        fetching = asyncio.create_task(_fetched(future))
        self.sent.append(Sent(task, alone, message[:HASH], future, fetching, time.monotonic()))

    def _forget(self, sent: Sent) -> None:
        self.sent.remove(sent)
        # It also ends the fetching; to cancel that would cancel what Dask fetches together with it.
        sent.future.release()  # type: ignore[no-untyped-call]

    async def _returned(self, sent: Sent) -> None:
        """Something came back from the cluster."""
        reply = Disconnected("it was closed") if sent.fetching.cancelled() else sent.fetching.result()
        if isinstance(reply, Disconnected):
            raise reply
        self._forget(sent)
        task = sent.task
        if isinstance(reply, KilledWorker) and not sent.alone:
            self.queue.put_back(task, alone=True)  # it, or another one on the same workers
        elif isinstance(reply, KilledWorker):
            losses = 2 * (reply.allowed_failures + 1)
            self.queue.give_up(task, f"the worker it ran on was lost, {losses} times in a row")
        elif isinstance(reply, Exception):
            self.queue.refuse(task, f"{type(reply).__name__}: {reply}")
        else:
            address, answer = reply
            try:
                answer = answer if isinstance(answer, str) else unpack_reply(answer, sent.order, task.run.record.digest)
            except BadMessage as error:
                answer = f"its reply is damaged: {error}"
            if isinstance(answer, Record):
                self._strikes[address] = 0
                self.queue.finish(task, answer)
                return
            self._strikes[address] += 1
            if self._strikes[address] == STRIKES:
                await self._dismiss(address, answer)
            self.queue.refuse(task, answer)

    async def _look_after(self, now: float) -> None:
        """Show what runs, and look for workers that do not answer, or are all gone."""
        cluster = self.cluster
        running = self.sent[: sum(self.threads.values())]
        for sent in running:
            if not sent.runs:
                sent.runs, sent.task.began = True, now
        cluster.progress.under_way([sent.task for sent in running])
        if self.threads:
            self._worked = now
        else:
            for sent in self.sent:
                sent.since = now
            if now - self._worked > cluster.wait:
                why = next(iter(self.refused.values()), "")
                more = f"; one that is there cannot be used: {why}" if why else ""
                raise NoCluster(cluster.address, f"has had no workers for {cluster.wait:g} s{more}", kept=True)
        turns = max(self.threads.values(), default=1) if cluster.options.bench == "cuda" else 1
        late = [sent for sent in self.sent if now - sent.since > turns * PER_THREAD * patience(cluster.options)]
        if late:
            await self._dismiss_silent(late, now)

    async def _dismiss_silent(self, late: list[Sent], now: float) -> None:
        try:
            at = await asyncio.wait_for(self.client.processing(), ANSWER)  # type: ignore[no-untyped-call]
        except LOST as error:
            raise Disconnected(str(error)) from None
        for address, keys in at.items():
            if any(sent.future.key in keys for sent in late):
                await self._dismiss(address, f"it has not answered for {now - late[0].since:.0f} s")
                for sent in [sent for sent in self.sent if sent.future.key in keys]:
                    self._forget(sent)
                    self.queue.put_back(sent.task, sent.alone)


class Cluster:
    """A runner of tasks: the workers of a Dask scheduler, whoever has started them."""

    def __init__(self, address: str, wait: float = 60.0, require_isolation: bool = False) -> None:
        self.address = address_of(address)
        self.wait, self.require_isolation = wait, require_isolation

    def start(self, options: RunOptions, progress: Progress) -> Layers:
        self.progress, self.options = progress, options
        self.versions = versions(options.day)
        # Named for what a worker must be, so that no other grader's workers have it.
        wanted = msgspec.json.encode((self.versions, self.require_isolation))
        self.resource = f"dojo-{hashlib.sha256(wanted).hexdigest()[:16]}"
        progress.prepares(f"looking for workers at {self.address}")
        # A wrong address is reported soon; a scheduler that has been there is waited for.
        return asyncio.run(self._persistently(self._examine, min(FIRST, self.wait), lambda: 0, kept=False))

    def run(self, tasks: Iterator[GradingTask]) -> None:
        queue = TaskQueue(tasks)
        asyncio.run(
            self._persistently(
                lambda client: Session(client, self, queue).run(), self.wait, lambda: queue.done, kept=True
            )
        )

    def close(self) -> None:
        """Connections last as long as a run, and the workers are not ours: there is nothing to end."""

    async def _examine(self, client: Client) -> Layers:
        """The layers of all workers; raises BadWorker before anything is sent where one cannot be used."""
        until = time.monotonic() + self.wait
        waiting = False
        while True:
            workers = await workers_of(client)
            try:
                found = await introductions(client, list(workers), self.options.day) if workers else {}
            except LOST as error:
                raise Disconnected(str(error)) from None
            if found:
                break
            if time.monotonic() > until:
                raise NoCluster(self.address, f"has no workers, and had none for {self.wait:g} s: start some first")
            if not waiting:
                self.progress.prepares(f"waiting for workers at {self.address}")
                waiting = True
            await asyncio.sleep(AGAIN)
        for worker, answer in found.items():
            why = objection(answer, self.versions, self.require_isolation)
            if why is not None:
                raise BadWorker(worker, why)
        threads = sum(workers[worker]["nthreads"] for worker in found)
        self.progress.prepares(f"{len(found)} worker{'s' * (len(found) != 1)}, {threads} submissions at once")
        return held_by_all({worker: said.layers for worker, said in found.items() if isinstance(said, Introduction)})

    async def _persistently(
        self, action: Callable[[Client], Awaitable[T]], seconds: float, done: Callable[[], int], kept: bool
    ) -> T:
        """What an action returns; it is repeated over another connection where one is lost.

        The scheduler is looked for so many seconds; once it has been there, for `wait` seconds.
        """
        asyncio.get_running_loop().set_exception_handler(_ignore_dask)
        setbacks = 0
        while True:
            before = done()
            try:
                async with self._connected(seconds, kept) as client:
                    return await action(client)
            except Disconnected as lost:
                setbacks = 1 if done() > before else setbacks + 1
                if setbacks > SETBACKS:
                    raise NoCluster(self.address, f"was lost {setbacks} times in a row ({lost})", kept) from None
                seconds = self.wait
                self.progress.prepares(f"the scheduler at {self.address} is lost; trying to reach it again")
                await asyncio.sleep(AGAIN)

    @contextlib.asynccontextmanager
    async def _connected(self, seconds: float, kept: bool) -> AsyncIterator[Client]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # workers are examined by us
            warnings.filterwarnings("ignore", "Sending large graph")  # a submission is as large as it is
            client = await self._reached(time.monotonic() + seconds, seconds, kept)
            for name in list(logging.root.manager.loggerDict):  # the display says what matters of it
                if name.partition(".")[0] == "distributed":
                    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            try:
                yield client
            finally:
                await _close(client)

    async def _reached(self, until: float, seconds: float, kept: bool) -> Client:
        while True:
            once = max(0.1, min(ONCE, until - time.monotonic()))
            client = Client(self.address, asynchronous=True, timeout=once, set_as_default=False)  # type: ignore[no-untyped-call]
            try:
                return await client  # type: ignore[no-any-return]
            except (OSError, TimeoutError) as error:
                await _close(client)
                if time.monotonic() > until:
                    why = INSIDE_DASK.sub("", str(error.__cause__ or error)).strip() or "it does not answer"
                    raise NoCluster(self.address, f"cannot be reached, tried for {seconds:g} s ({why})", kept) from None
            except (ValueError, TypeError, RuntimeError, ImportError) as error:
                await _close(client)
                raise NoCluster(self.address, f"cannot be connected to: {error}", kept) from None
            except BaseException:
                await _close(client)
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
