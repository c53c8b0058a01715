"""What did the reference do, where there is no reference? A release ships its evidence, for some seeds.

A file for each day, inside the package: MessagePack, in which every function's evidence is compressed by itself, so
that a run reads only what it judges. It holds what came of the reference, not a line of it.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from graders.bench.ledger.timeline import MOST_CALLS, Timeline, checked
from graders.errors import BadEvidence, NoSuchSeed, NotRecorded
from graders.evidence.coding import LARGEST, decode, encode
from graders.evidence.structs import Evidence

FOLDER: Final = Path(__file__).parent / "of_reference"
SUFFIX: Final = ".mp"
VERSION: Final = 1
# The first is what students try by themselves, and what pictures of the reference are of.
PUBLIC_SEEDS: Final = (8, 9, 10)


class Shipped(msgspec.Struct, frozen=True):
    """A day's evidence."""

    day: str
    seeds: tuple[int, ...]
    signatures: dict[str, str]  # "04_…::train_epoch": "(model, loader, …)"
    evidence: dict[str, bytes]  # "8/virtual/04_…::train_epoch": compressed
    version: int = VERSION
    timelines: dict[str, bytes] = {}  # "04_…::train_epoch": of its calls on the first public seed, compressed

    def has(self, exercise: str, function: str) -> bool:
        return f"{exercise}::{function}" in self.signatures

    def signature(self, exercise: str, function: str) -> str:
        return self.signatures.get(f"{exercise}::{function}", "(…)")

    def evidence_of(self, exercise: str, function: str, bench: str, seed: int) -> Evidence:
        """What the reference did on a bench.

        A real GPU does what the virtual one does, within the tolerance of the checks. On the plain CPU only the probes
        that run on the chosen bench see something else. MPS has neither CUDA's names nor its memory.
        """
        self.refuse_unknown(bench, seed)
        name = f"{exercise}::{function}"
        found = self._decoded(f"{seed}/virtual/{name}")
        other = f"{seed}/{bench}/{name}"
        if bench == "virtual" or other not in self.evidence:
            return found
        return msgspec.structs.replace(
            found, bench=bench, observations=found.observations | self._decoded(other).observations
        )

    def timelines_of(self, exercise: str, function: str) -> list[Timeline]:
        """What the reference's calls did, without a line of it; of functions that have nothing to draw, nothing."""
        packed = self.timelines.get(f"{exercise}::{function}")
        if packed is None:
            return []
        try:
            found = msgspec.msgpack.decode(_unpacked(packed), type=list[Timeline])
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadEvidence(f"the timelines of {function} in this release cannot be read: {error}") from None
        return [checked(timeline) for timeline in found[:MOST_CALLS]]

    def refuse_unknown(self, bench: str, seed: int) -> None:
        """Raises where nothing was recorded that a run on this bench with this seed could be judged by."""
        if seed not in self.seeds:
            raise NoSuchSeed(seed, self.seeds)
        if bench == "mps":
            raise NotRecorded(bench)

    def _decoded(self, key: str) -> Evidence:
        data = _unpacked(self.evidence.get(key, b""))
        if not data:
            raise BadEvidence(f"{self.day}{SUFFIX} of this release has nothing that can be read at {key}")
        return decode(data)


def _unpacked(packed: bytes) -> bytes:
    """What was compressed; nothing where that is not all there."""
    reader, data = zlib.decompressobj(), b""
    with contextlib.suppress(zlib.error):
        data = reader.decompress(packed, LARGEST)
    return data if reader.eof else b""


def pack(shipped: Shipped) -> bytes:
    return msgspec.msgpack.encode(shipped, order="sorted")


def compressed(evidence: Evidence) -> bytes:
    return zlib.compress(encode(evidence), 9)


def compressed_timelines(timelines: Sequence[Timeline]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(timelines), 9)


@functools.cache
def shipped(day: str, folder: Path = FOLDER) -> Shipped | None:
    """What a release has of a day; None where this is no release."""
    path = folder / f"{day}{SUFFIX}"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.msgpack.decode(data, type=Shipped)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadEvidence(f"{path.name} of this release cannot be read: {error}") from None
    if found.version != VERSION:
        raise BadEvidence(f"{path.name} of this release has version {found.version}, not {VERSION}")
    return found
