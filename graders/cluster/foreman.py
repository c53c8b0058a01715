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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from distributed import KilledWorker

from graders.batch.scheduler import TICK
from graders.cluster import parcels, post
from graders.cluster.errands import REFUSALS, Errand, Errands
from graders.cluster.members import Member, Sent
from graders.cluster.parcels import HASH, Order
from graders.cluster.post import Disconnected
from graders.cluster.roster import Roster, Wishes
from graders.errors import BadParcel

if TYPE_CHECKING:
    from distributed import Client

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
            await post.stop(self.client, self._run, [m.address for m in self.members.values() if m.sent])
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
        parcel = parcels.pack(Order(self.wishes.versions, work.record.digest, work.files, work.terms, self._run))
        self._count += 1
        try:
            future = self.client.submit(
                post.errand_function(),
                parcel,
                key=f"dojo-{self._run}-{self._count}",  # never the same twice: no old result is taken for a new one
                workers=[member.address],
                priority=-self._count,  # first come, first served: it is known then which of them run
                pure=False,
            )
        except Exception as error:  # no narrower one, where a client has closed itself
            self.errands.put_back(errand)
            raise Disconnected(str(error)) from None
        sent = Sent(errand, parcel[:HASH], future, asyncio.create_task(post.fetched(future)))
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
