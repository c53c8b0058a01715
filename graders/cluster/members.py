"""What does a worker have to do just now? So many submissions that none of its threads waits, and in a known order."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from graders.batch import attempt
from graders.batch.attempt import Terms
from graders.cluster.errands import Errand
from graders.sandbox import keeper

if TYPE_CHECKING:
    from distributed import Future

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
    return 2 * whole + keeper.STARTS * keeper.STARTING
