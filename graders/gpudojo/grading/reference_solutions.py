"""Reference solutions that are run here, or whose evidence is kept in the user's cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec
import virtual_cuda
from virtual_cuda.ledger import Timeline

import gpudojo.grading
import gpudojo.model
from gpudojo.grading.load import load_submission
from gpudojo.grading.shipped_evidence import (
    SHIPPED_SUFFIX,
    UNKNOWN_SIGNATURE,
    compress_evidence,
    decompress_evidence,
)
from gpudojo.model.catalogue import day_of_exercise, registered_days
from gpudojo.model.errors import BadEvidence, ReferenceFails
from gpudojo.model.evidence import CallStatus, Evidence, decode_evidence, decode_untrusted_bytes
from gpudojo.model.exercise import Exercise, Function

# The packages by which evidence is made in a student's own run, besides the day.
CODE_OF_EVIDENCE: Final[tuple[ModuleType, ...]] = (virtual_cuda, gpudojo.grading, gpudojo.model)
# Files of a function that the cache keeps beside a new one, of other seeds and versions.
OLDER_KEPT: Final = 7


class ReferenceSolution:
    """A reference solution that is run here, on the same scenarios as the student's file.

    With `keep` it is run once for each function, device and seed. Without, it is run each time.
    """

    def __init__(self, path: Path, keep: bool = False) -> None:
        """Run the file of the solution, which defines its functions.

        Its errors are kept in `solution.broken`. With `keep`, evidence will be made once and
        remembered.
        """
        self.path = path
        self.keep = keep
        self.solution = load_submission(path)
        self._kept: dict[tuple[str, str, int], Evidence] = {}

    def evidence_of(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        """Run a function of it on a device of this kind, and return what the probes saw.

        With `keep` that is done once, and remembered. Raises ReferenceFails if the function does
        not work, and other DojoErrors of the device.
        """
        from gpudojo.grading.observe import (
            observe_function,  # torch, which a grader of classes never needs
        )

        key = (function.name, kind, seed)
        if key in self._kept:
            return self._kept[key]
        evidence = observe_function(exercise, function, self.solution, kind, seed)
        refuse_failing(evidence)
        if self.keep:
            self._kept[key] = evidence
        return evidence

    def signature_of(self, exercise: Exercise, function: Function) -> str:
        """The parameters of the solution's function as text; `(…)` where they are not known."""
        try:
            return str(inspect.signature(self.solution.names[function.name]))
        except (KeyError, TypeError, ValueError):
            return UNKNOWN_SIGNATURE

    def timelines_of(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """None: only a release ships timelines."""
        return []


def refuse_failing(reference: Evidence) -> None:
    """Refuse evidence of a reference that does not work.

    Raises ReferenceFails where it did not return in a scenario, or a probe could not use its
    result.
    """
    for scenario, seen in reference.observations.items():
        if seen.status is CallStatus.RETURNED:
            continue
        why = f"it is {seen.status}"
        source = ""
        if seen.raised is not None:
            why = f"{seen.raised.type}: {seen.raised.message}"
            source = seen.raised.source
        raise ReferenceFails(reference.function, scenario, why, source)


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
        """Begin without reading anything; `path` is that of the solution."""
        self.path = path
        self.exercise = exercise
        self._read: dict[str, CachedEvidence] = {}  # by key, what was read or written here

    @functools.cached_property
    def solution(self) -> ReferenceSolution:
        """The solution, whose file is run when it is first asked for."""
        return ReferenceSolution(self.path)

    def load_early(self, function: Function, kind: str, seed: int) -> None:
        """Load the solution now if the cache has no evidence, so that its first run is shorter.

        Raises OSError if the solution's file cannot be read.
        """
        if not self.has_evidence(function, kind, seed):
            _ = self.solution

    def has_evidence(self, function: Function, kind: str, seed: int) -> bool:
        """True if the cache has the evidence of a function for this device and seed.

        Raises OSError if the solution's file cannot be read.
        """
        key = self._key_of(function, kind, seed)
        if key is None:
            return False
        return self._read_cache(function, key) is not None

    def fill_cache(self, function: Function, kind: str, seed: int) -> None:
        """Run the reference and write its evidence to the cache.

        It deletes old files of the same function. It does nothing where evidence cannot be kept,
        and goes on where the cache cannot be written to. Call it only in a process that has not run
        student code. Raises ReferenceFails, other DojoErrors of the device, and OSError if the
        solution's file cannot be read.
        """
        key = self._key_of(function, kind, seed)
        if key is None:
            return
        evidence = self.solution.evidence_of(self.exercise, function, kind, seed)
        signature = self.solution.signature_of(self.exercise, function)
        cached = CachedEvidence(key, signature, compress_evidence(evidence))
        self._read[key] = cached
        with contextlib.suppress(OSError):
            self._write_cache(function, cached)

    def _write_cache(self, function: Function, cached: CachedEvidence) -> None:
        """Write a file of the cache, and delete old ones of the same function. Raises OSError."""
        target = self._file_of(function, cached.key)
        folder = target.parent
        folder.mkdir(parents=True, exist_ok=True)
        pattern = self._name_of_file(function, "*")
        older = sorted(folder.glob(pattern), key=os.path.getmtime)
        for path in older[:-OLDER_KEPT]:
            path.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(msgspec.msgpack.encode(cached))
        os.replace(file.name, target)  # a reader sees the whole file or none

    def evidence_of(self, exercise: Exercise, function: Function, kind: str, seed: int) -> Evidence:
        """The evidence in the cache; else the solution is run.

        Raises ReferenceFails, other DojoErrors of the device, and OSError if the solution's file
        cannot be read.
        """
        cached = None
        key = self._key_of(function, kind, seed)
        if key is not None:
            cached = self._read_cache(function, key)
        if cached is not None:
            with contextlib.suppress(BadEvidence):
                data = decompress_evidence(cached.evidence)
                return decode_evidence(data)
        return self.solution.evidence_of(exercise, function, kind, seed)

    def signature_of(self, exercise: Exercise, function: Function) -> str:
        """The parameters of the solution's function as text: the cached ones, if they were read.

        Otherwise the solution's file is run, if that has not been done.
        """
        for key, cached in self._read.items():
            if key.startswith(f"{function.name} "):
                return cached.signature
        return self.solution.signature_of(exercise, function)

    def timelines_of(self, exercise: Exercise, function: Function) -> list[Timeline]:
        """None: only a release ships timelines."""
        return []

    def _key_of(self, function: Function, kind: str, seed: int) -> str | None:
        """A text that changes with everything the evidence depends on.

        Returns None where that cannot be said: on a real GPU, which need not do the same tomorrow,
        or with a probe that is in none of the day's files. If the kind is "auto", patches that a
        closed device has left in torch are undone. Raises OSError if the solution's file cannot be
        read.
        """
        from virtual_cuda.hooks import choose_device

        chosen, _ = choose_device(kind)
        day = day_of_exercise(self.exercise)
        if chosen not in ("virtual", "cpu") or day is None:
            return None
        folder = registered_days()[day].folder
        for probe in function.probes:
            code = getattr(probe.look, "__code__", None)
            if code is None or folder not in Path(code.co_filename).parents:
                return None
        solution = hashlib.sha256(self.path.read_bytes()).hexdigest()
        code_of_day = _digest_of_code(day)
        asked = f"{function.name} {self.exercise.stem} {chosen} {seed}"
        return f"{asked} {solution} {code_of_day}"

    def _file_of(self, function: Function, key: str) -> Path:
        """The path of the cache's file for a key."""
        digest = hashlib.sha256(key.encode()).hexdigest()
        name = self._name_of_file(function, digest[:24])
        return cache_folder() / "evidence" / name

    def _name_of_file(self, function: Function, digest: str) -> str:
        """The name of a file of the cache; with "*" as the digest, a pattern for all of them."""
        return f"{self.exercise.stem}.{function.name}-{digest}{SHIPPED_SUFFIX}"

    def _read_cache(self, function: Function, key: str) -> CachedEvidence | None:
        """The cached evidence for a key.

        Returns None where the cache has nothing, something damaged, or evidence for another key.
        What is read from a file is remembered.
        """
        if key not in self._read:
            with contextlib.suppress(OSError, BadEvidence):
                data = self._file_of(function, key).read_bytes()
                decoder = msgspec.msgpack.Decoder(CachedEvidence)
                cached = decode_untrusted_bytes(decoder.decode, data)
                evidence = decode_evidence(decompress_evidence(cached.evidence))
                probes = {probe.name for probe in function.probes}
                if cached.key == key and evidence.observations.keys() == probes:
                    self._read[key] = cached
        return self._read.get(key)


def cache_folder() -> Path:
    """The folder for files that can be made again.

    It is `$DOJO_CACHE`, or else `gpudojo` in the folder that this system has for a user's caches.
    """
    named = os.environ.get("DOJO_CACHE")
    if named:
        return Path(named)
    home = Path.home()
    if sys.platform == "win32":
        caches = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        caches = os.environ.get("XDG_CACHE_HOME") or home / "Library" / "Caches"
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(caches) / "gpudojo"


@functools.cache
def _digest_of_code(day: str) -> str:
    """A digest of everything, except the reference, that evidence depends on.

    That is our own code, the files of the day, Python, the machine's kind and torch. Of files it
    has names, sizes and times, not the content. Found once for each day. Raises KeyError for an
    unknown day, and OSError for a file that has just gone.
    """
    import torch

    versions = f"{sys.version} {platform.machine()} {torch.__version__}"
    digest = hashlib.sha256(versions.encode())
    for folder in (*_folders_of_code(), registered_days()[day].folder):
        for place, _, names in sorted(os.walk(folder)):
            if place.endswith("__pycache__"):
                continue
            for name in sorted(names):
                about = os.stat(os.path.join(place, name))
                line = f"{place} {name} {about.st_size} {about.st_mtime_ns}\n"
                digest.update(line.encode())
    return digest.hexdigest()


def _folders_of_code() -> Iterator[Path]:
    """Yield the folders of the packages by which evidence is made."""
    for package in CODE_OF_EVIDENCE:
        assert package.__file__ is not None
        yield Path(package.__file__).resolve().parent
