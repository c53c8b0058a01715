"""Evidence of a day's reference solutions, which a release ships in place of the solutions."""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from virtual_cuda.ledger import MOST_CALLS, Timeline

from gpudojo.model.errors import BadEvidence, NoSuchSeed, NotRecorded
from gpudojo.model.evidence import (
    LARGEST,
    Evidence,
    decode_evidence,
    decode_untrusted_bytes,
    require_valid_timeline,
)

SHIPPED_FOLDER: Final = Path(__file__).parent / "of_reference"
SHIPPED_SUFFIX: Final = ".mp"
VERSION: Final = 1
# The first is what students try by themselves, and what pictures of the reference are of.
PUBLIC_SEEDS: Final = (8, 9, 10)
UNKNOWN_SIGNATURE: Final = "(…)"


class ShippedEvidence(msgspec.Struct, frozen=True):
    """The evidence of a day's reference solutions, as a release ships it."""

    day: str
    seeds: tuple[int, ...]
    signatures: dict[str, str]  # "04_…::train_epoch": "(model, loader, …)"
    evidence: dict[str, bytes]  # "8/virtual/04_…::train_epoch": compressed
    version: int = VERSION
    # "04_…::train_epoch": of its calls on the first public seed, compressed.
    timelines: dict[str, bytes] = {}
    stubs: dict[str, bytes] = {}  # the files that are handed out, by exercise, compressed

    def has_function(self, exercise: str, function: str) -> bool:
        return f"{exercise}::{function}" in self.signatures

    def signature_of(self, exercise: str, function: str) -> str:
        return self.signatures.get(f"{exercise}::{function}", UNKNOWN_SIGNATURE)

    def evidence_of(self, exercise: str, function: str, bench: str, seed: int) -> Evidence:
        """Return what the reference did on a device.

        A real GPU does what the virtual one does, within the tolerance of the checks. On the plain
        CPU only the probes that run on the chosen device see something else. Raises NoSuchSeed,
        NotRecorded for MPS, which has neither CUDA's names nor its memory, and BadEvidence where
        nothing readable is stored.
        """
        self.refuse_unknown(bench, seed)
        name = f"{exercise}::{function}"
        on_virtual = self._decode_evidence_at(f"{seed}/virtual/{name}")
        other_key = f"{seed}/{bench}/{name}"
        if bench == "virtual" or other_key not in self.evidence:
            return on_virtual
        on_other = self._decode_evidence_at(other_key)
        observations = on_virtual.observations | on_other.observations
        return msgspec.structs.replace(on_virtual, bench=bench, observations=observations)

    def stub_of(self, exercise: str) -> str | None:
        """The text of an exercise's file as it is handed out; None where the release has none."""
        text = decompress_evidence(self.stubs.get(exercise, b""))
        return text.decode() or None

    def timelines_of(self, exercise: str, function: str) -> list[Timeline]:
        """The timelines of the reference's calls, without its source lines.

        The list is empty for a function that has nothing to draw. Raises BadEvidence where the
        release has timelines that cannot be read.
        """
        packed = self.timelines.get(f"{exercise}::{function}")
        if packed is None:
            return []
        decoder = msgspec.msgpack.Decoder(list[Timeline])
        try:
            timelines = decode_untrusted_bytes(decoder.decode, decompress_evidence(packed))
        except BadEvidence as error:
            raise BadEvidence(
                f"the timelines of {function} in this release cannot be read: {error.reason}"
            ) from None
        return [require_valid_timeline(timeline) for timeline in timelines[:MOST_CALLS]]

    def refuse_unknown(self, bench: str, seed: int) -> None:
        """Refuse a device or a seed for which nothing was recorded.

        Raises NoSuchSeed for a seed that this release does not have, and NotRecorded for MPS.
        """
        if seed not in self.seeds:
            raise NoSuchSeed(seed, self.seeds)
        if bench == "mps":
            raise NotRecorded(bench)

    def _decode_evidence_at(self, key: str) -> Evidence:
        """The evidence under a key. Raises BadEvidence where nothing readable is there."""
        data = decompress_evidence(self.evidence.get(key, b""))
        if not data:
            raise BadEvidence(
                f"{self.day}{SHIPPED_SUFFIX} of this release has nothing that can be read at {key}"
            )
        return decode_evidence(data)


def compress_evidence(found: Evidence | Sequence[Timeline]) -> bytes:
    """Evidence or timelines as the compressed bytes that `ShippedEvidence` holds."""
    return zlib.compress(msgspec.msgpack.encode(found), 9)


def decompress_evidence(packed: bytes) -> bytes:
    """The decompressed bytes. They are empty where the data is damaged, cut off or too large.

    No error comes out of here.
    """
    reader = zlib.decompressobj()
    data = b""
    with contextlib.suppress(zlib.error):
        data = reader.decompress(packed, LARGEST)
    if reader.eof:
        return data
    return b""


def encode_shipped_evidence(shipped: ShippedEvidence) -> bytes:
    """The content of a file that `read_shipped_evidence` reads."""
    return msgspec.msgpack.encode(shipped, order="sorted")


@functools.cache
def read_shipped_evidence(day: str, folder: Path = SHIPPED_FOLDER) -> ShippedEvidence | None:
    """The recorded evidence of a day in this release.

    Returns None where there is no file for the day: this is no release. Raises BadEvidence for a
    file that cannot be read or that has another version. Each day is read once.
    """
    path = folder / f"{day}{SHIPPED_SUFFIX}"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        why = error.strerror or str(error)
        raise BadEvidence(f"{path.name} of this release cannot be read: {why}") from None
    decoder = msgspec.msgpack.Decoder(ShippedEvidence)
    try:
        shipped = decode_untrusted_bytes(decoder.decode, data)
    except BadEvidence as error:
        raise BadEvidence(f"{path.name} of this release cannot be read: {error.reason}") from None
    if shipped.version != VERSION:
        raise BadEvidence(
            f"{path.name} of this release has version {shipped.version}, not {VERSION}"
        )
    return shipped
