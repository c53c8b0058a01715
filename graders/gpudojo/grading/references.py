"""What a file is judged by: the reference solution, or evidence of it from a release or a cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import platform
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from virtual_cuda.ledger import MOST_CALLS, Timeline

from gpudojo.grading.load import load_submission
from gpudojo.model.catalogue import day_of_exercise, day_of_file, registered_days
from gpudojo.model.errors import BadEvidence, NoReference, NoSuchSeed, NotRecorded, ReferenceFails
from gpudojo.model.evidence import (
    LARGEST,
    CallStatus,
    Evidence,
    decode_evidence,
    decode_untrusted,
    require_valid_timeline,
)
from gpudojo.model.exercise import Exercise, Function

SHIPPED_FOLDER: Final = Path(__file__).parent / "of_reference"
SHIPPED_SUFFIX: Final = ".mp"
VERSION: Final = 1
# The first is what students try by themselves, and what pictures of the reference are of.
PUBLIC_SEEDS: Final = (8, 9, 10)


class ShippedEvidence(msgspec.Struct, frozen=True):
    """The evidence of a day's reference solutions, as a release ships it."""

    day: str
    seeds: tuple[int, ...]
    signatures: dict[str, str]  # "04_…::train_epoch": "(model, loader, …)"
    evidence: dict[str, bytes]  # "8/virtual/04_…::train_epoch": compressed
    version: int = VERSION
    # "04_…::train_epoch": of its calls on the first public seed, compressed.
    timelines: dict[str, bytes] = {}

    def has(self, exercise: str, function: str) -> bool:
        return f"{exercise}::{function}" in self.signatures

    def signature(self, exercise: str, function: str) -> str:
        return self.signatures.get(f"{exercise}::{function}", "(…)")

    def evidence_of(self, exercise: str, function: str, bench: str, seed: int) -> Evidence:
        """Return what the reference did on a device.

        A real GPU does what the virtual one does, within the tolerance of the checks. On the plain
        CPU only the probes that run on the chosen device see something else. Raises NoSuchSeed,
        NotRecorded for MPS, which has neither CUDA's names nor its memory, and BadEvidence where
        nothing readable is stored.
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
        """The timelines of the reference's calls, without its source lines.

        The list is empty for a function that has nothing to draw. Raises BadEvidence where the
        release has timelines that cannot be read.
        """
        packed = self.timelines.get(f"{exercise}::{function}")
        if packed is None:
            return []
        try:
            found = decode_untrusted(
                msgspec.msgpack.Decoder(list[Timeline]).decode, _unpacked(packed)
            )
        except BadEvidence as error:
            raise BadEvidence(
                f"the timelines of {function} in this release cannot be read: {error.reason}"
            ) from None
        return [require_valid_timeline(timeline) for timeline in found[:MOST_CALLS]]

    def refuse_unknown(self, bench: str, seed: int) -> None:
        """Refuse a device or a seed for which nothing was recorded.

        Raises NoSuchSeed for a seed that this release does not have, and NotRecorded for MPS.
        """
        if seed not in self.seeds:
            raise NoSuchSeed(seed, self.seeds)
        if bench == "mps":
            raise NotRecorded(bench)

    def _decoded(self, key: str) -> Evidence:
        data = _unpacked(self.evidence.get(key, b""))
        if not data:
            raise BadEvidence(
                f"{self.day}{SHIPPED_SUFFIX} of this release has nothing that can be read at {key}"
            )
        return decode_evidence(data)


def _unpacked(packed: bytes) -> bytes:
    """The decompressed bytes. They are empty where the data is damaged, cut off or too large."""
    reader = zlib.decompressobj()
    data = b""
    with contextlib.suppress(zlib.error):
        data = reader.decompress(packed, LARGEST)
    return data if reader.eof else b""


def encode_shipped(shipped: ShippedEvidence) -> bytes:
    return msgspec.msgpack.encode(shipped, order="sorted")


def compress(found: Evidence | Sequence[Timeline]) -> bytes:
    """Evidence or timelines as the compressed bytes that `ShippedEvidence` holds."""
    return zlib.compress(msgspec.msgpack.encode(found), 9)


@functools.cache
def read_shipped(day: str, folder: Path = SHIPPED_FOLDER) -> ShippedEvidence | None:
    """The recorded evidence of a day in this release.

    Returns None where there is no file for the day: this is no release. Raises BadEvidence for a
    file that cannot be read or that has another version. Each day is read once.
    """
    path = folder / f"{day}{SHIPPED_SUFFIX}"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = decode_untrusted(msgspec.msgpack.Decoder(ShippedEvidence).decode, data)
    except BadEvidence as error:
        raise BadEvidence(f"{path.name} of this release cannot be read: {error.reason}") from None
    if found.version != VERSION:
        raise BadEvidence(f"{path.name} of this release has version {found.version}, not {VERSION}")
    return found


class Reference(Protocol):
    """What a student's evidence is compared with."""

    def evidence(
        self, exercise: Exercise, function: Function, kind: str, seed: int
    ) -> Evidence: ...

    def signature(self, exercise: Exercise, function: Function) -> str: ...

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """The timelines of its calls that were recorded for a release.

        The list is empty for a reference that runs here: that one can be watched.
        """
        ...


