"""Records of submissions, and where they are kept between runs."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import secrets
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from virtual_cuda.ledger import Timeline

from gpudojo.model.errors import BadClass, BadEvidence
from gpudojo.model.evidence import Evidence, checked_timeline, decoded, validated
from gpudojo.model.results_file import replacing
from gpudojo.sandbox.protocol import Chosen, Loaded

VERSION: Final = 2


class IncidentKind(enum.StrEnum):
    """What can happen to a submission while it runs."""

    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    TAMPERED = "tampered"
    REACHED = "reached"  # for the grader or for Python's inside, which may be harmless
    NOT_RUN = "not run"


class Incident(msgspec.Struct, frozen=True):
    """Something that happened in one step."""

    what: IncidentKind
    step: str  # "exercise::function" or "file PATH"
    detail: str


class FunctionRecord(msgspec.Struct, frozen=True):
    """What was observed of one function."""

    evidence: Evidence
    seconds: float
    signature: str = ""
    timeline: Timeline | None = None  # of a student's busiest call
    timelines: list[Timeline] = []  # of a reference's calls on the public seed, without lines of code

    def joined(self, other: FunctionRecord) -> FunctionRecord:
        """With what another child observed of the same function, in other scenarios."""
        both = {**self.evidence.observations, **other.evidence.observations}
        return FunctionRecord(
            msgspec.structs.replace(self.evidence, observations=both),
            self.seconds + other.seconds,
            self.signature or other.signature,
            self.timeline or other.timeline,
            [*self.timelines, *other.timelines],
        )


class Record(msgspec.Struct):
    """What was observed of one submission."""

    digest: str
    places: list[Chosen] = []
    seen: dict[str, FunctionRecord] = {}  # by "exercise::function"
    files: dict[str, Loaded] = {}
    incidents: list[Incident] = []
    layers: dict[str, str] = {}
    output: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    device_bytes: int = 0  # peak, of a real GPU
    version: int = VERSION


_decoder: Final = msgspec.msgpack.Decoder(Record)
_sources_decoder: Final = msgspec.msgpack.Decoder(dict[str, bytes])


def encode(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(data: bytes) -> Record:
    """The record in these bytes; raises BadEvidence where they hold none that can be used."""
    record = decoded(_decoder.decode, data)
    if record.version != VERSION:
        raise BadEvidence(f"version {record.version} is not {VERSION}")
    for seen in record.seen.values():
        validated(seen.evidence)
        for timeline in (*seen.timelines, *filter(None, [seen.timeline])):
            checked_timeline(timeline)
    return record


FOLDER: Final = ".dojo"


class Store:
    """The records of one output folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / FOLDER
        self._lock: int | None = None

    def open(self) -> None:
        """Make the folder and lock it; raises BadClass where another run has it."""
        if sys.platform == "win32":
            raise NotImplementedError
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadClass(f"cannot write to {self.out}: {error.strerror}") from None
        import fcntl

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadClass(f"another `dojo grade` writes to {self.out}; wait for it, or use another --out") from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def secret(self, given: str | None, keep: bool = True) -> str:
        """The one given, or the one of the last run, or a new one; it is kept for later runs, for its owner alone."""
        path = self.folder / "secret"
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(PermissionError):
                path.chmod(0o600)  # an earlier version left it readable
            known = path.read_text(encoding="utf-8")
            if given in (None, known):
                return known
        secret = secrets.token_hex(16) if given is None else given
        if keep:
            write(path, secret.encode(), mode=0o600)
        return secret

    def path_of(self, key: str) -> Path:
        return self.folder / "records" / key[:2] / f"{key}.mp"

    def record(self, key: str) -> Record | None:
        """The record; None where there is none that can be used."""
        try:
            return decode(self.path_of(key).read_bytes())
        except (OSError, BadEvidence):
            return None

    def has(self, key: str) -> bool:
        return self.path_of(key).is_file()

    def keep(self, key: str, record: Record) -> None:
        write(self.path_of(key), encode(record))

    def _sources(self, digest: str) -> Path:
        return self.folder / "sources" / digest[:2] / f"{digest}.mp"

    def keep_sources(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Keep what was handed in, once: pages show it, and submissions are compared by it."""
        if not (path := self._sources(digest)).is_file():
            write(path, zlib.compress(msgspec.msgpack.encode(files), 1), lasting=False)

    def sources(self, digest: str) -> dict[str, bytes]:
        """The files of a submission by path; empty where they were not kept."""
        try:
            return decoded(_sources_decoder.decode, zlib.decompress(self._sources(digest).read_bytes()))
        except (OSError, BadEvidence, zlib.error):
            return {}

    def row_path(self, key: str, measure: str) -> Path:
        return self.folder / "rows" / key[:2] / f"{key}-{measure}.json"


def key_of(digest: str, *conditions: str) -> str:
    """The name of a record: the submission's content and the conditions under which it ran."""
    return hashlib.sha256("\0".join((digest, *conditions)).encode()).hexdigest()[:40]


def write(path: Path, data: bytes, lasting: bool = True, mode: int = 0o666) -> None:
    """Write the whole file or nothing, in a folder that is made if needed; `lasting` waits for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, lasting, mode) as file:
        file.write(data)
