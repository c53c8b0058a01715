"""Reads the sources of one submission."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from virtual_cuda import format_size

from gpudojo.submissions import archives, entries
from gpudojo.submissions.archives import Contents, ListedFile
from gpudojo.submissions.entries import Kind, ReadLimits, ReadSubmission, SourceFile, Unreadable, shown, suffix

_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=]", re.M)


def fault(file: SourceFile) -> str | None:
    """What is wrong with the bytes of a source, as the rest of a sentence that its name begins; or None."""
    data = file.data
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is UTF-16 text; save it as UTF-8"
    if b"\0" in data:
        return "is not text: it has a null byte in it"
    notebook = bool(suffix(file.path, (".ipynb",)))
    # A Python file may name another encoding in its first two lines.
    if notebook or not any(_CODING.match(line) for line in data.split(b"\n", 2)[:2]):
        try:
            data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return f"is not UTF-8 text: byte {data[error.start]:#04x} in line {line}; save it as UTF-8"
    if notebook:
        # Parsed only in the sandbox: ten megabytes of brackets take a quarter of a gigabyte.
        text = data.removeprefix(b"\xef\xbb\xbf").strip()
        if not text.startswith(b"{"):
            return "is not a notebook"
        if not text.endswith(b"}"):
            return "is not a notebook, or one that is cut off"
        if b'"cells"' not in text and b'"worksheets"' not in text:
            return "is not a notebook: it has no cells"
    return None


def read(entry: entries.SubmissionEntry, limits: ReadLimits | None = None) -> ReadSubmission:
    """Read an entry. What is wrong with it is in `problem` and `notes`; nothing is raised."""
    limits = limits or ReadLimits()
    reader = _SourceReader(limits)
    try:
        for name, path in entry.members or (("", entry.origin),):
            reader.take(name, path)
        reader.take_waiting()
    except Exception as error:  # one strange submission must not end the run
        return ReadSubmission(entry, (), f"It could not be read ({type(error).__name__}).", (), entries.digest(()))
    return reader.submission(entry)


class _SourceReader:
    """Collects sources as long as the limits allow."""

    def __init__(self, limits: ReadLimits) -> None:
        self.limits = limits
        self.files: dict[str, SourceFile] = {}
        self.notes: list[str] = []
        self.spent = 0  # bytes read so far
        self.unpacked = 0  # bytes of gzips
        self.others = 0
        self.too_many = 0
        self.waiting: list[ListedFile] = []  # archives inside what was handed in
        self._folders: set[str] = set()
        self._folded: set[str] = set()

    def take(self, name: str, path: Path) -> None:
        """Read a path on disk: a folder, an archive or a source."""
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):  # only a path from the command line can be a link here
                mode = os.stat(path).st_mode
                path = Path(os.path.realpath(path))
            if stat.S_ISDIR(mode):
                self.take_all(archives.folder_listing(path, self.limits), name, nested=True)
            elif not stat.S_ISREG(mode):
                raise Unreadable(archives.NOT_A_FILE)
            elif suffix(path.name, entries.ARCHIVES):
                most = self.limits.archive_bytes
                data = archives.fetch(path, most)
                if len(data) > most:
                    raise Unreadable(f"is larger than {format_size(most)}")
                self.take_all(self.unpack(data), name, nested=True)
            elif ending := suffix(path.name, entries.STRANGE_ARCHIVES):
                raise Unreadable(f"is an archive of a kind that is not supported ({ending}); hand in a .zip")
            else:
                alone = Contents()
                inside = alone.place(name or path.name, self.limits, on_disk=True)
                if inside is not None:
                    alone.files[name] = ListedFile(inside, os.stat(path).st_size, partial(archives.fetch, path))
                self.take_all(alone, "", nested=False)
        except Unreadable as error:
            self.notes.append(f"{shown(path.name)} {error}.")
        except (OSError, ValueError) as error:
            self.notes.append(f"{shown(path.name)} cannot be read: {entries.reason(error)}.")

    def unpack(self, data: bytes) -> Contents:
        """List an archive by its content, whatever its name is."""
        if data[:2] == b"\x1f\x8b" or (data[:2] != b"PK" and archives.is_tar(data)):
            left = max(self.limits.total_bytes - self.unpacked, 0)
            contents = archives.tar_listing(data, replace(self.limits, total_bytes=left))
            self.unpacked += contents.unpacked
            return contents
        if not data:
            raise Unreadable("is empty")
        for magic, kind in ((b"Rar!", "rar"), (b"7z\xbc\xaf", "7z"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")):
            if data.startswith(magic):
                raise Unreadable(f"is a {kind} archive under another name; hand in a .zip")
        return archives.zip_listing(data, self.limits)

    def take_all(self, contents: Contents, folder: str, nested: bool) -> None:
        """Read everything that can be graded in a folder or archive, the shallowest first."""
        self.notes += contents.notes
        prefix = f"{folder}/" if folder else ""
        for found in sorted(contents.files.values(), key=lambda found: entries.in_order(found.path)):
            path = prefix + found.path
            if suffix(path, entries.SOURCES):
                self.take_source(ListedFile(path, found.size, found.fetch))
            elif suffix(path, entries.ARCHIVES) and nested:
                self.waiting.append(ListedFile(path, found.size, found.fetch))
            elif suffix(path, entries.ARCHIVES):
                self.notes.append(f"{shown(path)} is an archive in an archive in an archive, which is not opened.")
            else:
                self.others += 1

    def take_waiting(self) -> None:
        """Read archives inside what was handed in, one level deep: platforms pack what students packed."""
        for found in self.waiting:
            try:
                contents = self.unpack(self.fetch(found, self.limits.archive_bytes))
            except Unreadable as error:
                self.notes.append(f"{shown(found.path)} {error}.")
            else:
                self.take_all(contents, found.path, nested=False)

    def take_source(self, found: ListedFile) -> None:
        if len(self.files) >= self.limits.files:
            self.too_many += 1
            return
        try:
            self.place(found.path)
            data = self.fetch(found, self.limits.file_bytes)
        except Unreadable as error:
            self.notes.append(f"{shown(found.path)} {error}.")
            return
        if not data.strip():
            self.notes.append(f"{shown(found.path)} is empty.")
            return
        self.files[found.path] = SourceFile(found.path, data)
        self._folded.add(entries.folded(found.path))
        self._folders |= _parents(entries.folded(found.path))

    def place(self, path: str) -> None:
        """Each path once, also on systems to which case does not matter; and no file where another needs a folder."""
        key = entries.folded(path)
        if len(path.encode()) > self.limits.path_length:
            raise Unreadable(f"has a path of more than {self.limits.path_length} bytes")
        if path in self.files:
            raise Unreadable("was ignored: another file has its name")
        if key in self._folded:
            raise Unreadable("was ignored: its name differs from another file's only in upper and lower case")
        if key in self._folders or _parents(key) & self._folded:
            raise Unreadable("was ignored: it is a file and a folder at once")

    def fetch(self, found: ListedFile, most: int) -> bytes:
        left = self.limits.total_bytes - self.spent
        if found.size > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        try:
            data = found.fetch(min(most, left)) if found.size <= left else None
        except Unreadable:
            self.spent += found.size  # to find out that it is damaged takes as long as to read it
            raise
        if data is None or len(data) > left:
            raise Unreadable(f"goes beyond the {format_size(self.limits.total_bytes)} that are read in total")
        if len(data) > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        self.spent += len(data)
        return data

    def submission(self, entry: entries.SubmissionEntry) -> ReadSubmission:
        files = tuple(sorted(self.files.values(), key=lambda file: entries.in_order(file.path)))
        faults = [f"{shown(file.path)} {found}." for file in files if (found := fault(file))]
        problem = None
        if not files:
            problem = self.notes[0] if self.notes else self._nothing()
        elif len(faults) == len(files):
            problem = faults[0]
        if (
            not problem
            and len(students := entries.people_of(file.path for file in files)) > 1
            and entry.kind in (Kind.ZIP, Kind.TAR)
        ):
            problem = f"It holds the work of {len(students)} students; unpack it and give the folder instead."
        notes = [*faults, *dict.fromkeys(self.notes)]
        if self.too_many:
            taken = f"only the first {len(files)} were read" if len(files) > 1 else "only the first was read"
            notes.insert(0, f"There are {len(files) + self.too_many} Python files and notebooks; {taken}.")
        if self.others and files:
            several = self.others > 1
            what = "files that are not exercises were" if several else "file that is not an exercise was"
            notes.append(f"{self.others} {what} ignored.")
        if len(notes) > self.limits.notes:
            more = len(notes) - self.limits.notes + 1
            notes = [*notes[: self.limits.notes - 1], f"There are {more} more remarks like these."]
        return ReadSubmission(entry, files, problem, tuple(notes), entries.digest(files))

    def _nothing(self) -> str:
        if self.others:
            several = f"There is no Python file or notebook among the {self.others} files."
            return several if self.others > 1 else "The only file is neither a Python file nor a notebook."
        return "It is empty."


def _parents(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}
