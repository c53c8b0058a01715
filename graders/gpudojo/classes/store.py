"""Records of submissions and points that people give: what is kept of a class between runs."""

from __future__ import annotations

import contextlib
import csv
import datetime
import enum
import functools
import hashlib
import io
import itertools
import math
import os
import secrets
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace
from virtual_cuda.ledger import Timeline

from gpudojo.classes.course_rules import find_exercise
from gpudojo.classes.csv_tables import read_table
from gpudojo.model.errors import BadClass, BadEvidence, BadFile, suggest_name
from gpudojo.model.evidence import (
    Evidence,
    check_evidence,
    decode_untrusted,
    require_valid_timeline,
)
from gpudojo.model.results import ExerciseRow, Override, SubmissionRow, sum_points
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points, replacing_file
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
    timelines: list[
        Timeline
    ] = []  # of a reference's calls on the public seed, without lines of code

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


class Record(msgspec.Struct, dict=True):
    """What was observed of one submission.

    Its functions stay encoded until they are asked for: decoded, they may take ten times the
    memory, and a grader holds the records of all submissions that are running.
    """

    digest: str
    places: list[Chosen] = []
    incidents: list[Incident] = []
    layers: dict[str, str] = {}
    output: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    device_bytes: int = 0  # peak, of a real GPU
    version: int = VERSION
    files: dict[str, Loaded] = {}
    seen: dict[str, msgspec.Raw] = {}  # by "exercise::function", each an encoded FunctionRecord

    def add(self, key: str, function: FunctionRecord) -> None:
        """Add what was observed of a function, or replace it."""
        self.seen[key] = msgspec.Raw(msgspec.msgpack.encode(function))
        self.__dict__.pop("functions", None)

    def function(self, key: str) -> FunctionRecord:
        """Decode what was observed of a function. Raises KeyError, and BadEvidence if damaged."""
        function = decode_untrusted(_function_decoder.decode, self.seen[key])
        check_evidence(function.evidence)
        for timeline in function.timelines:
            require_valid_timeline(timeline)
        if function.timeline is not None:
            require_valid_timeline(function.timeline)
        return function

    @functools.cached_property
    def functions(self) -> dict[str, FunctionRecord]:
        """All functions, decoded once. Raises BadEvidence if one of them is damaged."""
        return {key: self.function(key) for key in self.seen}


_decoder: Final = msgspec.msgpack.Decoder(Record)
_function_decoder: Final = msgspec.msgpack.Decoder(FunctionRecord)
_sources_decoder: Final = msgspec.msgpack.Decoder(dict[str, bytes])


