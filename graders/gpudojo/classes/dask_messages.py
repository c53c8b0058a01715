"""Messages between the grader and Dask workers: typed data with a hash, never pickled objects."""

from __future__ import annotations

import functools
import hashlib
import hmac
import importlib.metadata
import sys
from typing import Final, TypeVar

import msgspec

from gpudojo import __version__
from gpudojo.classes import grading_options
from gpudojo.classes.store import Record, decode
from gpudojo.model.errors import BadEvidence, BadMessage
from gpudojo.sandbox.protocol import RunOptions

HASH: Final = 32  # bytes of a SHA-256
T = TypeVar("T")


class Versions(msgspec.Struct, frozen=True):
    """What evidence depends on, and whether two machines understand each other."""

    gpudojo: str
    probes: str  # the fingerprint of their sources
    torch: str
    python: str
    distributed: str

    def difference(self, there: Versions) -> str | None:
        """The first difference in words, or None; it usually explains the others."""
        for name in ("python", "distributed", "torch", "gpudojo", "probes"):
            ours, theirs = getattr(self, name), getattr(there, name)
            if ours != theirs:
                called = {"python": "Python", "probes": "other probes:"}.get(name, name)
                return f"it has {called} {theirs}, and the grader {ours}"
        return None


class Order(msgspec.Struct, frozen=True):
    """One submission to run. It holds the seeds that were drawn from the secret, but not the secret."""

    versions: Versions
    digest: str
    files: dict[str, bytes]
    options: RunOptions
    run: str = ""  # the run of the grader that it belongs to


class Reply(msgspec.Struct, frozen=True):
    """An encoded record for the order with that hash, or the reason why there is none."""

    order: bytes
    record: bytes = b""
    refused: str = ""


class Introduction(msgspec.Struct, frozen=True):
    """A worker's versions, and its layers of isolation."""

    versions: Versions
    layers: dict[str, str]


@functools.cache
def versions(day: str) -> Versions:
    """The versions of this process."""
    # A build for another processor or GPU has the same release and another name: 2.13.0+cpu, 2.13.0+cu130.
    torch = importlib.metadata.version("torch").partition("+")[0]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    probes = grading_options.of_probes_alone(day)
    return Versions(__version__, probes, torch, python, importlib.metadata.version("distributed"))


def pack(content: Order | Reply | Introduction) -> bytes:
    """The content as bytes, with their hash in front."""
    body = msgspec.msgpack.encode(content)
    return hashlib.sha256(body).digest() + body


def unpack(message: object, kind: type[T]) -> T:
    """The content of a message; raises BadMessage where a byte has changed or it is of another kind."""
    if not isinstance(message, bytes) or len(message) < HASH:
        raise BadMessage("it is not a message of gpudojo")
    if not hmac.compare_digest(message[:HASH], hashlib.sha256(message[HASH:]).digest()):
        raise BadMessage("its hash does not match")
    try:
        return msgspec.msgpack.decode(message[HASH:], type=kind)
    except msgspec.DecodeError as error:
        raise BadMessage(str(error)) from None


def unpack_reply(message: object, order: bytes, digest: str) -> Record | str:
    """The record for an order, or the reason why there is none; raises BadMessage where it answers another order."""
    reply = unpack(message, Reply)
    if reply.refused:
        return reply.refused
    if not hmac.compare_digest(reply.order, order):
        raise BadMessage("it answers another order")
    try:
        record = decode(reply.record)
    except BadEvidence as error:
        raise BadMessage(str(error)) from None
    if record.digest != digest:
        raise BadMessage("it is about another submission")
    return record
