"""Submissions as data: entries of a listing, what was read of one, and how large one may be."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from gpudojo.submissions.submitters import Submitter


class Kind(enum.StrEnum):
    """The form of a submission."""

    FOLDER = "folder"
    CHECKOUT = "checkout"  # a folder that is a git checkout
    ZIP = "zip"
    TAR = "tar"
    PYTHON = "python"
    NOTEBOOK = "notebook"
    FILES = "files"  # loose files of one student, grouped by the names that a platform gave them
    OTHER = "other"  # an archive of a kind that is not read, which is reported


class Naming(enum.StrEnum):
    """The platform that named it."""

    PLAIN = "plain"
    CANVAS = "canvas"
    MOODLE = "moodle"
    GRADESCOPE = "gradescope"
    # GitHub Classroom, Classroom 50: a repository named for assignment and account.
    CLASSROOM = "classroom"


class SubmissionEntry(msgspec.Struct, frozen=True):
    """One submission in a listing, not read yet."""

    name: str  # unique in its listing, also if case is ignored
    student: str  # as far as the name says
    origin: Path  # the file or folder; for loose files, the first of them
    kind: Kind
    naming: Naming = Naming.PLAIN
    # The platform's number of the student or submission, or the account.
    identifier: str | None = None
    late: bool = False  # marked by the platform
    attempt: int = 0  # its number, if the platform's files hold several of this student
    submitted: str = ""  # when, as the platform or the last commit says; ISO 8601
    # Who handed it in, if the platform lists several or their ids.
    people: tuple[Submitter, ...] = ()
    # Its parts: the name inside the submission ("" for a folder or archive that is all of it),
    # and the path.
    members: tuple[tuple[str, Path], ...] = ()
    # The digest of its files where they are not read here: a class keeps what was handed in before.
    kept: str = ""


class IgnoredPath(msgspec.Struct, frozen=True):
    """Something among the submissions that is none."""

    path: Path
    reason: str


class Listing(msgspec.Struct, frozen=True):
    """The submissions at some paths, and what was ignored there."""

    entries: tuple[SubmissionEntry, ...]
    ignored: tuple[IgnoredPath, ...]


class ReadLimits(msgspec.Struct, frozen=True):
    """How large one submission may be."""

    files: int = 200
    file_bytes: int = 10 << 20
    total_bytes: int = 50 << 20  # of everything unpacked, with nested archives
    archive_bytes: int = 50 << 20  # of an archive as handed in
    ratio: int = 200  # unpacked to packed; source text stays below 20
    ratio_from: int = 1_000_000  # bytes below which the ratio does not matter
    entries: int = 20_000  # names in a folder or archive
    depth: int = 16  # of folders
    path_length: int = 240
    notes: int = 20

    def is_bomb(self, unpacked: int, packed: int) -> bool:
        """True if so many bytes unpack to so many more that nobody packed them by chance."""
        return unpacked > self.ratio_from and unpacked > self.ratio * packed


class SourceFile(msgspec.Struct, frozen=True):
    """A Python file or notebook."""

    path: str  # relative, with forward slashes, safe to be written below any folder
    data: bytes


class ReadSubmission(msgspec.Struct, frozen=True):
    """What was read of an entry. `problem` says why nothing can be graded, if so."""

    entry: SubmissionEntry
    files: tuple[SourceFile, ...]
    problem: str | None = None
    notes: tuple[str, ...] = ()
    digest: str = ""

    @property
    def contents(self) -> dict[str, bytes]:
        """The files by path."""
        return {file.path: file.data for file in self.files}


# What is said of a folder or archive among submissions that is a class; with what to do instead.
HOLDS_SEVERAL: Final = (
    "holds the work of several students; to grade them, {}: dojo grade PATH --out DIR"
)


class Unreadable(Exception):
    """A file cannot be used.

    The text continues a sentence that its name begins: "… is encrypted".
    """


def digest_of(files: Iterable[SourceFile]) -> str:
    """The hash of all paths and bytes.

    It does not depend on the name or date of a submission.
    """
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        for part in (file.path.encode("utf-8", "surrogatepass"), file.data):
            # The length first: no two lists of files may give the same bytes.
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()