def encode(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(data: bytes) -> Record:
    """Decode a record, of which each function may still be damaged. Raises BadEvidence."""
    record = decode_untrusted(_decoder.decode, data)
    if record.version != VERSION:
        raise BadEvidence(f"version {record.version} is not {VERSION}")
    return record


def decode_whole(data: bytes) -> Record:
    """Decode a record and its functions. Raises BadEvidence where anything in it is damaged."""
    record = decode(data)
    _ = record.functions
    return record


FOLDER: Final = ".dojo"
DISK: Final = 4  # threads that wait for it
KEEPING: Final = 16  # submissions whose sources are held in memory until they are on it


class Store:
    """The records of one output folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / FOLDER
        self._lock: int | None = None
        self._disk: ThreadPoolExecutor | None = None
        self._keeping: dict[str, Future[None]] = {}  # by digest, sources that a thread keeps

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
            raise BadClass(
                f"another `dojo grade` writes to {self.out}; wait for it, or use another --out"
            ) from None

    def close(self) -> None:
        if self._disk is not None:
            self._disk.shutdown()
            self._disk = None
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

    @property
    def used(self) -> bool:
        """Whether there may be a record."""
        return (self.folder / "records").exists()

    def path_of(self, key: str) -> Path:
        return self.folder / "records" / key[:2] / f"{key}.mp"

    def record(self, key: str) -> Record | None:
        """The record, with its functions decoded; None where there is none that can be used."""
        try:
            return decode_whole(self.path_of(key).read_bytes())
        except (OSError, BadEvidence):
            return None

    def has(self, key: str) -> bool:
        return self.path_of(key).is_file()

    def kept_at(self, key: str) -> str:
        """When a record was kept: ISO 8601, UTC."""
        when = datetime.datetime.fromtimestamp(self.path_of(key).stat().st_mtime, datetime.UTC)
        return when.isoformat(timespec="seconds")

    def keep(self, key: str, record: Record) -> None:
        """Keep a record. Threads wait for the disk; one that is torn by a power failure counts for nothing."""
        write(path := self.path_of(key), encode(record), lasting=False)
        self._disk = self._disk or ThreadPoolExecutor(DISK)
        self._disk.submit(_wait_for_disk, path)

    def _sources(self, digest: str) -> Path:
        return self.folder / "sources" / digest[:2] / f"{digest}.mp"

    def keep_sources(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Keep what was handed in, once: pages show it, and submissions are compared by it."""
        if not (path := self._sources(digest)).is_file():
            _write_packed(path, files)

    def keep_sources_soon(self, digest: str, files: Mapping[str, bytes]) -> None:
        """The same, by a thread. Raises OSError where one could not keep earlier ones; so does `sources_kept`."""
        self._wait_for_sources(KEEPING)
        if digest not in self._keeping and not (path := self._sources(digest)).is_file():
            self._disk = self._disk or ThreadPoolExecutor(DISK)
            self._keeping[digest] = self._disk.submit(_write_packed, path, files)

    def sources_kept(self) -> None:
        """Wait until all sources are kept."""
        self._wait_for_sources(0)

    def _wait_for_sources(self, most: int) -> None:
        """Wait for all but so many, and see to those that are done."""
        for digest, kept in list(self._keeping.items()):
            if kept.done() or len(self._keeping) > most:
                kept.result()
                del self._keeping[digest]

    def sources(self, digest: str) -> dict[str, bytes]:
        """The files of a submission by path; empty where they were not kept."""
        try:
            return decode_untrusted(
                _sources_decoder.decode, zlib.decompress(self._sources(digest).read_bytes())
            )
        except (OSError, BadEvidence, zlib.error):
            return {}

    def row_path(self, key: str, measure: str) -> Path:
        return self.folder / "rows" / key[:2] / f"{key}-{measure}.json"


def _write_packed(path: Path, files: Mapping[str, bytes]) -> None:
    write(path, zlib.compress(msgspec.msgpack.encode(files), 1), lasting=False)


def _wait_for_disk(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("rb") as file:
        os.fsync(file.fileno())


def key_of(digest: str, *conditions: str) -> str:
    """The name of a record: the submission's content and the conditions under which it ran."""
    return hashlib.sha256("\0".join((digest, *conditions)).encode()).hexdigest()[:40]


def write(path: Path, data: bytes, lasting: bool = True, mode: int = 0o666) -> None:
    """Write the whole file or nothing, in a folder that is made if needed; `lasting` waits for the disk."""
    for again in (False, True):
        try:
            with replacing_file(path, lasting, mode) as file:
                file.write(data)
            return
        except FileNotFoundError:
            if again:
                raise
            path.parent.mkdir(parents=True, exist_ok=True)


NAME: Final = "overrides.csv"
COLUMNS: Final = ("at", "by", "action", "student", "item", "points", "comment", "key")
EVERYONE: Final = "*"
SET = "set"
UNDO = "undo"


class LogEntry(NamedTuple):
    """A line of the log."""

    at: str
    by: str
    action: str
    student: str
    item: str
    points: float
    comment: str
    key: str  # by which the student is known, whatever the submission is called; or EVERYONE


class Overrides:
    """The log of one class."""

    def __init__(self, out: Path) -> None:
        """Reads the log, if there is one; raises BadFile."""
        self.path = out / NAME
        self.log = self._read() if self.path.exists() else []
        self._by_key: dict[str, dict[str, LogEntry]] | None = None

    def _read(self) -> list[LogEntry]:
        (at, headings), *lines = read_table(self.path)
        if tuple(headings) != COLUMNS:
            raise BadFile(str(self.path), at, f"the columns must be {', '.join(COLUMNS)}")
        found = []
        for line, cells in lines:
            if len(cells) != len(COLUMNS) or cells[2] not in (SET, UNDO):
                raise BadFile(
                    str(self.path),
                    line,
                    f"{len(COLUMNS)} cells are needed, the third {SET} or {UNDO}",
                )
            points = points_in(cells[5], str(self.path), line) if cells[2] == SET else 0.0
            unquoted = [
                cell[1:] if cell.startswith("'") and spreadsheet_safe(cell[1:]) == cell else cell
                for cell in cells
            ]
            at_, by, action, student, item, _, comment, whose = unquoted
            found.append(LogEntry(at_, by, action, student, item, points, comment, whose))
        return found

    def current(self) -> dict[tuple[str, str], LogEntry]:
        """By key of the student and item, what holds."""
        return self._held(self.log)

    def before(self, at: str) -> dict[tuple[str, str], LogEntry]:
        """The same, before the command of a time."""
        return self._held(itertools.takewhile(lambda entry: entry.at != at, self.log))

    @staticmethod
    def _held(log: Iterable[LogEntry]) -> dict[tuple[str, str], LogEntry]:
        found: dict[tuple[str, str], LogEntry] = {}
        for entry in log:
            found.pop((entry.key, entry.item), None)
            if entry.action == SET:
                found[entry.key, entry.item] = entry
        return found

    def of(self, keys: Iterable[str], everyone: bool = True) -> dict[str, LogEntry]:
        """By item, what holds for a student: the student's own before what everyone gets who handed something in.

        Of what was given by several keys, as before and after the student was on a roster, the last holds."""
        if self._by_key is None:
            self._by_key = {}
            for (who, item), entry in self.current().items():
                self._by_key.setdefault(who, {})[item] = entry
        known = self._by_key
        own = sorted(
            (entry for who in keys for entry in known.get(who, {}).values()),
            key=lambda entry: entry.at,
        )
        given = known.get(EVERYONE, {}) if everyone else {}
        return given | {entry.item: entry for entry in own}

    def last(self) -> list[LogEntry]:
        """What the last command set; nothing where it took something back."""
        last = [entry for entry in self.log if entry.at == self.log[-1].at]
        return last if all(entry.action == SET for entry in last) else []

    def add(self, entries: Sequence[LogEntry]) -> None:
        """Append to the log; the file is replaced as a whole."""
        self.log += entries
        self._by_key = None
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for entry in self.log:
            points = format_points(entry.points) if entry.action == SET else ""
            writer.writerow([spreadsheet_safe(cell) for cell in (*entry[:5], points, *entry[6:])])
        write(self.path, text.getvalue().encode("utf-8", "backslashreplace"))


def points_in(text: str, file: str, line: int | None = None) -> float:
    """The points that somebody wrote, with a decimal point or comma; raises BadFile."""
    try:
        points = round(float(text.replace(",", ".")), 6)
    except ValueError:
        raise BadFile(file, line, f"{text!r} is not a number of points") from None
    if not 0 <= points < math.inf:
        raise BadFile(file, line, f"points must be 0 or more, not {text}")
    return points


def item_named(name: str, row: SubmissionRow) -> tuple[str, float]:
    """The name of a check, exercise or item of a row, and what it is worth; raises BadClass with a suggestion.

    A check may be named by its end: `runs`, `train_epoch::runs`; an exercise by its number.
    """
    worth = {exercise.exercise: exercise.max_score for exercise in row.exercises}
    checks = {check.id: check.max_points for exercise in row.exercises for check in exercise.checks}
    stem = find_exercise(name, worth)
    if stem is not None:
        return stem, worth[stem]
    found = [id_ for id_ in checks if id_ == name or id_.endswith(f"::{name}")]
    if len(found) == 1:
        return found[0], checks[found[0]]
    if found:
        some = ", ".join(id_.partition("::")[2] for id_ in found[:5])
        raise BadClass(
            f"{len(found)} checks are called {name!r}; write more of it: {some}{', …' * (len(found) > 5)}"
        )
    ends = [id_.partition("::")[2] for id_ in checks]
    every = [*worth, *ends, *(id_.rpartition("::")[2] for id_ in checks)]
    hint = suggest_name(name, every, "") or "; see: dojo override --items"
    raise BadClass(f"there is no check, exercise or item {name!r}{hint}")


def applied(
    exercises: Sequence[ExerciseRow], holds: dict[str, LogEntry]
) -> tuple[list[ExerciseRow], list[str]]:
    """The exercises with what people gave; and sentences about what could not be given as it was written."""
    said: list[str] = []
    if not holds:
        return list(exercises), said

    def override(item: str, graded: float | None, most: float) -> Override | None:
        entry = holds.get(item)
        if entry is None:
            return None
        if entry.points > most:
            said.append(
                f"an override gives {format_points(entry.points)} of {format_points(most)} points for {item}; it was cut"
            )
        return Override(min(entry.points, most), graded, entry.comment, entry.by, entry.at)

    found = []
    for exercise in exercises:
        checks = []
        for check in exercise.checks:
            given = override(check.id, check.points, check.max_points)
            checks.append(replace(check, override=given, points=given.points) if given else check)
        score = sum_points(check.points for check in checks) if checks else exercise.score
        whole = override(exercise.exercise, None if exercise.by_hand else score, exercise.max_score)
        score = whole.points if whole else score
        found.append(replace(exercise, checks=checks, score=score, override=whole))
    return found, said
