"""Keeps records and sources of a class between runs, in files below `.dojo`.

A record is known by its key, sources by the digest of what was handed in.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import secrets
import sys
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.classes.records import Record, decode_whole_record, encode_record
from gpudojo.model.errors import BadClass, BadEvidence
from gpudojo.model.evidence import decode_untrusted_bytes
from gpudojo.model.results_file import replacing_file

_sources_decoder: Final = msgspec.msgpack.Decoder(dict[str, bytes])
FOLDER: Final = ".dojo"
SECONDS_FOR_OTHERS: Final = 2  # until another command is expected to have ended
DISK_THREADS: Final = 4  # threads that wait for it
MOST_KEEPING: Final = 16  # submissions whose sources are held in memory until they are on it


class Store:
    """The records and sources of one output folder, and where its verdicts are."""

    def __init__(self, out: Path) -> None:
        """Open nothing yet; `out` is the folder of the class."""
        self.out = out
        self.folder = out / FOLDER
        self._lock: int | None = None
        self._disk: ThreadPoolExecutor | None = None
        self._keeping: dict[str, Future[None]] = {}  # by digest, sources that a thread keeps

    def open(self) -> None:
        """Make the folder and lock it.

        Raises BadClass where it cannot be written to, or another run has locked it.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT
            self._lock = os.open(self.folder / "lock", flags, 0o600)
        except OSError as error:
            raise BadClass(f"cannot write to {self.out}: {error.strerror}") from None
        import fcntl

        until = time.monotonic() + SECONDS_FOR_OTHERS
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > until:
                    raise BadClass(
                        f"another `dojo` command writes to {self.out}; try again when it has ended"
                    ) from None
            time.sleep(0.05)

    def close(self) -> None:
        """Wait until everything is written, and unlock the folder."""
        if self._disk is not None:
            self._disk.shutdown()
            self._disk = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def secret_path(self) -> Path:
        """The file with the secret of the class."""
        return self.folder / "secret"

    @property
    def has_secret(self) -> bool:
        """True if the secret of the last run is there."""
        return self.secret_path.is_file()

    def find_or_make_secret(self, given: str | None, keep: bool = True) -> str:
        """The secret given, or that of the last run, or a new one.

        Unless `keep` is false, it is kept for later runs, in a file for its owner alone. Raises
        OSError where that cannot be read or written.
        """
        path = self.secret_path
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(PermissionError):
                path.chmod(0o600)  # an earlier version left it readable
            last_secret = path.read_text(encoding="utf-8")
            if given in (None, last_secret):
                return last_secret
        if given is None:
            secret = secrets.token_hex(16)
        else:
            secret = given
        if keep:
            write_file(path, secret.encode(), mode=0o600)
        return secret

    @property
    def used(self) -> bool:
        """True if there may be a record."""
        return (self.folder / "records").exists()

    def path_of(self, key: str) -> Path:
        """Where the record with that key is kept, if it is."""
        return self.folder / "records" / key[:2] / f"{key}.mp"

    def load_record(self, key: str) -> Record | None:
        """The record, with its functions decoded.

        Returns None where there is none that can be used.
        """
        try:
            return decode_whole_record(self.path_of(key).read_bytes())
        except (OSError, BadEvidence):
            return None

    def has_record(self, key: str) -> bool:
        """True if there is a record; it may be damaged."""
        return self.path_of(key).is_file()

    def has_record_of(self, key: str, functions: Iterable[str]) -> bool:
        """True if there is a record that can be read and was run for all of these functions."""
        record = self.load_record(key)
        return record is not None and record.covers(functions)

    def kept_at(self, key: str) -> str:
        """When a record was kept: ISO 8601, UTC. Raises OSError where there is none."""
        status = self.path_of(key).stat()
        when = datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)
        return when.isoformat(timespec="seconds")

    def keep_record(self, key: str, record: Record) -> None:
        """Write a record to the file of its key. A thread waits until it is on the disk.

        A record that is torn by a power failure counts for nothing. Raises OSError.
        """
        path = self.path_of(key)
        write_file(path, encode_record(record), lasting=False)
        self._disk = self._disk or ThreadPoolExecutor(DISK_THREADS)
        self._disk.submit(_wait_for_disk, path)

    def _path_of_sources(self, digest: str) -> Path:
        """Where the sources with this digest are kept."""
        return self.folder / "sources" / digest[:2] / f"{digest}.mp"

    def keep_sources(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Keep what was handed in, once: pages show it, and submissions are compared by it.

        Raises OSError where it cannot be written.
        """
        path = self._path_of_sources(digest)
        if not path.is_file():
            _write_sources(path, files)

    def keep_sources_soon(self, digest: str, files: Mapping[str, bytes]) -> None:
        """Have a thread keep what was handed in.

        Raises OSError where a thread could not keep earlier ones; so does `wait_for_sources`.
        """
        self._wait_for_all_but(MOST_KEEPING)
        path = self._path_of_sources(digest)
        if digest not in self._keeping and not path.is_file():
            self._disk = self._disk or ThreadPoolExecutor(DISK_THREADS)
            self._keeping[digest] = self._disk.submit(_write_sources, path, files)

    def wait_for_sources(self) -> None:
        """Wait until all sources are kept. Raises OSError where one could not be."""
        self._wait_for_all_but(0)

    def _wait_for_all_but(self, most: int) -> None:
        """Wait for threads to keep sources, until at most so many are left.

        Raises OSError where one that is done has failed.
        """
        for digest, future in list(self._keeping.items()):
            if future.done() or len(self._keeping) > most:
                future.result()
                del self._keeping[digest]

    def load_sources(self, digest: str) -> dict[str, bytes]:
        """The files of a submission by path. Empty where they were not kept."""
        try:
            packed = self._path_of_sources(digest).read_bytes()
            return decode_untrusted_bytes(_sources_decoder.decode, zlib.decompress(packed))
        except (OSError, BadEvidence, zlib.error):
            return {}

    def row_path(self, key: str, judging_key: str) -> Path:
        """Where the verdict on a record is kept, for one way of judging."""
        return self.folder / "rows" / key[:2] / f"{key}-{judging_key}.json"


def _write_sources(path: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a submission, packed, to one file. Raises OSError."""
    packed = zlib.compress(msgspec.msgpack.encode(files), 1)
    write_file(path, packed, lasting=False)


def _wait_for_disk(path: Path) -> None:
    """Wait until a file is on the disk; a file that is gone is not waited for."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        os.fsync(file.fileno())


def record_key(digest: str, *conditions: str) -> str:
    """The name of a record: the submission's content and the conditions under which it ran."""
    text = "\0".join((digest, *conditions))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def write_file(path: Path, data: bytes, lasting: bool = True, mode: int = 0o666) -> None:
    """Write the whole file or nothing, in a folder that is made if needed.

    With `lasting`, wait until it is on the disk. Raises OSError.
    """
    for again in (False, True):
        try:
            with replacing_file(path, lasting, mode) as file:
                file.write(data)
            return
        except FileNotFoundError:
            if again:
                raise
            path.parent.mkdir(parents=True, exist_ok=True)
