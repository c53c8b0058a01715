"""Runs submissions on the workers of a Dask cluster.

Dask chooses the worker that runs a submission, and another one where a worker is lost. What is done
here: workers are examined, no more is sent than fits, replies are checked, and a lost scheduler is
reached again.
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
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.versions import VersionMismatchWarning

from gpudojo.classes.child_scheduler import TICK
from gpudojo.classes.dask_messages import (
    HASH,
    Introduction,
    Order,
    Versions,
    pack_message,
    unpack_message,
    unpack_reply,
    versions_here,
)
from gpudojo.classes.dask_queue import MOST_REFUSALS, TaskQueue
from gpudojo.classes.records import Record
from gpudojo.classes.runners import GradingTask, Progress
from gpudojo.model.errors import BadMessage, BadWorker, NoCluster
from gpudojo.model.results_file import count_and_noun
from gpudojo.sandbox.layers import Layers, missing_layers
from gpudojo.sandbox.protocol import RunOptions

if TYPE_CHECKING:
    from distributed import Future

TASKS_PER_THREAD: Final = 2  # one runs, and one is there when it ends
MOST_STRIKES: Final = 3  # refusals by one worker in a row, after which it is not used
MOST_SETBACKS: Final = 5  # connections lost in a row without any result
# Seconds
INTRODUCTION_SECONDS: Final = 60.0  # for a worker to answer: it tries out its isolation first
BETWEEN_LOOKS: Final = 0.5  # at which workers there are
SCHEDULER_SECONDS: Final = 30.0
FIRST_CONNECTION_SECONDS: Final = 10.0  # to a scheduler that has not been reached before
SECONDS_OF_A_TRY: Final = 5.0  # to connect
BETWEEN_TRIES: Final = 0.5
# What a client raises where its scheduler is gone; AttributeError: it has closed itself.
ERRORS_OF_LOST_SCHEDULER: Final = (OSError, TimeoutError, RuntimeError, AttributeError)
# What a client raises for an address that it does not understand.
ERRORS_OF_BAD_ADDRESS: Final = (ValueError, TypeError, RuntimeError, ImportError)
INSIDE_DASK: Final = re.compile(r"^in <[^>]*>: ")
T = TypeVar("T")


class Disconnected(Exception):
    """The scheduler is gone, or has forgotten what it was asked."""


# Workers


def objection_to(answer: Introduction | str, ours: Versions, require_isolation: bool) -> str | None:
    """Why a worker may not grade, or None; an answer that is a text is such a reason.

    `ours` are the versions of the grader, which the worker's must be equal to.
    """
    if isinstance(answer, str):
        return answer
    difference = ours.describe_difference(answer.versions)
    if difference is not None:
        return difference
    lacking = missing_layers(answer.layers)
    if require_isolation and lacking:
        return f"--require-isolation: {'; '.join(lacking)}"
    return None


def layers_of_all(workers: Mapping[str, Layers]) -> Layers:
    """The layers of a cluster: one holds if it does on every worker.

    Otherwise the reason names a worker on which it does not.
    """
    layers_of_cluster: Layers = {}
    for worker, layers in workers.items():
        for name, why in layers.items():
            if why and not layers_of_cluster.get(name):
                layers_of_cluster[name] = f"{why} (on {worker})"
            else:
                layers_of_cluster.setdefault(name, "")
    return layers_of_cluster


# Functions for workers are nested, so that they are sent by value: gpudojo may be missing there.


def _function_to_introduce() -> Callable[..., Awaitable[Any]]:
    """A function that a worker runs to introduce itself.

    It returns a packed Introduction, or the reason why there is none.
    """

    async def introduce_yourself(day: str, dask_worker: Any) -> Any:
        """The packed Introduction of this worker, or the reason why there is none."""
        try:
            from gpudojo.classes import dask_worker as module

            return await module.introduce_worker(dask_worker, day)
        except ImportError as error:
            return (
                "gpudojo with its extra `cluster` is not installed there, "
                f"or another version ({error})"
            )
        except Exception as error:  # whatever it is, this worker is not used
            return f"it could not be examined ({type(error).__name__}: {error})"

    return introduce_yourself


def _function_to_grade() -> Callable[[bytes], tuple[str, bytes | str]]:
    """A function that a worker runs for an order.

    It returns the address of the worker and a packed reply, or the reason why there is none.
    """

    def grade_order(message: bytes) -> tuple[str, bytes | str]:
        """Run one submission on this worker.

        Returns the worker's address, and the packed reply or, after an error, a text that says why.
        """
        from distributed import get_worker

        worker = get_worker()
        try:
            from gpudojo.classes import dask_worker

            is_wanted = dask_worker.DaskTask(worker).is_wanted
            return worker.address, dask_worker.run_order(message, is_wanted)
        except Exception as error:
            # Dask would pickle it, and a client that cannot unpickle it waits for ever.
            return worker.address, f"{type(error).__name__}: {error}"

    return grade_order


async def ask_for_introductions(
    client: Client, workers: list[str], options: RunOptions
) -> dict[str, Introduction | str]:
    """What each worker is, by its address, or why that is unknown.

    Workers that are gone before they answer are left out. Raises one of ERRORS_OF_LOST_SCHEDULER.
    """
    try:
        asking = client.run(
            _function_to_introduce(), options.day, workers=workers, on_error="return"
        )
        answers = await asyncio.wait_for(asking, INTRODUCTION_SECONDS)
    except TimeoutError:
        if len(workers) > 1:
            return {}  # one of them did not answer, and it is not known which
        return {workers[0]: f"it did not answer within {INTRODUCTION_SECONDS:g} s"}
    # An answer is an introduction, or why there is none; an OSError: the worker is gone.
    introductions: dict[str, Introduction | str] = {}
    for worker, answer in answers.items():
        if isinstance(answer, OSError):
            continue
        if isinstance(answer, str):
            introductions[worker] = answer
            continue
        try:
            introduction = unpack_message(answer, Introduction)
        except BadMessage as error:
            introductions[worker] = f"its introduction is damaged: {error}"
        else:
            introductions[worker] = introduction.for_device(options.bench)
    return introductions


async def threads_by_worker(client: Client) -> dict[str, int]:
    """The number of threads of all workers, by address; raises Disconnected.

    A worker without threads counts as one with one.
    """
    try:
        scheduler: Any = client.scheduler
        asking = scheduler.identity(n_workers=-1)
        identity = await asyncio.wait_for(asking, SCHEDULER_SECONDS)
        threads = {}
        for address, worker in identity["workers"].items():
            threads[address] = max(1, worker["nthreads"])
        return threads
    except ERRORS_OF_LOST_SCHEDULER as error:
        raise Disconnected(str(error) or "it does not answer") from None


class WorkerAnswer(NamedTuple):
    """What a worker says of itself, or why that is unknown; and how many threads it has."""

    introduction: Introduction | str
    threads: int


# Sending and receiving


async def _reply_or_error(future: Future[Any]) -> Any:
    """The reply of a worker; an error is returned in its place, not raised.

    It is Disconnected where the scheduler has forgotten the task.
    """
    try:
        return await future.result()
    except (FutureCancelledError, FuturesCancelledError) as error:
        return Disconnected(str(error))
    except Exception as error:  # of the worker, or of Dask: `_handle_reply` decides
        return error


@dataclass(eq=False)
class SentTask:
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
    sent: dict[asyncio.Task[Any], SentTask] = field(
        default_factory=dict
    )  # by waiting for its reply

    def __post_init__(self) -> None:
        # Of workers that were examined: why one may not grade, or "".
        self._objections: dict[str, str] = {}
        self._examinations: dict[str, asyncio.Task[None]] = {}
        self._strikes: Counter[str] = Counter()

    async def run(self) -> None:
        """Have all tasks of the queue done.

        Raises Disconnected, NoCluster if workers are missing for too long, and what making a task
        or its end raises; what was not done has been put back into the queue then.
        """
        following = asyncio.create_task(self._follow_workers())
        try:
            while self.sent or self.queue.has_more():
                self._send_what_fits()
                done, _ = await asyncio.wait(
                    {following, *self.sent}, timeout=TICK, return_when=asyncio.FIRST_COMPLETED
                )
                if following in done:
                    following.result()  # raises: it never ends otherwise
                for waiting in done & self.sent.keys():
                    self._handle_reply(waiting)
                self._report_running()
        finally:
            # Also after Ctrl-C: workers end what is released.
            following.cancel()
            for examination in self._examinations.values():
                examination.cancel()
            for waiting in list(self.sent):
                sent = self._release_task(waiting)
                self.queue.put_back(sent.task, sent.alone)

    def _report_running(self) -> None:
        """Tell the display what runs: of those sent first, as many as there are threads.

        The time of a task begins when it is first among them.
        """
        count = sum(self.threads.values())
        running = list(self.sent.values())[:count]
        for sent in running:
            if not sent.runs:
                sent.runs = True
                sent.task.began = time.monotonic()
        self.cluster.progress.report_running([sent.task for sent in running])

    async def _follow_workers(self) -> None:
        """Follow which workers there are, and examine new ones, for ever.

        Raises Disconnected, NoCluster if there is none to use for too long, and what the end of a
        task raises that was lost too often.
        """
        last_usable = time.monotonic()
        while True:
            threads = await threads_by_worker(self.client)
            self._update_workers(threads)
            self._take_back_lost()
            objections = [why for why in self._objections.values() if why]
            if len(objections) < len(threads):  # also where one is still being examined
                last_usable = time.monotonic()
            elif time.monotonic() - last_usable > self.cluster.wait:
                why = f"has had no workers for {self.cluster.wait:g} s"
                if objections:
                    why += f"; one that is there cannot be used: {objections[0]}"
                raise NoCluster(self.cluster.address, why, kept=True)
            await asyncio.sleep(BETWEEN_LOOKS)

    def _update_workers(self, threads: Mapping[str, int]) -> None:
        """Forget workers that are gone, and begin to examine new ones.

        `threads` then has the workers that may grade.
        """
        for address in self._objections.keys() - threads.keys():
            del self._objections[address]
        known = self._objections.keys() | self._examinations.keys()
        for address in threads.keys() - known:
            examination = asyncio.create_task(self._examine_worker(address))
            self._examinations[address] = examination
        self.threads = {}
        for address, count in threads.items():
            if self._objections.get(address) == "":
                self.threads[address] = count

    def _take_back_lost(self) -> None:
        """Put what was sent to workers that are all gone back into the queue, as lost.

        A task that was lost too often is given up; raises what its end raises.
        """
        for waiting, sent in list(self.sent.items()):
            if sent.workers.isdisjoint(self.threads):
                self._release_task(waiting)
                self.queue.note_loss(sent.task, sent.alone)

    async def _examine_worker(self, address: str) -> None:
        """Examine a worker, and admit or refuse it.

        A worker that is gone meanwhile is neither. It is no longer among `_examinations` then.
        """
        cluster = self.cluster
        try:
            answers = await ask_for_introductions(self.client, [address], cluster.options)
            if address in answers:
                why = objection_to(answers[address], cluster.versions, cluster.require_isolation)
                self._admit_or_refuse(address, why or "")
        except ERRORS_OF_LOST_SCHEDULER:
            pass  # the worker is gone; or the scheduler, which `_follow_workers` notices
        finally:
            del self._examinations[address]

    def _admit_or_refuse(self, address: str, objection: str) -> None:
        """Admit a worker, or refuse it for a reason, which is shown."""
        self._objections[address] = objection
        if objection:
            self.threads.pop(address, None)
            self.cluster.progress.report_preparation(
                f"the worker {address} is not used: {objection}"
            )

    def _send_what_fits(self) -> None:
        """Send tasks of the queue as long as there is room.

        One that is to run alone is sent only when nothing else is there. Raises Disconnected, and
        what making a task raises.
        """
        room = TASKS_PER_THREAD * sum(self.threads.values())
        while len(self.sent) < room:
            if any(sent.alone for sent in self.sent.values()):
                return
            following = self.queue.next_task(idle=not self.sent)
            if following is None:
                return
            self._send_task(following.task, following.alone)

    def _send_task(self, task: GradingTask, alone: bool) -> None:
        """Send a task, and wait for its reply in `sent`.

        Any of the workers that may grade now can run it. `alone` tells that nothing else is sent
        meanwhile. Raises Disconnected, after putting the task back.
        """
        run = task.run
        order = Order(self.cluster.versions, run.record.digest, run.files, run.options)
        message = pack_message(order)
        # A new key each time: no old result is taken for a new one.
        key = f"dojo-{uuid.uuid4().hex}"
        workers = list(self.threads)
        try:
            future = self.client.submit(
                _function_to_grade(), message, key=key, workers=workers, retries=MOST_REFUSALS
            )
        except Exception as error:  # of any kind, where a client has closed itself
            self.queue.put_back(task, alone)
            raise Disconnected(str(error)) from None
        waiting = asyncio.create_task(_reply_or_error(future))
        self.sent[waiting] = SentTask(
            task=task,
            alone=alone,
            order=message[:HASH],
            future=future,
            workers=frozenset(workers),
        )

    def _release_task(self, waiting: asyncio.Task[Any]) -> SentTask:
        """Take a task out of `sent`, let Dask forget it, and return it."""
        sent = self.sent.pop(waiting)
        # It also ends the waiting; to cancel that would cancel what Dask fetches together with it.
        sent.future.release()  # type: ignore[no-untyped-call]
        return sent

    def _handle_reply(self, waiting: asyncio.Task[Any]) -> None:
        """Finish a task whose reply has come, or put it back into the queue.

        A worker that died with the task counts as a loss of it; any other error as a refusal. After
        too many of these it is given up. Raises Disconnected, and what the end of a task raises.
        """
        if waiting.cancelled():
            raise Disconnected("it was closed")
        reply = waiting.result()
        if isinstance(reply, Disconnected):
            raise reply
        sent = self._release_task(waiting)
        if isinstance(reply, KilledWorker):
            losses = reply.allowed_failures + 1
            self.queue.note_loss(sent.task, sent.alone, losses)
        elif isinstance(reply, Exception):
            why = f"{type(reply).__name__}: {reply}"
            self.queue.note_refusal(sent.task, why)
        else:
            address, answer = reply
            self._handle_answer(sent, address, answer)

    def _handle_answer(self, sent: SentTask, address: str, answer: bytes | str) -> None:
        """Finish a task with the record in an answer, or count a strike against the worker.

        An answer that is a text says why there is no record. After too many strikes the worker is
        not used any more. The task goes back into the queue, or is given up after too many
        refusals. Raises what the end of a task raises.
        """
        result: Record | str
        if isinstance(answer, str):
            result = answer
        else:
            try:
                result = unpack_reply(answer, sent.order, sent.task.run.record.digest)
            except BadMessage as error:
                result = f"its reply is damaged: {error}"
        if isinstance(result, Record):
            self._strikes[address] = 0
            self.queue.finish_task(sent.task, result)
            return
        self._strikes[address] += 1
        if self._strikes[address] == MOST_STRIKES:
            self._admit_or_refuse(address, result)
        self.queue.note_refusal(sent.task, result)


class Cluster:
    """A runner of tasks: the workers of a Dask scheduler, whoever has started them."""

    def __init__(self, address: str, wait: float = 60.0, require_isolation: bool = False) -> None:
        """Note the address of the cluster, which may be in a scheduler file. Connects to nothing.

        `wait` is for how many seconds workers are waited for; with `require_isolation`, those that
        cannot isolate student code are refused. Raises NoCluster where that file has none.
        """
        self.address = address_of(address)
        self.wait = wait
        self.require_isolation = require_isolation

    def start(self, options: RunOptions, progress: Progress) -> Layers:
        """Examine all workers. Returns the layers of isolation that hold on each of them.

        Raises NoCluster, and BadWorker where one cannot be used, before anything is sent. Raises
        OSError if sources of ours cannot be read. Turns off Dask's loggers and warnings in this
        process.
        """
        self.progress = progress
        self.options = options
        self.versions = versions_here(options.day)
        progress.report_preparation(f"looking for workers at {self.address}")
        # A wrong address is reported soon; a scheduler that has been there is waited for.
        seconds = min(FIRST_CONNECTION_SECONDS, self.wait)
        return asyncio.run(
            self._repeat_when_lost(self._examine_workers, seconds, count_done=lambda: 0, kept=False)
        )

    def run(self, tasks: Iterator[GradingTask]) -> None:
        """Run all tasks; `start` was called before.

        Turns off Dask's loggers and warnings in this process. Raises NoCluster where the cluster is
        lost for too long, or again and again with nothing done, and what making a task or its end
        raises.
        """
        queue = TaskQueue(tasks)

        async def run_session(client: Client) -> None:
            await DaskSession(client, self, queue).run()

        asyncio.run(
            self._repeat_when_lost(
                run_session, self.wait, count_done=lambda: queue.count_done, kept=True
            )
        )

    def close(self) -> None:
        """Does nothing: connections last as long as a run, and the workers are not ours."""

    async def _examine_workers(self, client: Client) -> Layers:
        """Wait for workers, and examine them; returns the layers that hold on all.

        Raises Disconnected, NoCluster without workers, and BadWorker where one cannot be used.
        """
        answers = await self._wait_for_workers(client)
        layers = {}
        at_once = 0
        for worker, answer in answers.items():
            objection = objection_to(answer.introduction, self.versions, self.require_isolation)
            if isinstance(answer.introduction, str) or objection is not None:
                raise BadWorker(worker, objection or "")
            layers[worker] = answer.introduction.layers
            at_once += answer.threads
        workers = count_and_noun(len(answers), "worker")
        self.progress.report_preparation(f"{workers}, {at_once} submissions at once")
        return layers_of_all(layers)

    async def _wait_for_workers(self, client: Client) -> dict[str, WorkerAnswer]:
        """Wait until there are workers that answer; returns what they say, by address.

        Raises Disconnected, and NoCluster where there are none for too long.
        """
        until = time.monotonic() + self.wait
        is_waiting = False
        while True:
            # Who is there, and answers.
            threads = await threads_by_worker(client)
            answers = {}
            if threads:
                try:
                    introductions = await ask_for_introductions(client, list(threads), self.options)
                except ERRORS_OF_LOST_SCHEDULER as error:
                    raise Disconnected(str(error)) from None
                for worker, introduction in introductions.items():
                    answers[worker] = WorkerAnswer(introduction, threads[worker])
            if answers:
                return answers
            # Nobody yet.
            if time.monotonic() > until:
                why = f"has no workers, and had none for {self.wait:g} s: start some first"
                raise NoCluster(self.address, why)
            if not is_waiting:
                self.progress.report_preparation(f"waiting for workers at {self.address}")
                is_waiting = True
            await asyncio.sleep(BETWEEN_TRIES)

    async def _repeat_when_lost(
        self,
        action: Callable[[Client], Awaitable[T]],
        seconds: float,
        count_done: Callable[[], int],
        kept: bool,
    ) -> T:
        """What an action returns; it is repeated over another connection where one is lost.

        The scheduler is looked for so many seconds; once it has been there, for `wait` seconds.
        `count_done` tells how many tasks are done so far. `kept`: the message of NoCluster says
        that what has run is kept. Changes the filters of warnings. Raises NoCluster after too many
        losses without anything done in between, and what the action raises.
        """
        asyncio.get_running_loop().set_exception_handler(_ignore_errors_of_dask)
        warnings.simplefilter("ignore", VersionMismatchWarning)  # workers are examined by us
        warnings.filterwarnings(
            "ignore", "Sending large graph"
        )  # a submission is as large as it is
        setbacks = 0
        while True:
            done_before = count_done()
            client = await self._connect_client(seconds, kept)
            try:
                return await action(client)
            except Disconnected as lost:
                # Only losses in a row count.
                if count_done() > done_before:
                    setbacks = 0
                setbacks += 1
                if setbacks > MOST_SETBACKS:
                    why = f"was lost {setbacks} times in a row ({lost})"
                    raise NoCluster(self.address, why, kept) from None
                seconds = self.wait
                self.progress.report_preparation(
                    f"the scheduler at {self.address} is lost; trying to reach it again"
                )
            finally:
                await _close_client(client)
            await asyncio.sleep(BETWEEN_TRIES)

    async def _connect_client(self, seconds: float, kept: bool) -> Client:
        """A client that is connected to the scheduler.

        It tries again until so many seconds are over, then raises NoCluster. Raises NoCluster at
        once for an address that cannot be one. Turns off Dask's loggers. `kept` is for the message.
        """
        until = time.monotonic() + seconds
        while True:
            seconds_left = until - time.monotonic()
            timeout = max(0.1, min(SECONDS_OF_A_TRY, seconds_left))
            client = Client(  # type: ignore[no-untyped-call]
                self.address, asynchronous=True, timeout=timeout, set_as_default=False
            )
            # Whatever goes wrong, the client is closed.
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", VersionMismatchWarning)
                    await client
                _silence_dask()
                return client
            except OSError as error:  # TimeoutError is one
                await _close_client(client)
                if time.monotonic() > until:
                    message = str(error.__cause__ or error)
                    cause = INSIDE_DASK.sub("", message).strip()
                    reason = cause or "it does not answer"
                    why = f"cannot be reached, tried for {seconds:g} s ({reason})"
                    raise NoCluster(self.address, why, kept) from None
            except ERRORS_OF_BAD_ADDRESS as error:
                await _close_client(client)
                why = f"cannot be connected to: {error}"
                raise NoCluster(self.address, why, kept) from None
            except BaseException:  # Ctrl-C, say
                await _close_client(client)
                raise
            await asyncio.sleep(BETWEEN_TRIES)


def _silence_dask() -> None:
    """Turn off Dask's loggers: the display says what matters of it."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


async def _close_client(client: Client) -> None:
    """Close a connection; it does not matter if it is lost."""
    with contextlib.suppress(OSError, TimeoutError, RuntimeError):  # its scheduler is gone
        await client.close(timeout=SECONDS_OF_A_TRY)  # type: ignore[no-untyped-call]


def address_of(address: str) -> str:
    """The address itself, or the one in a scheduler file. Raises NoCluster if that has none."""
    path = Path(address)
    if not path.is_file():
        return address
    try:
        scheduler = json.loads(path.read_bytes())
        return str(scheduler["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NoCluster(address, "has no address: the file is not a scheduler file") from None


def _ignore_errors_of_dask(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore Dask's own errors: it leaves tasks that nobody awaits when data is lost.

    Other errors go to the loop's usual handler, which logs them.
    """
    module = type(context.get("exception")).__module__
    if not module.startswith("distributed"):
        loop.default_exception_handler(context)