def refuse_failing(reference: Evidence) -> None:
    """Refuse evidence of a reference that does not work.

    Raises ReferenceFails where it did not return in a scenario, or a probe could not use its
    result.
    """
    for scenario, seen in reference.observations.items():
        if seen.status is not CallStatus.RETURNED:
            why = (
                f"{seen.raised.type}: {seen.raised.message}"
                if seen.raised
                else f"it is {seen.status}"
            )
            raise ReferenceFails(
                reference.function, scenario, why, seen.raised.source if seen.raised else ""
            )


class ReferenceSolution:
    """A reference solution that is run here, on the same scenarios as the student's file.

    With `keep` it is run once for each function, device and seed. Without, it is run each time.
    """

    def __init__(self, path: Path, keep: bool = False) -> None:
        self.path = path
        self.keep = keep
        self.solution = load_submission(path)
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


class CachedEvidence(msgspec.Struct, frozen=True):
    """The evidence of one function of a reference solution, in a file of the cache."""

    key: str
    signature: str
    evidence: bytes  # compressed


class CachedReference:
    """A reference solution whose evidence is kept in the user's cache.

    The solution is loaded and run only where the cache has nothing. This is for runs on a student's
    own machine: whoever can write to the cache can change what a file is compared with.
    """

    def __init__(self, path: Path, exercise: Exercise) -> None:
        self.path = path
        self.exercise = exercise
        self._known: dict[str, CachedEvidence] = {}

    @functools.cached_property
    def written(self) -> ReferenceSolution:
        return ReferenceSolution(self.path)

    def load_unless_cached(self, function: Function, kind: str, seed: int) -> None:
        """Load the solution now if the cache has no evidence, so that its first run is shorter."""
        if not self.has(function, kind, seed):
            _ = self.written

    def has(self, function: Function, kind: str, seed: int) -> bool:
        """True if the cache has what a run needs."""
        key = self._key(function, kind, seed)
        return key is not None and self._found(function, key) is not None

    def prepare(self, function: Function, kind: str, seed: int) -> None:
        """Run the reference and write its evidence to the cache.

        It deletes old files of the same function. It does nothing where evidence cannot be kept,
        and goes on where the cache cannot be written to. Raises ReferenceFails. Call it only in a
        process that has not run student code.
        """
        if (key := self._key(function, kind, seed)) is None:
            return
        seen = self.written.evidence(self.exercise, function, kind, seed)
        kept = CachedEvidence(key, self.written.signature(self.exercise, function), compress(seen))
        self._known[key] = kept
        place = self._place(function, key)
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            older = sorted(
                place.parent.glob(f"{place.stem.rpartition('-')[0]}-*{SHIPPED_SUFFIX}"),
                key=os.path.getmtime,
            )
            for path in older[:-OLDER_KEPT]:
                path.unlink(missing_ok=True)
            with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
                file.write(msgspec.msgpack.encode(kept))
            os.replace(file.name, place)  # a reader sees the whole file or none

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        if (key := self._key(function, kind, seed)) is not None and (
            kept := self._found(function, key)
        ) is not None:
            with contextlib.suppress(BadEvidence):
                return decode_evidence(_unpacked(kept.evidence))
        return self.written.evidence(exercise, function, kind, seed)

    def signature(self, exercise: Exercise, function: Function) -> str:
        kept = (each for key, each in self._known.items() if key.startswith(f"{function.name} "))
        found = next(kept, None)
        return self.written.signature(exercise, function) if found is None else found.signature

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        return []

    def _key(self, function: Function, kind: str, seed: int) -> str | None:
        """A text that changes with everything the evidence depends on.

        Returns None where that cannot be said: on a real GPU, which need not do the same tomorrow,
        or with a probe that is in none of the day's files.
        """
        from virtual_cuda.hooks import choose_device

        chosen = choose_device(kind)[0]
        day = day_of_exercise(self.exercise)
        if chosen not in ("virtual", "cpu") or day is None:
            return None
        code = [getattr(probe.look, "__code__", None) for probe in function.probes]
        if not all(
            each and registered_days()[day].folder in Path(each.co_filename).parents
            for each in code
        ):
            return None
        solution = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return f"{function.name} {self.exercise.stem} {chosen} {seed} {solution} {_graders(day)}"

    def _place(self, function: Function, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()[:24]
        return (
            cache_folder()
            / "evidence"
            / f"{self.exercise.stem}.{function.name}-{digest}{SHIPPED_SUFFIX}"
        )

    def _found(self, function: Function, key: str) -> CachedEvidence | None:
        """The cached evidence for a key.

        Returns None where the cache has nothing, something damaged, or evidence for another key.
        What is read from a file is remembered.
        """
        if key not in self._known:
            with contextlib.suppress(OSError, BadEvidence):
                data = self._place(function, key).read_bytes()
                kept = decode_untrusted(msgspec.msgpack.Decoder(CachedEvidence).decode, data)
                seen = decode_evidence(_unpacked(kept.evidence)).observations
                if kept.key == key and seen.keys() == {probe.name for probe in function.probes}:
                    self._known[key] = kept
        return self._known.get(key)


# Files of a function that the cache keeps beside a new one, of other seeds and versions.
OLDER_KEPT: Final = 7


def cache_folder() -> Path:
    """The folder for files that can be made again.

    It is `$DOJO_CACHE`, or else `gpudojo` in the folder that this system has for a user's caches.
    """
    if named := os.environ.get("DOJO_CACHE"):
        return Path(named)
    home = Path.home()
    usual = {"darwin": home / "Library" / "Caches", "win32": home / "AppData" / "Local"}.get(
        sys.platform
    )
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(variable) or usual or home / ".cache") / "gpudojo"


