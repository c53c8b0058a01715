"""Entries, submissions and limits."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class Kind(enum.StrEnum):
    """In which form a submission came."""

    FOLDER = "folder"
    CHECKOUT = "checkout"  # a folder that is a git checkout
    ZIP = "zip"
    TAR = "tar"
    PYTHON = "python"
    NOTEBOOK = "notebook"
    FILES = "files"  # loose files of one student, told apart by the names a learning platform gave them
    OTHER = "other"  # a kind of archive that is not read; its student is told so instead of being forgotten


class Naming(enum.StrEnum):
    """Who named it, and so what its name says."""

    PLAIN = "plain"
    CANVAS = "canvas"
    MOODLE = "moodle"
    GRADESCOPE = "gradescope"
    CLASSROOM = "classroom"  # GitHub Classroom, Classroom 50: a repository named for assignment and account


@dataclass(frozen=True, slots=True)
class Entry:
    """One submission that is there to be read."""

    name: str  # unique among the entries listed together, also where case does not count
    student: str  # as well as the name tells
    origin: Path  # the file or folder; for loose files, the first of them
    kind: Kind
    naming: Naming = Naming.PLAIN
    identifier: str | None = None  # the platform's own number for the student or the submission, or the account's name
    late: bool = False  # marked so by the platform
    # What it is made of: the name inside the submission ("" where the content has no name of its own), and the place.
    members: tuple[tuple[str, Path], ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that lies among the submissions and is none."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found: the submissions, and what else lay there."""

    entries: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one submission may be. A class is graded on one machine, and an archive can promise anything."""

    files: int = 200
    file_bytes: int = 10_000_000
    total_bytes: int = 50_000_000  # of everything unpacked, nested archives themselves included
    archive_bytes: int = 50_000_000  # of an archive as it was handed in
    ratio: int = 200  # unpacked to packed; source text stays below 20
    ratio_from: int = 1_000_000  # below this an archive may be as dense as it likes
    entries: int = 20_000  # names looked at, most of them of no interest
    depth: int = 16  # folders below each other
    path_length: int = 240
    notes: int = 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file or notebook."""

    path: str  # relative, with forward slashes, safe to be written below any folder
    data: bytes


@dataclass(frozen=True, slots=True)
class Submission:
    """What was read from an entry: what can be graded, or the one sentence that says why nothing can."""

    entry: Entry
    files: tuple[SourceFile, ...]
    problem: str | None = None
    notes: tuple[str, ...] = ()
    digest: str = ""


class Unreadable(Exception):
    """One thing cannot be taken; the text goes on after its name: "… is encrypted"."""


def digest(files: Iterable[SourceFile]) -> str:
    """Equal for equal content: paths and bytes, whatever the submission is called and whenever it was made."""
    whole = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        for part in (file.path.encode("utf-8", "surrogatepass"), file.data):
            # the length first, so that no two lists of files run together into the same bytes
            whole.update(len(part).to_bytes(8, "big"))
            whole.update(part)
    return whole.hexdigest()
