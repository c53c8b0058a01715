"""What does a worker do? It says what it is, and runs one submission for each order, fenced in as on any machine.

Its functions are called by Dask, in a worker's process, and give back bytes or nothing. An error is told in words:
Dask would pickle it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Final

from graders.batch.attempt import Attempt, Terms
from graders.batch.records import encode
from graders.cluster.parcels import HASH, Introduction, Order, Reply, pack, unpack_order, versions
from graders.cluster.workshop import Workshop
from graders.errors import BadParcel, DojoError
from graders.sandbox.examining import examine
from graders.sandbox.layers import Layers

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
