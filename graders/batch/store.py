"""Where is everything kept between two runs of the same command? In files that are whole or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

from graders.batch.records import Record, decode, encode
from graders.errors import BadClass, BadEvidence
from graders.results.storing import replacing

FOLDER: Final = ".dojo"


class Store:
    """The records of one output folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / FOLDER
        self._lock: int | None = None

    def open(self) -> None:
        """Make the folder, and make sure that nobody else writes to it."""
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
                f"another `dojo grade` is writing to {self.out}; wait for it, or use another --out"
            ) from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def secret(self, given: str | None) -> str:
        """The instructor's, or one made up when the folder was new and kept for the runs that follow."""
        if given is not None:
            return given
        path = self.folder / "secret"
        with contextlib.suppress(FileNotFoundError):
            return path.read_text(encoding="ascii")
        made = secrets.token_hex(16)
        write(path, made.encode())
        return made

    def path_of(self, key: str) -> Path:
        return self.folder / "records" / key[:2] / f"{key}.mp"

    def record(self, key: str) -> Record | None:
        """What is known; a file that cannot be used counts for nothing, and what it was about is run again."""
        try:
            return decode(self.path_of(key).read_bytes())
        except (OSError, BadEvidence):
            return None

    def has(self, key: str) -> bool:
        return self.path_of(key).is_file()

    def keep(self, key: str, record: Record) -> None:
        write(self.path_of(key), encode(record))

    def row_path(self, key: str, measure: str) -> Path:
        return self.folder / "rows" / key[:2] / f"{key}-{measure}.json"


def key_of(digest: str, *conditions: str) -> str:
    """The name of a record: the submission's content and the conditions under which it ran."""
    return hashlib.sha256("\0".join((digest, *conditions)).encode()).hexdigest()[:40]


def write(path: Path, data: bytes, lasting: bool = True) -> None:
    """All of it or nothing, whatever happens meanwhile; `lasting` waits until the disk has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, lasting) as file:
        file.write(data)
