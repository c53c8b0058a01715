"""Messages between the grader and Dask workers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import importlib.metadata
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec
from distributed.client import FutureCancelledError, FuturesCancelledError

from gpudojo import __version__
from gpudojo.classes import options
from gpudojo.classes.attempt import Terms
from gpudojo.classes.store import Record, decode
from gpudojo.model.errors import BadEvidence, BadParcel

if TYPE_CHECKING:
    from distributed import Client, Future


HASH: Final = 32  # bytes of a SHA-256


class Versions(msgspec.Struct, frozen=True):
    """What decides what evidence says, and whether two machines understand each other."""

    gpudojo: str
    probes: str  # the fingerprint of their sources
    torch: str
    python: str
    distributed: str

    def difference(self, there: Versions) -> str | None:
        """In words, where the other one is not the same; the first that differs explains those after it."""
        for name in ("python", "distributed", "torch", "gpudojo", "probes"):
            ours, theirs = getattr(self, name), getattr(there, name)
            if ours != theirs:
                called = {"python": "Python", "probes": "other probes:"}.get(name, name)
                return f"it has {called} {theirs}, and the grader {ours}"
        return None


class Order(msgspec.Struct, frozen=True):
    """One submission, and everything that decides what becomes of it; of the secret, the seeds drawn from it."""

    versions: Versions
    digest: str
    files: dict[str, bytes]
    terms: Terms
    run: str = ""  # of the grader, who may say on the way that nobody waits for it any more


class Reply(msgspec.Struct, frozen=True):
    """What became of the order with that hash: an encoded record, or why there is none."""

    order: bytes
    record: bytes = b""
    refused: str = ""


class Introduction(msgspec.Struct, frozen=True):
    """What a worker says of itself."""

    versions: Versions
    layers: dict[str, str]  # of isolation, each with the reason why it does not hold


@functools.cache
def versions(day: str) -> Versions:
    """Of this process."""
    # A build for another processor or GPU has the same release and another name: 2.13.0+cpu, 2.13.0+cu130.
    torch = importlib.metadata.version("torch").partition("+")[0]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    probes = options.of_probes_alone(day)
    return Versions(__version__, probes, torch, python, importlib.metadata.version("distributed"))


def pack(content: Order | Reply | Introduction) -> bytes:
    """A parcel: the hash, then what it is the hash of."""
    body = msgspec.msgpack.encode(content)
    return hash_of(body) + body


def hash_of(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def unpack_order(parcel: object) -> tuple[bytes, Order]:
    """An order with its hash; raises where anything of it has changed on the way."""
    body = _body(parcel)
    try:
        return hash_of(body), msgspec.msgpack.decode(body, type=Order)
    except msgspec.DecodeError as error:
        raise BadParcel(str(error)) from None


def unpack_introduction(parcel: object) -> Introduction:
    try:
        return msgspec.msgpack.decode(_body(parcel), type=Introduction)
    except msgspec.DecodeError as error:
        raise BadParcel(str(error)) from None


def unpack_reply(parcel: object, order: bytes, digest: str) -> Record | str:
    """The record that an order asked for, or the reason why there is none; raises where it is not that order's."""
    try:
        reply = msgspec.msgpack.decode(_body(parcel), type=Reply)
        if reply.refused:
            return reply.refused
        if not hmac.compare_digest(reply.order, order):
            raise BadParcel("it answers another order")
        record = decode(reply.record)
    except (msgspec.DecodeError, BadEvidence) as error:
        raise BadParcel(str(error)) from None
    if record.digest != digest:
        raise BadParcel("it is about another submission")
    return record


def _body(parcel: object) -> bytes:
    if not isinstance(parcel, bytes) or len(parcel) < HASH:
        raise BadParcel("it is no parcel")
    if not hmac.compare_digest(parcel[:HASH], hash_of(parcel[HASH:])):
        raise BadParcel("its hash is another one")
    return parcel[HASH:]


ANSWER: Final = 30.0  # seconds for the scheduler to say who is there
STOPPING: Final = 3.0  # seconds for the workers to hear that nobody waits any more
# What a client raises where its scheduler is gone; AttributeError: it has closed itself.
LOST: Final = (OSError, TimeoutError, RuntimeError, AttributeError)


class Disconnected(Exception):
    """The scheduler is gone, or has forgotten what it was asked."""


def errand_function() -> Callable[[bytes], bytes | str]:
    """What a worker is asked to call."""

    def attempted(parcel: bytes) -> bytes | str:
        try:
            from gpudojo.classes import dask_worker as worker

            return worker.attempted(parcel)
        except Exception as error:  # Dask would pickle it, and a client that cannot unpickle it would wait for ever
            return f"{type(error).__name__}: {error}"

    return attempted


async def fetched(future: Future[Any]) -> Any:
    """The reply, or the error that there is in its place."""
    try:
        return await future.result()
    except (FutureCancelledError, FuturesCancelledError) as error:
        return Disconnected(str(error))
    except Exception as error:
        return error


async def threads_of(client: Client) -> dict[str, int]:
    """Who is there, with how many threads; raises `Disconnected` where the scheduler does not say so in time."""
    try:
        found: dict[str, int] = await asyncio.wait_for(client.nthreads(), ANSWER)  # type: ignore[no-untyped-call]
    except LOST as error:
        raise Disconnected(str(error) or "it does not answer") from None
    return found


async def stop(client: Client, run: str, workers: Collection[str]) -> None:
    """Tell workers that nobody waits for that run any more; who does not hear it ends what it has, and it is lost."""

    def stopped(run: str) -> None:
        from gpudojo.classes import dask_worker as worker

        worker.stopped(run)

    with contextlib.suppress(*LOST):
        await asyncio.wait_for(client.run(stopped, run, workers=list(workers), on_error="ignore"), STOPPING)
