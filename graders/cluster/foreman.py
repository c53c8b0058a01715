"""Who gives which worker what to do? One who sends no more than fits, and sends again what a lost worker had.

A submission is given to one named worker, so that it is known whose loss it has suffered and that no two results of it
are waited for. A worker that was lost may still finish what it had: nobody listens to that any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from distributed import KilledWorker
from distributed.client import FutureCancelledError, FuturesCancelledError

from graders.batch.scheduler import TICK, Work
from graders.cluster import crew, parcels
from graders.cluster.errands import REFUSALS, Errand, Errands
from graders.cluster.members import Member, Sent
from graders.cluster.parcels import HASH, Introduction, Order, Versions
from graders.errors import BadParcel, NoCluster

if TYPE_CHECKING:
    from distributed import Client, Future

LOOKED: Final = 0.5  # seconds from one look at who is there to the next
ANSWER: Final = 30.0  # seconds for the scheduler to say who is there
STRIKES: Final = 3  # refusals, one right after another, that end the service of a worker


class Disconnected(Exception):
    """The scheduler is gone, or has forgotten what it was asked."""


@dataclass(frozen=True)
class Wishes:
    """What a foreman goes by."""

    address: str  # of the scheduler
    day: str
    versions: Versions
    require_isolation: bool
    wait: float  # seconds without any worker
    tell: Callable[[str], None]
    watch: Callable[[list[Work]], None]


class Foreman:
    """Has errands done over one connection to a scheduler."""

    def __init__(self, client: Client, wishes: Wishes, errands: Errands) -> None:
        self.client, self.wishes, self.errands = client, wishes, errands
        self.members: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        self._meeting: dict[str, asyncio.Task[None]] = {}
        self._news: deque[Any] = deque()
        self._bell = asyncio.Event()
        self._run = uuid.uuid4().hex
        self._count = 0
        self._alone_since = time.monotonic()

    async def run(self) -> None:
        """Until nothing is left; raises `Disconnected`, and has put back then what was not done."""
        following = asyncio.create_task(self._follow())
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
                    self._deserted(now)
                    self.wishes.watch([s.errand.work for m in self.members.values() for s in m.running])
        finally:
            for task in (following, *self._meeting.values()):
                task.cancel()
            for member in self.members.values():
                self._take_back(member)

    # Who is there

    async def _follow(self) -> None:
        while True:
            try:
                self._tell(await asyncio.wait_for(self.client.nthreads(), ANSWER))  # type: ignore[no-untyped-call]
            except (OSError, TimeoutError, RuntimeError, AttributeError) as error:  # AttributeError: it has closed
                self._tell(Disconnected(str(error)))
                return
            await asyncio.sleep(LOOKED)

    def _tell(self, news: Any) -> None:
        self._news.append(news)
        self._bell.set()

    def _hear(self, news: Any) -> None:
        if isinstance(news, Disconnected):
            raise news
        if isinstance(news, Sent):
            self._returned(news)
        else:
            self._there(news)

    def _there(self, threads: dict[str, int]) -> None:
        for address in [known for known in self.members if known not in threads]:
            self._lost(self.members[address])
        for address, count in threads.items():
            if address in self.members:
                self.members[address].threads = max(1, count)
            elif address not in self.refused and address not in self._meeting:
                self._meeting[address] = asyncio.create_task(self._meet(address, count))

    async def _meet(self, address: str, threads: int) -> None:
        try:
            said: Introduction | str | None = (await crew.meet(self.client, [address], self.wishes.day)).get(address)
        except (OSError, RuntimeError, AttributeError):
            said = None  # whoever follows the scheduler finds out
        del self._meeting[address]
        if said is None:
            return
        why = crew.objection(said, self.wishes.versions, self.wishes.require_isolation)
        if why is None:
            self.members[address] = Member(address, max(1, threads))
        else:
            self._dismiss(address, why)

    def _dismiss(self, address: str, why: str) -> None:
        self.refused[address] = why
        self.wishes.tell(f"the worker {address} is not used: {why}")

    def _deserted(self, now: float) -> None:
        if self.members:
            self._alone_since = now
        elif now - self._alone_since > self.wishes.wait:
            why = next(iter(self.refused.values()), "")
            said = f"; one that is there cannot be used: {why}" if why else ""
            raise NoCluster(self.wishes.address, f"has had no workers for {self.wishes.wait:g} s{said}", kept=True)

    # What they do

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
        parcel = parcels.pack(Order(self.wishes.versions, work.record.digest, work.files, work.terms))
        self._count += 1
        try:
            future = self.client.submit(
                errand_function(),
                parcel,
                key=f"dojo-{self._run}-{self._count}",  # never the same twice: no old result is taken for a new one
                workers=[member.address],
                priority=-self._count,  # first come, first served: it is known then which of them run
                pure=False,
            )
        except Exception as error:  # no narrower one, where a client has closed itself
            self.errands.put_back(errand)
            raise Disconnected(str(error)) from None
        sent = Sent(errand, parcel[:HASH], future, asyncio.create_task(_fetched(future)))
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
            found = reply if isinstance(reply, str) else parcels.unpack_reply(reply, sent.order, digest)
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
            del self.members[member.address]
            self._take_back(member)
            self._dismiss(member.address, why)
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
                self._dismiss(member.address, f"it has not answered for {silent:.0f} s")


def errand_function() -> Callable[[bytes], bytes | str]:
    """What a worker is asked to call. A function within a function goes by value: the scheduler needs no gpudojo."""

    def attempted(parcel: bytes) -> bytes | str:
        try:
            from graders.cluster import worker

            return worker.attempted(parcel)
        except Exception as error:  # Dask would pickle it, and a client that cannot unpickle it would wait for ever
            return f"{type(error).__name__}: {error}"

    return attempted


async def _fetched(future: Future[Any]) -> Any:
    """The reply, or the error that there is in its place."""
    try:
        return await future.result()
    except (FutureCancelledError, FuturesCancelledError) as error:
        return Disconnected(str(error))
    except Exception as error:
        return error
