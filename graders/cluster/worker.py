"""What does a worker do? It says what it is, and runs one submission for each order, fenced in as on any machine.

Both functions are called by Dask, in a worker's process, and give back bytes. An error is told in words: Dask would
pickle it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Final

from graders.batch.attempt import Attempt, Terms
from graders.batch.records import encode
from graders.cluster.parcels import HASH, Introduction, Reply, pack, unpack_order, versions
from graders.cluster.workshop import Workshop
from graders.errors import BadParcel, DojoError
from graders.sandbox.examining import examine
from graders.sandbox.layers import Layers

_workshops: Final[dict[str, Workshop]] = {}
_opening: Final = threading.Lock()


async def introduced(day: str) -> bytes:
    """Dask calls this in the loop that also keeps the worker alive: nothing here may take long in it."""
    layers = await asyncio.to_thread(_layers)
    return pack(Introduction(versions(day), layers))


@functools.cache
def _layers() -> Layers:
    return examine()


def attempted(parcel: bytes) -> bytes:
    """The reply to an order."""
    try:
        number, order = unpack_order(parcel)
    except BadParcel as error:
        return pack(Reply(parcel[:HASH], refused=f"what the worker got is damaged: {error}"))
    differing = order.versions.difference(versions(order.terms.day))
    if differing is not None:
        return pack(Reply(number, refused=differing))
    try:
        record = _workshop(order.terms).record(lambda: Attempt(order.digest, order.files, order.terms))
    except DojoError as error:
        return pack(Reply(number, refused=str(error)))
    except Exception as error:
        return pack(Reply(number, refused=f"{type(error).__name__}: {error}"))
    return pack(Reply(number, record=encode(record)))


def _workshop(terms: Terms) -> Workshop:
    """One for each bench, since what its children may use is settled when a nursery begins."""
    with _opening:
        if terms.bench not in _workshops:
            _workshops[terms.bench] = Workshop(terms)
        return _workshops[terms.bench]
