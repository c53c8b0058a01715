"""Runs submissions on a Dask cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
import uuid
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from distributed import Client, KilledWorker
from distributed.versions import VersionMismatchWarning

from gpudojo.classes import attempt, dask_messages
from gpudojo.classes.attempt import BEFORE, Terms
from gpudojo.classes.dask_messages import (
    HASH,
    Disconnected,
    Introduction,
    Order,
    Versions,
    threads_of,
    unpack_introduction,
)
from gpudojo.classes.scheduler import TICK, Watcher, Work
from gpudojo.classes.store import Incident, Record, What
from gpudojo.model.errors import BadParcel, BadWorker, NoCluster
from gpudojo.sandbox import fork_client
from gpudojo.sandbox.isolation import Layers, missing

if TYPE_CHECKING:
    from distributed import Future


ALONE: Final = 2  # workers lost with a submission, after which it gets one for itself: then it is no neighbour's fault
LOSSES: Final = 6  # so many, with no other worker lost in between, and the submission must be the reason
AT_MOST: Final = 20  # so many in all, whatever else was lost: somewhere there has to be an end
REFUSALS: Final = 4


@dataclass(eq=False)
class Errand:
    """A work, and what has kept it from being done."""

    work: Work
    losses: int = 0  # that speak against it
    all_losses: int = 0
    refusals: int = 0
    avoided: set[str] = field(default_factory=set)  # workers that have failed it

    @property
    def alone(self) -> bool:
        return self.losses >= ALONE

    def lost(self, worker: str) -> bool:
        """A worker is lost that had it; True if it is not to be tried again."""
        self.losses += 1
        self.all_losses += 1
        self.avoided.add(worker)
        return self.losses >= LOSSES or self.all_losses >= AT_MOST

    def given_up(self, why: str) -> Record:
        """What stands for a submission that no worker brings back: for a human, and never lost."""
        attempt = self.work.attempt
        attempt.record.incidents.append(Incident(What.CRASHED, BEFORE, why))
        return attempt.done(0, 0.0)


class Errands:
    """Works as they come, and before them those that came back."""

    def __init__(self, works: Iterator[Work]) -> None:
        self._works = works
        self._back: deque[Errand] = deque()
        self.done = 0

    def take(self, worker: str, workers: Collection[str], idle: bool) -> Errand | None:
        """The next one for a worker, which gets one again that it has failed only where all the others have, too."""
        for errand in self._back:
            free_to = worker not in errand.avoided or errand.avoided.issuperset(workers)
            if free_to and (idle or not errand.alone):
                self._back.remove(errand)
                return errand
        work = next(self._works, None)
        return None if work is None else Errand(work)

    def more(self) -> bool:
        """Is anything left to be sent? Where nothing came back, the next one is asked for."""
        if not self._back and (work := next(self._works, None)) is not None:
            self._back.append(Errand(work))
        return bool(self._back)

    def put_back(self, errand: Errand) -> None:
        self._back.append(errand)

    def waiting(self) -> list[Errand]:
        """Those that came back."""
        return list(self._back)

    def finish(self, errand: Errand, record: Record) -> None:
        self.done += 1
        errand.work.done(record)


PER_THREAD: Final = 2  # submissions: one runs, and one is there when it ends


@dataclass(eq=False)
class Sent:
    """A submission at a worker; it runs there if only as many came before it as that worker has other threads."""

    errand: Errand
    order: bytes  # the hash of what was sent
    future: Future[Any]
    fetching: asyncio.Task[Any]
    began: float | None = None


@dataclass(eq=False)
class Member:
    """A worker that may grade."""

    address: str
    threads: int
    sent: list[Sent] = field(default_factory=list)
    strikes: int = 0

    @property
    def running(self) -> list[Sent]:
        return self.sent[: self.threads]

    @property
    def load(self) -> float:
        return len(self.sent) / self.threads

    @property
    def room(self) -> bool:
        return len(self.sent) < PER_THREAD * self.threads and not any(sent.errand.alone for sent in self.sent)

    def begin(self) -> None:
        """The first ones run."""
        for sent in self.running:
            if sent.began is None:
                sent.began = sent.errand.work.began = time.monotonic()

    def forget(self) -> None:
        """Nobody waits any more for what it has."""
        for sent in self.sent:
            # What fetches it ends by that; cancelling it would cancel what Dask fetches together with it.
            sent.future.release()  # type: ignore[no-untyped-call]
        self.sent.clear()

    def silent(self, now: float) -> float | None:
        """Seconds for which it owes an answer, if that is longer than any submission can take."""
        for sent in self.running:
            terms = sent.errand.work.attempt.terms
            turns = self.threads if terms.bench == "cuda" else 1  # on a GPU they may have to wait for each other
            if sent.began is not None and now - sent.began > turns * patience(terms):
                return now - sent.began
        return None


def patience(terms: Terms) -> float:
    """Seconds after which a submission must be back: all it may take, twice, and the start of a nursery, each time."""
    whole = attempt.WHOLE * terms.seconds + attempt.GRACE + attempt.STARTING
    return 2 * whole + fork_client.STARTS * fork_client.STARTING


ANSWER: Final = 60.0  # seconds for a worker to say what it is: it tries its fences out first


async def meet(client: Client, workers: Sequence[str], day: str) -> dict[str, Introduction | str]:
    """What each worker says of itself, or why it could not; nothing of those that are gone before they answer."""
    asking = client.run(_introducing(), day, workers=list(workers), on_error="return")
    try:
        answers = await asyncio.wait_for(asking, ANSWER)
    except TimeoutError:
        return dict.fromkeys(workers, f"it did not say within {ANSWER:g} s what it is") if len(workers) == 1 else {}
    found: dict[str, Introduction | str] = {}
    for worker, answer in answers.items():
        if isinstance(answer, OSError):
            continue
        if isinstance(answer, str):
            found[worker] = answer
            continue
        try:
            found[worker] = unpack_introduction(answer)
        except BadParcel as error:
            found[worker] = f"what it says of itself is damaged: {error}"
    return found


def _introducing() -> Callable[[str], Coroutine[Any, Any, bytes | str]]:
    """What a worker is asked to call, sent by value: one that has no gpudojo can say so."""

    async def introduced(day: str) -> bytes | str:
        try:
            from gpudojo.classes import dask_worker as worker

            return await worker.introduced(day)
        except ImportError as error:
            return f"gpudojo with its extra `cluster` is not installed there, or not this one ({error})"
        except Exception as error:
            return f"it could not say what it is ({type(error).__name__}: {error})"

    return introduced


def objection(said: Introduction | str, ours: Versions, require_isolation: bool) -> str | None:
    """Why a worker may not grade, if so."""
    if isinstance(said, str):
        return said
    differing = ours.difference(said.versions)
    if differing is not None:
        return differing
    lacking = missing(said.layers)
    if require_isolation and lacking:
        return f"--require-isolation: {'; '.join(lacking)}"
    return None


def held_by_all(crew: Mapping[str, Layers]) -> Layers:
    """The layers of a cluster: one holds if it does on every worker, and else it is said where not."""
    found: Layers = {}
    for worker, layers in crew.items():
        for name, why in layers.items():
            if why:
                found[name] = found.get(name) or f"{why} (on {worker})"
            else:
                found.setdefault(name, "")
    return found


LOOKED: Final = 0.5  # seconds from one look at who is there to the next


@dataclass(frozen=True)
class Wishes:
    """What a run on a cluster goes by."""

    address: str  # of the scheduler
    day: str
    versions: Versions
    require_isolation: bool
    wait: float  # seconds without any worker
    tell: Callable[[str], None]
    watch: Callable[[list[Work]], None]


class Roster:
    """The workers of one connection: those that may grade, and those that may not."""

    def __init__(self, client: Client, wishes: Wishes) -> None:
        self.client, self.wishes = client, wishes
        self.members: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        self._meeting: dict[str, asyncio.Task[None]] = {}
        self._alone_since = time.monotonic()

    async def follow(self, tell: Callable[[dict[str, int] | Disconnected], None]) -> None:
        """Tell again and again who is there, until the scheduler cannot be asked any more."""
        while True:
            try:
                tell(await threads_of(self.client))
            except Disconnected as lost:
                tell(lost)
                return
            await asyncio.sleep(LOOKED)

    def there(self, threads: dict[str, int]) -> list[Member]:
        """Those are there now; gives the members that are not among them, and looks at who is new."""
        for address, count in threads.items():
            if address in self.members:
                self.members[address].threads = max(1, count)
            elif address not in self.refused and address not in self._meeting:
                self._meeting[address] = asyncio.create_task(self._meet(address, count))
        return [member for address, member in self.members.items() if address not in threads]

    async def _meet(self, address: str, threads: int) -> None:
        try:
            said: Introduction | str | None = (await meet(self.client, [address], self.wishes.day)).get(address)
        except (OSError, RuntimeError, AttributeError):
            said = None  # whoever follows the scheduler finds out
        del self._meeting[address]
        if said is None:
            return
        why = objection(said, self.wishes.versions, self.wishes.require_isolation)
        if why is None:
            self.members[address] = Member(address, max(1, threads))
        else:
            self.dismiss(address, why)

    def dismiss(self, address: str, why: str) -> None:
        """It gets nothing any more."""
        self.members.pop(address, None)
        self.refused[address] = why
        self.wishes.tell(f"the worker {address} is not used: {why}")

    def deserted(self, now: float) -> None:
        """Raises where nobody has been there for too long."""
        if self.members:
            self._alone_since = now
        elif now - self._alone_since > self.wishes.wait:
            why = next(iter(self.refused.values()), "")
            said = f"; one that is there cannot be used: {why}" if why else ""
            raise NoCluster(self.wishes.address, f"has had no workers for {self.wishes.wait:g} s{said}", kept=True)

    def close(self) -> None:
        for task in self._meeting.values():
            task.cancel()


STRIKES: Final = 3  # refusals, one right after another, that end the service of a worker


class Foreman:
    """Has errands done over one connection to a scheduler."""

    def __init__(self, client: Client, wishes: Wishes, errands: Errands) -> None:
        self.client, self.wishes, self.errands = client, wishes, errands
        self.roster = Roster(client, wishes)
        self.members = self.roster.members
        self._news: deque[Any] = deque()
        self._bell = asyncio.Event()
        self._run = uuid.uuid4().hex
        self._count = 0

    async def run(self) -> None:
        """Until nothing is left; raises `Disconnected`, and has put back then what was not done."""
        following = asyncio.create_task(self.roster.follow(self._tell))
        last = 0.0
        try:
            while True:
                self._send_all_that_fits()
                if not any(m.sent for m in self.members.values()) and not self.errands.more():
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), TICK)
                self._bell.clear()
                while self._news:
                    self._hear(self._news.popleft())
                now = time.monotonic()
                if now - last >= TICK:
                    last = now
                    self._overdue(now)
                    self.roster.deserted(now)
                    self.wishes.watch([s.errand.work for m in self.members.values() for s in m.running])
        except Disconnected:
            raise
        except BaseException:  # Ctrl-C is one: nothing that is under way is wanted any more
            await dask_messages.stop(self.client, self._run, [m.address for m in self.members.values() if m.sent])
            raise
        finally:
            following.cancel()
            self.roster.close()
            for member in self.members.values():
                self._take_back(member)

    def _tell(self, news: Any) -> None:
        self._news.append(news)
        self._bell.set()

    def _hear(self, news: Any) -> None:
        if isinstance(news, Disconnected):
            raise news
        if isinstance(news, Sent):
            self._returned(news)
        else:
            for member in self.roster.there(news):
                self._lost(member)

    def _send_all_that_fits(self) -> None:
        free = [member for member in self.members.values() if member.room]
        while free:
            member = min(free, key=lambda one: one.load)
            errand = self.errands.take(member.address, self.members, idle=not member.sent)
            if errand is not None:
                self._send(member, errand)
            if errand is None or not member.room:
                free.remove(member)

    def _send(self, member: Member, errand: Errand) -> None:
        work = errand.work.attempt
        parcel = dask_messages.pack(Order(self.wishes.versions, work.record.digest, work.files, work.terms, self._run))
        self._count += 1
        try:
            future = self.client.submit(
                dask_messages.errand_function(),
                parcel,
                key=f"dojo-{self._run}-{self._count}",  # never the same twice: no old result is taken for a new one
                workers=[member.address],
                priority=-self._count,  # first come, first served: it is known then which of them run
                pure=False,
            )
        except Exception as error:  # no narrower one, where a client has closed itself
            self.errands.put_back(errand)
            raise Disconnected(str(error)) from None
        sent = Sent(errand, parcel[:HASH], future, asyncio.create_task(dask_messages.fetched(future)))
        sent.fetching.add_done_callback(lambda task: self._tell(sent))
        member.sent.append(sent)
        member.begin()

    def _returned(self, sent: Sent) -> None:
        """Something came back from a worker."""
        member = next((m for m in self.members.values() if sent in m.sent), None)
        if member is None:
            return  # its worker was given up meanwhile, and it has been sent to another one
        reply = Disconnected("it was closed") if sent.fetching.cancelled() else sent.fetching.result()
        if isinstance(reply, Disconnected):
            raise reply
        member.sent.remove(sent)
        member.begin()
        sent.future.release()  # type: ignore[no-untyped-call]
        errand = sent.errand
        if isinstance(reply, KilledWorker | OSError):  # several with that address, or on its way from there
            self._suffered(member, [errand])
            return
        if isinstance(reply, Exception):
            reply = f"{type(reply).__name__}: {reply}"
        try:
            digest = errand.work.attempt.record.digest
            found = reply if isinstance(reply, str) else dask_messages.unpack_reply(reply, sent.order, digest)
        except BadParcel as damage:
            found = f"what it sent back is damaged: {damage}"
        if isinstance(found, str):
            self._refusal(member, errand, found)
        else:
            member.strikes = 0
            self.errands.finish(errand, found)

    def _refusal(self, member: Member, errand: Errand, why: str) -> None:
        errand.refusals += 1
        errand.avoided.add(member.address)
        member.strikes += 1
        if member.strikes >= STRIKES:
            self._take_back(member)
            self.roster.dismiss(member.address, why)
        if errand.refusals >= REFUSALS:
            self._give_up(errand, f"no worker could run it: {why}")
        else:
            self.errands.put_back(errand)

    def _lost(self, member: Member) -> None:
        """A worker is gone, and whatever it had may be the reason: of what it had finished, too, nothing has come."""
        del self.members[member.address]
        errands = [sent.errand for sent in member.sent]
        member.forget()
        if not any(errand.alone for errand in errands):
            # Workers are lost without those that were suspected, which speaks for them.
            elsewhere = [sent.errand for other in self.members.values() for sent in other.sent]
            for errand in (*self.errands.waiting(), *elsewhere):
                errand.losses = 0 if errand.alone else errand.losses
        self._suffered(member, errands)

    def _suffered(self, member: Member, errands: Sequence[Errand]) -> None:
        for errand in errands:
            if errand.lost(member.address):
                self._give_up(errand, f"the worker it was on was lost, {errand.all_losses} times one after another")
            else:
                self.errands.put_back(errand)

    def _give_up(self, errand: Errand, why: str) -> None:
        self.errands.finish(errand, errand.given_up(why))

    def _take_back(self, member: Member) -> None:
        """What a worker has is to be sent to another one, and it is not to blame."""
        for sent in member.sent:
            self.errands.put_back(sent.errand)
        member.forget()

    def _overdue(self, now: float) -> None:
        """A worker may be there and not answer."""
        for member in list(self.members.values()):
            silent = member.silent(now)
            if silent is not None:
                self._lost(member)
                self.roster.dismiss(member.address, f"it has not answered for {silent:.0f} s")


FIRST: Final = 10.0  # seconds to reach a scheduler that has not been reached before
ONCE: Final = 5.0  # seconds for one try of several
SETBACKS: Final = 5  # connections lost, one right after another, without anything done between them
AGAIN: Final = 0.5  # seconds between two tries
OBJECT: Final = re.compile(r"^in <[^>]*>: ")  # where in distributed it happened, which tells nobody anything


T = TypeVar("T")


class Cluster:
    """A runner of works: the workers of a Dask scheduler, whoever has started them."""

    def __init__(self, address: str, wait: float = 60.0, require_isolation: bool = False) -> None:
        self.address = address_of(address)
        self.wait, self.require_isolation = wait, require_isolation

    def start(self, terms: Terms, watcher: Watcher) -> Layers:
        self.watcher, self.terms = watcher, terms
        self.versions = dask_messages.versions(terms.day)
        watcher.prepares(f"looking for workers at {self.address}")
        return asyncio.run(self._start())

    def run(self, works: Iterator[Work]) -> None:
        asyncio.run(self._run(Errands(works)))

    def close(self) -> None:
        """There is nothing to end: connections last as long as a run, and the workers are not ours."""

    async def _start(self) -> Layers:
        # An address that is wrong is told soon; a scheduler that was there once is worth waiting for.
        return await self._persistent(self._introduced, min(FIRST, self.wait), lambda: 0, kept=False)

    async def _introduced(self, client: Client) -> Layers:
        """Nothing is sent before every worker that is there has said that it can be used."""
        said = await self._first_workers(client)
        for worker, what in said.items():
            why = objection(what, self.versions, self.require_isolation)
            if why is not None:
                raise BadWorker(worker, why)
        threads = await dask_messages.threads_of(client)
        count = f"{len(said)} worker{'s' * (len(said) != 1)}"
        self.watcher.prepares(f"{count}, {sum(threads.get(worker, 0) for worker in said)} submissions at once")
        return held_by_all({worker: i.layers for worker, i in said.items() if isinstance(i, Introduction)})

    async def _first_workers(self, client: Client) -> dict[str, Introduction | str]:
        until = time.monotonic() + self.wait
        told = False
        while True:
            workers = list(await dask_messages.threads_of(client))
            try:
                said = await meet(client, workers, self.terms.day) if workers else {}
            except dask_messages.LOST as error:
                raise Disconnected(str(error)) from None
            if said:
                return said
            if time.monotonic() > until:
                raise NoCluster(self.address, f"has no workers, and had none for {self.wait:g} s: start some first")
            if not told:
                self.watcher.prepares(f"waiting for workers at {self.address}")
                told = True
            await asyncio.sleep(AGAIN)

    async def _run(self, errands: Errands) -> None:
        wishes = Wishes(
            self.address,
            self.terms.day,
            self.versions,
            self.require_isolation,
            self.wait,
            self.watcher.prepares,
            self.watcher.under_way,
        )
        await self._persistent(
            lambda client: Foreman(client, wishes, errands).run(), self.wait, lambda: errands.done, kept=True
        )

    async def _persistent(
        self, deed: Callable[[Client], Awaitable[T]], seconds: float, done: Callable[[], int], kept: bool
    ) -> T:
        """What comes of a deed, which is begun again over another connection where one is lost.

        The scheduler is looked for so many seconds; once it has been there, as long as the grader is willing to wait.
        """
        asyncio.get_running_loop().set_exception_handler(_unheard)
        setbacks = 0
        while True:
            before = done()
            try:
                async with self._connected(seconds, kept) as client:
                    return await deed(client)
            except Disconnected as lost:
                setbacks = 1 if done() > before else setbacks + 1
                if setbacks > SETBACKS:
                    why = f"was lost {setbacks} times one after another ({lost})"
                    raise NoCluster(self.address, why, kept) from None
                seconds = self.wait
                self.watcher.prepares(f"the scheduler at {self.address} is lost; trying to reach it again")
                await asyncio.sleep(AGAIN)

    @contextlib.asynccontextmanager
    async def _connected(self, seconds: float, kept: bool) -> AsyncIterator[Client]:
        """A connection, tried for so long."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # workers are asked, and a sentence is made of it
            warnings.filterwarnings("ignore", "Sending large graph")  # a submission is as large as it is
            client = await self._reached(time.monotonic() + seconds, seconds, kept)
            _quiet()
            try:
                yield client
            finally:
                await _closed(client)

    async def _reached(self, until: float, seconds: float, kept: bool) -> Client:
        while True:
            try:
                return await _client(self.address, max(0.1, min(ONCE, until - time.monotonic())))
            except (OSError, TimeoutError) as error:
                if time.monotonic() > until:
                    cause = error.__cause__ or error
                    said = OBJECT.sub("", str(cause)).strip() or "it does not answer"
                    why = f"cannot be reached, tried for {seconds:g} s ({said})"
                    raise NoCluster(self.address, why, kept) from None
            except (ValueError, TypeError, RuntimeError, ImportError) as error:
                raise NoCluster(self.address, f"cannot be spoken to: {error}", kept) from None
            await asyncio.sleep(AGAIN)


async def _client(address: str, seconds: float) -> Client:
    client = Client(address, asynchronous=True, timeout=seconds, set_as_default=False)  # type: ignore[no-untyped-call]
    try:
        await client
    except BaseException:
        await _closed(client)
        raise
    return client


async def _closed(client: Client) -> None:
    with contextlib.suppress(OSError, TimeoutError, RuntimeError):
        await client.close(timeout=ONCE)  # type: ignore[no-untyped-call]


def address_of(given: str) -> str:
    """The address itself, or the one in the file that a scheduler writes when it is asked to."""
    path = Path(given)
    if not path.is_file():
        return given
    try:
        return str(json.loads(path.read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NoCluster(given, "is not named there: it is no scheduler file") from None


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Dask leaves tasks behind whose errors nobody hears, when data is lost with a worker; ours are all heard."""
    if not type(context.get("exception")).__module__.startswith("distributed"):
        loop.default_exception_handler(context)


def _quiet() -> None:
    """What Dask would write to the terminal is said by the display, or does not matter."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