@functools.cache
def _graders(day: str) -> str:
    """A digest of everything, except the reference, that evidence depends on.

    That is our own code, the files of the day, Python, the machine's kind and torch. Of files it
    has names, sizes and times, not the content.
    """
    import torch

    found = hashlib.sha256(f"{sys.version} {platform.machine()} {torch.__version__}".encode())
    ours = Path(__file__).resolve().parents[1]
    for folder in (
        ours / "grading",
        ours / "model",
        ours.parent / "virtual_cuda",
        registered_days()[day].folder,
    ):
        for place, _, names in sorted(os.walk(folder)):
            if not place.endswith("__pycache__"):
                for name in sorted(names):
                    about = os.stat(os.path.join(place, name))
                    found.update(f"{place} {name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return found.hexdigest()


class RecordedReference:
    """The evidence that was recorded of a reference solution when the release was made.

    The solution itself is not here.
    """

    def __init__(self, recorded: ShippedEvidence) -> None:
        self.recorded = recorded

    def evidence(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        from virtual_cuda.hooks import choose_device

        return self.recorded.evidence_of(exercise.stem, function.name, choose_device(kind)[0], seed)

    def signature(self, exercise: Exercise, function: Function) -> str:
        return self.recorded.signature(exercise.stem, function.name)

    def timelines(self, exercise: Exercise, function: Function) -> list[Timeline]:
        try:
            return self.recorded.timelines_of(exercise.stem, function.name)
        except BadEvidence:
            return []  # a picture less is no reason not to judge


def reference_for(path: Path, exercise: Exercise) -> Reference:
    """The reference of one exercise, for a student's file or notebook.

    Raises NoReference where there is neither a solution nor recorded evidence of one.
    """
    if recorded := recorded_for(path, exercise):
        return RecordedReference(recorded)
    return CachedReference(reference_of(path.with_name(f"{exercise.stem}.py")), exercise)


def recorded_for(path: Path, exercise: Exercise) -> ShippedEvidence | None:
    """The recorded evidence that a file is judged by where there is no reference solution.

    Returns None where there is a solution, and where there is neither.
    """
    try:
        reference_of(path.with_name(f"{exercise.stem}.py"))
    except NoReference:
        name = day_of_exercise(exercise)
        return None if name is None else read_shipped(name)
    return None


def refuse_unrecorded(path: Path, exercise: Exercise, kind: str, seed: int) -> None:
    """Refuse a device or seed for which no evidence was recorded, if the file is judged by that.

    Raises NoSuchSeed or NotRecorded.
    """
    if recorded := recorded_for(path, exercise):
        recorded.refuse_unknown(kind, seed)


def known_seeds(path: Path, exercise: Exercise) -> tuple[int, ...] | None:
    """The seeds on which a file can be judged.

    Returns None where any seed can be used, and where the file cannot be judged at all.
    """
    recorded = recorded_for(path, exercise)
    return None if recorded is None else recorded.seeds


def reference_of(path: Path) -> Path:
    """The path of the reference solution for a student's file.

    It is in `reference/DAY/` in a folder above that file, or above this package. Raises NoReference
    where there is none.
    """
    day = day_of_file(path) or path.parent.name
    for folder in (*path.resolve().parents, *Path(__file__).resolve().parents):
        candidate = folder / "reference" / day / path.name
        if candidate.is_file():
            return candidate
    raise NoReference(path.name)
