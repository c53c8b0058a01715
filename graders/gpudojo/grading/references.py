"""What a file is judged by: the reference solution, or evidence of it that a release ships."""

from __future__ import annotations

import contextlib
import functools
import inspect
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from virtual_cuda.ledger import MOST_CALLS, Timeline

from gpudojo.grading.load import load
from gpudojo.model.catalogue import day_of, day_with
from gpudojo.model.errors import BadEvidence, NoReference, NoSuchSeed, NotRecorded, ReferenceFails
from gpudojo.model.evidence import (
    LARGEST,
    CallStatus,
    Evidence,
    checked_timeline,
    decode_evidence,
    decoded,
)
from gpudojo.model.exercise import Exercise, Function

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
        """What the reference did on a device.

        A real GPU does what the virtual one does, within the tolerance of the checks. On the plain CPU only the probes
        that run on the chosen device see something else. MPS has neither CUDA's names nor its memory.
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
            found = decoded(msgspec.msgpack.Decoder(list[Timeline]).decode, _unpacked(packed))
        except BadEvidence as error:
            raise BadEvidence(f"the timelines of {function} in this release cannot be read: {error.reason}") from None
        return [checked_timeline(timeline) for timeline in found[:MOST_CALLS]]

    def refuse_unknown(self, bench: str, seed: int) -> None:
        """Raises where nothing was recorded that a run on this device with this seed could be judged by."""
        if seed not in self.seeds:
            raise NoSuchSeed(seed, self.seeds)
        if bench == "mps":
            raise NotRecorded(bench)

    def _decoded(self, key: str) -> Evidence:
        data = _unpacked(self.evidence.get(key, b""))
        if not data:
            raise BadEvidence(f"{self.day}{SUFFIX} of this release has nothing that can be read at {key}")
        return decode_evidence(data)


def _unpacked(packed: bytes) -> bytes:
    """What was compressed; nothing where that is not all there."""
    reader, data = zlib.decompressobj(), b""
    with contextlib.suppress(zlib.error):
        data = reader.decompress(packed, LARGEST)
    return data if reader.eof else b""


def pack(shipped: Shipped) -> bytes:
    return msgspec.msgpack.encode(shipped, order="sorted")


def compressed(found: Evidence | Sequence[Timeline]) -> bytes:
    """Evidence, or timelines, as `Shipped` holds it."""
    return zlib.compress(msgspec.msgpack.encode(found), 9)


@functools.cache
def shipped(day: str, folder: Path = FOLDER) -> Shipped | None:
    """What a release has of a day; None where this is no release."""
    path = folder / f"{day}{SUFFIX}"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = decoded(msgspec.msgpack.Decoder(Shipped).decode, data)
    except BadEvidence as error:
        raise BadEvidence(f"{path.name} of this release cannot be read: {error.reason}") from None
    if found.version != VERSION:
        raise BadEvidence(f"{path.name} of this release has version {found.version}, not {VERSION}")
    return found


class Reference(Protocol):
    """What a student's evidence is compared with."""

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence: ...

    def signature(self, exercise: Exercise, function: Function) -> str: ...

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """What its calls did when it was recorded; of a reference that runs here, nothing: it can be watched."""
        ...


def refuse_failing(reference: Evidence) -> None:
    """Raises ReferenceFails where the reference did not return in a scenario, or a probe could not use its result."""
    for scenario, seen in reference.observations.items():
        if seen.status is not CallStatus.RETURNED:
            why = f"{seen.raised.type}: {seen.raised.message}" if seen.raised else f"it is {seen.status}"
            raise ReferenceFails(reference.function, scenario, why, seen.raised.source if seen.raised else "")


class Written:
    """A reference solution, run on the same scenarios; with `keep`, once for each function, device and seed."""

    def __init__(self, path: Path, keep: bool = False) -> None:
        self.path, self.keep = path, keep
        self.solution = load(path)
        self._known: dict[tuple[str, str, int], Evidence] = {}

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        from gpudojo.grading.observe import observe  # torch, which a grader of classes never needs

        key = (function.name, kind, seed)
        if key in self._known:
            return self._known[key]
        wanted = observe(exercise, function, self.solution, kind, seed)
        refuse_failing(wanted)
        if self.keep:
            self._known[key] = wanted
        return wanted

    def signature(self, exercise: Exercise, function: Function) -> str:
        try:
            return str(inspect.signature(self.solution.names[function.name]))
        except (KeyError, TypeError, ValueError):
            return "(…)"

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        return []


class Recorded:
    """What a reference solution did when the release was made; it is not here."""

    def __init__(self, recorded: Shipped) -> None:
        self.recorded = recorded

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        from virtual_cuda import choose_device

        return self.recorded.evidence_of(exercise.stem, function.name, choose_device(kind)[0], seed)

    def signature(self, exercise: Exercise, function: Function) -> str:
        return self.recorded.signature(exercise.stem, function.name)

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        try:
            return self.recorded.timelines_of(exercise.stem, function.name)
        except BadEvidence:
            return []  # a picture less is no reason not to judge


def reference_for(path: Path, exercise: Exercise) -> Reference:
    """The reference of one exercise, for a student's file or notebook. Raises NoReference."""
    recorded = recorded_for(path, exercise)
    return Recorded(recorded) if recorded else Written(reference_of(path.with_name(f"{exercise.stem}.py")))


def recorded_for(path: Path, exercise: Exercise) -> Shipped | None:
    """What a file is judged by where there is no reference solution; None where there is one, or neither."""
    try:
        reference_of(path.with_name(f"{exercise.stem}.py"))
    except NoReference:
        name = day_with(exercise)
        return None if name is None else shipped(name)
    return None


def refuse_unrecorded(path: Path, exercise: Exercise, kind: str, seed: int) -> None:
    """Raises where a file would be judged by recorded evidence, and there is none for this device or seed."""
    if recorded := recorded_for(path, exercise):
        recorded.refuse_unknown(kind, seed)


def known_seeds(path: Path, exercise: Exercise) -> tuple[int, ...] | None:
    """The seeds a file can be judged on; None: any, or it cannot be judged at all."""
    recorded = recorded_for(path, exercise)
    return None if recorded is None else recorded.seeds


def reference_of(path: Path) -> Path:
    """The reference solution for a student's file: `reference/DAY/` in a folder above it, or above this package."""
    day = day_of(path) or path.parent.name
    for folder in (*path.resolve().parents, *Path(__file__).resolve().parents):
        candidate = folder / "reference" / day / path.name
        if candidate.is_file():
            return candidate
    raise NoReference(path.name)
