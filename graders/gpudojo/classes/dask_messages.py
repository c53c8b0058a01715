"""Messages between the grader and the workers of a Dask cluster.

Each is msgpack with a hash in front: Dask's own pickles would run code in the grader.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import importlib.metadata
import sys
from typing import Final, TypeVar

import msgspec

from gpudojo import __version__
from gpudojo.classes.fingerprints import fingerprint_of_observing
from gpudojo.classes.records import Record, decode_whole_record
from gpudojo.model.errors import BadEvidence, BadMessage
from gpudojo.model.evidence import decode_untrusted_bytes
from gpudojo.sandbox.layers import DEVICE
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

    def describe_difference(self, other: Versions) -> str | None:
        """The first difference in words, or None. It usually explains the others."""
        for name in ("python", "distributed", "torch", "gpudojo", "probes"):
            ours = getattr(self, name)
            theirs = getattr(other, name)
            if ours != theirs:
                words = {"python": "Python", "probes": "other probes:"}
                return f"it has {words.get(name, name)} {theirs}, and the grader {ours}"
        return None


class Order(msgspec.Struct, frozen=True):
    """One submission to run. It holds the seeds drawn from the secret, but not the secret."""

    versions: Versions
    digest: str
    files: dict[str, bytes]
    options: RunOptions


class Reply(msgspec.Struct, frozen=True):
    """An encoded record for the order with that hash, or the reason why there is none."""

    order: bytes
    record: bytes = b""
    refused: str = ""


class Introduction(msgspec.Struct, frozen=True):
    """A worker's versions, and its layers of isolation."""

    versions: Versions
    layers: dict[str, str]

    def for_device(self, bench: str) -> Introduction:
        """The introduction without the layer that only a real GPU needs, unless one is used."""
        if bench == "cuda":
            return self
        layers = {name: why for name, why in self.layers.items() if name != DEVICE}
        return Introduction(self.versions, layers)


@functools.cache
def versions_here(day: str) -> Versions:
    """The versions of this process, and a fingerprint of what observes on this day; found once.

    Raises OSError if sources cannot be read.
    """
    # A build for another processor or GPU is the same release: 2.13.0+cpu, 2.13.0+cu130.
    torch = importlib.metadata.version("torch").partition("+")[0]
    return Versions(
        gpudojo=__version__,
        probes=fingerprint_of_observing(day),
        torch=torch,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        distributed=importlib.metadata.version("distributed"),
    )


def pack_message(content: Order | Reply | Introduction) -> bytes:
    """The content as bytes, with their hash in front."""
    body = msgspec.msgpack.encode(content)
    return hashlib.sha256(body).digest() + body


def unpack_message(message: object, kind: type[T]) -> T:
    """The content of a message. Raises BadMessage for a changed byte or another kind."""
    if not isinstance(message, bytes) or len(message) < HASH:
        raise BadMessage("it is not a message of gpudojo")
    body = message[HASH:]
    digest = hashlib.sha256(body).digest()
    if not hmac.compare_digest(message[:HASH], digest):
        raise BadMessage("its hash does not match")
    try:
        return decode_untrusted_bytes(msgspec.msgpack.Decoder(kind).decode, body)
    except BadEvidence as error:
        raise BadMessage(error.reason) from None


def unpack_reply(message: object, order: bytes, digest: str) -> Record | str:
    """The record for the order with that hash, or the reason in words why there is none.

    `digest` is that of the submission. Raises BadMessage for a damaged reply, and for one about
    another order or submission.
    """
    reply = unpack_message(message, Reply)
    if reply.refused:
        return reply.refused
    if not hmac.compare_digest(reply.order, order):
        raise BadMessage("it answers another order")
    try:
        record = decode_whole_record(reply.record)
    except BadEvidence as error:
        raise BadMessage(str(error)) from None
    if record.digest != digest:
        raise BadMessage("it is about another submission")
    return record
