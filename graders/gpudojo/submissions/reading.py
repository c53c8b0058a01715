"""Reads the sources of one submission."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from virtual_cuda.hooks import format_size

from gpudojo.submissions.contents import NOT_A_FILE, Contents, ListedFile
from gpudojo.submissions.entries import (
    HOLDS_SEVERAL,
    Kind,
    Naming,
    ReadLimits,
    ReadSubmission,
    SourceFile,
    SubmissionEntry,
    Unreadable,
    digest_of,
)
from gpudojo.submissions.folders import list_folder, read_file
from gpudojo.submissions.names import (
    ARCHIVES,
    SOURCES,
    STRANGE_ARCHIVES,
    depth_key,
    ending_of,
    fold_case,
    holds_moodle_folder,
    name_in_text,
    people_in,
    reason_of,
)
from gpudojo.submissions.storable_paths import path_on_disk
from gpudojo.submissions.tar_files import GZIP_MARK, is_tar, list_tar
from gpudojo.submissions.zip_files import list_zip

_NOTEBOOK: Final = (".ipynb",)
_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=]", re.M)
_UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
# How files of archives begin that are not read.
_STRANGE_MARKS: Final = {b"Rar!": "rar", b"7z\xbc\xaf": "7z", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
# A magic in the JSON of a notebook that writes a Python file.
_WRITEFILE: Final = re.compile(rb'"\s*%%(?:write)?file\s+(?:-a\s+)?([^"\\\s]+\.py)\b')
FILES_SHOWN: Final = 3  # that cells of one notebook write
DEEPEST_ARCHIVE: Final = 2  # platforms pack what students packed
TOO_DEEP: Final = (
    "lies in an archive in an archive and is not opened; pack the files themselves into one .zip"
)
WRITTEN: Final = "with %%writefile; such cells are not run."


def read_submission(entry: SubmissionEntry, limits: ReadLimits | None = None) -> ReadSubmission:
    """Read an entry; raises nothing.

    What is wrong with it is in `problem` and `notes`.
    """
    reader = _SourceReader(limits or ReadLimits())
    try:
        for name, path in entry.members or (("", entry.origin),):
            reader.take_path(name, path)
        reader.take_waiting()
    except Exception as error:  # one strange submission must not end the run
        problem = f"It could not be read ({type(error).__name__})."
        return ReadSubmission(entry, (), problem, (), digest_of(()))
    return reader.make_submission(entry)


def find_fault(file: SourceFile) -> str | None:
    """The fault in the bytes of a source; None if there is none.

    It is the rest of a sentence that the file's name begins.
    """
    if file.data[:2] in _UTF_16_MARKS:
        return "is UTF-16 text; save it as UTF-8"
    if b"\0" in file.data:
        return "is not text: it has a null byte in it"
    is_notebook = bool(ending_of(file.path, _NOTEBOOK))
    if is_notebook or not _names_encoding(file.data):
        fault = _fault_in_encoding(file.data)
        if fault:
            return fault
    if is_notebook:
        return _fault_in_notebook(file.data)
    return None


def _names_encoding(data: bytes) -> bool:
    """True if a Python file names its encoding, in one of its first two lines."""
    first_lines = data.split(b"\n", 2)[:2]
    return any(_CODING.match(line) for line in first_lines)


def _fault_in_encoding(data: bytes) -> str | None:
    """The first byte that is not UTF-8, in words; None if there is none."""
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"byte {data[error.start]:#04x} in line {line}"
        return f"is not UTF-8 text: {byte}; save it as UTF-8"
    return None


def _fault_in_notebook(data: bytes) -> str | None:
    """The fault that shows without parsing that bytes are no notebook; None if none shows.

    They are parsed only in the sandbox: ten megabytes of brackets take a quarter of a gigabyte.
    """
    text = data.removeprefix(b"\xef\xbb\xbf").strip()
    if not text.startswith(b"{"):
        return "is not a notebook"
    if not text.endswith(b"}"):
        return "is not a notebook, or one that is cut off"
    if b'"cells"' not in text and b'"worksheets"' not in text:
        return "is not a notebook: it has no cells"
    return None


def _unsupported_archive(name: str) -> str:
    """Why an archive of this name is not read: the rest of a sentence."""
    kind = ending_of(name, STRANGE_ARCHIVES)
    return f"is an archive of a kind that is not supported ({kind}); hand in a .zip"


def note_on_written_files(file: SourceFile) -> str:
    """A sentence about Python files that cells of a notebook would write; empty if there are none.

    It looks for the magic in the notebook's JSON, which is parsed only in the sandbox.
    """
    if not ending_of(file.path, _NOTEBOOK) or b"file" not in file.data:
        return ""
    written = set()
    for name in _WRITEFILE.findall(file.data):
        written.add(name.decode("utf-8", "replace"))
    if not written:
        return ""
    shown = [name_in_text(name) for name in sorted(written)[:FILES_SHOWN]]
    names = ", ".join(shown)
    if len(written) > FILES_SHOWN:
        names += f" and {len(written) - FILES_SHOWN} more"
    return f"A cell of {name_in_text(file.path)} writes {names} {WRITTEN}"


class _WaitingArchive(NamedTuple):
    """An archive that is still to be read."""

    file: ListedFile
    depth: int  # of how many archives its files lie in, with itself


class _SourceReader:
    """Collects sources as long as the limits allow, and notes on what it cannot use."""

    def __init__(self, limits: ReadLimits) -> None:
        """Read nothing yet."""
        self.limits = limits
        self.files: dict[str, SourceFile] = {}
        self.notes: list[str] = []
        self.bytes_read = 0
        self.bytes_unpacked = 0  # of gzips
        self.other_files = 0  # neither sources nor archives
        self.files_too_many = 0
        self.waiting: deque[_WaitingArchive] = deque()  # inside what was handed in
        # Paths of files, and of folders that they need, as compared where case does not count.
        self._folded_files: set[str] = set()
        self._folded_folders: set[str] = set()

    def take_path(self, name: str, path: Path) -> None:
        """Read a path on disk: a folder, an archive or a source.

        `name` is its path inside the submission; empty if it is all of it. Archives inside of it
        wait for `take_waiting`. Raises nothing: what cannot be read becomes a note.
        """
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):  # only a path from the command line can be a link here
                mode = os.stat(path).st_mode
                path = Path(os.path.realpath(path))
            self._take_by_kind(name, path, mode)
        # Whatever cannot be read becomes a note.
        except Unreadable as error:
            self._add_note(path.name, error)
        except (OSError, ValueError) as error:
            self._add_note(path.name, f"cannot be read: {reason_of(error)}")

    def _add_note(self, name: str, reason: object) -> None:
        """Note something about a file: a sentence that its name begins."""
        self.notes.append(f"{name_in_text(name)} {reason}.")

    def _take_by_kind(self, name: str, path: Path, mode: int) -> None:
        """Read a folder, an archive or a single file; `mode` is that of the path.

        Archives inside of it wait for `take_waiting`. Raises Unreadable, OSError or ValueError for
        what cannot be read.
        """
        strange = ending_of(path.name, STRANGE_ARCHIVES)
        if stat.S_ISDIR(mode):
            self.take_all(list_folder(path, self.limits), name, depth=0)
        elif not stat.S_ISREG(mode):
            raise Unreadable(NOT_A_FILE)
        elif ending_of(path.name, ARCHIVES):
            data = self._read_archive(path)
            self.take_all(self.list_archive(data), name, depth=1)
        elif strange:
            raise Unreadable(_unsupported_archive(path.name))
        else:
            self._take_single(name, path)

    def _read_archive(self, path: Path) -> bytes:
        """The bytes of an archive on disk.

        Raises Unreadable if it is too large or cannot be read.
        """
        most = self.limits.archive_bytes
        data = read_file(path, most)
        if len(data) > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        return data

    def _take_single(self, name: str, path: Path) -> None:
        """Read a file on disk that is no archive; raises Unreadable and OSError.

        `name` is its path inside the submission; empty if it is all of it.
        """
        contents = Contents()
        own_name = name or path.name
        inside, needs_note = path_on_disk(own_name, self.limits)
        if needs_note:
            contents.note_new_name(own_name, inside)
        if inside is not None:
            size = os.stat(path).st_size
            contents.files[name] = ListedFile(inside, size, partial(read_file, path))
        self.take_all(contents, "", depth=0)

    def list_archive(self, data: bytes) -> Contents:
        """The files in an archive, by its content, whatever its name is; raises Unreadable.

        What a gzip unpacks to is counted.
        """
        if not data:
            raise Unreadable("is empty")
        is_zip = data.startswith(b"PK")
        is_gzip = data.startswith(GZIP_MARK)
        if is_gzip or (not is_zip and is_tar(data)):
            bytes_left = max(self.limits.total_bytes - self.bytes_unpacked, 0)
            limits = msgspec.structs.replace(self.limits, total_bytes=bytes_left)
            contents = list_tar(data, limits)
            self.bytes_unpacked += contents.unpacked
            return contents
        for mark, kind in _STRANGE_MARKS.items():
            if data.startswith(mark):
                raise Unreadable(f"is a {kind} archive under another name; hand in a .zip")
        return list_zip(data, self.limits)

    def take_all(self, contents: Contents, folder: str, depth: int) -> None:
        """Read everything that can be graded in a folder or archive, the shallowest first.

        `folder` is put before its paths. `depth` is the number of archives that they lie in;
        archives in it wait for `take_waiting`. What cannot be used is noted.
        """
        self.notes += contents.notes
        files = list(contents.files.values())
        files.sort(key=lambda file: depth_key(file.path))
        for file in files:
            path = file.path
            if folder:
                path = f"{folder}/{path}"
            placed = ListedFile(path, file.size, file.fetch)
            if ending_of(path, SOURCES):
                self.take_source(placed)
            elif not ending_of(path, ARCHIVES):
                if ending_of(path, STRANGE_ARCHIVES):
                    self._add_note(path, _unsupported_archive(path))
                else:
                    self.other_files += 1
            elif depth < DEEPEST_ARCHIVE:
                self.waiting.append(_WaitingArchive(placed, depth + 1))
            else:
                self._add_note(path, TOO_DEEP)

    def take_waiting(self) -> None:
        """Read archives inside what was handed in, and archives in these.

        Platforms pack what students packed. What cannot be read is noted.
        """
        while self.waiting:
            file, depth = self.waiting.popleft()
            try:
                data = self._read_listed_file(file, self.limits.archive_bytes)
                contents = self.list_archive(data)
            except Unreadable as error:
                self._add_note(file.path, error)
            else:
                if not contents.files and not contents.notes:
                    self._add_note(file.path, "has no files in it")
                self.take_all(contents, file.path, depth)

    def take_source(self, file: ListedFile) -> None:
        """Read a source, or note why it is not used.

        One that is empty, or cannot stand beside those that were read, is not used.
        """
        if len(self.files) >= self.limits.files:
            self.files_too_many += 1
            return
        try:
            self._refuse_clash(file.path)
            data = self._read_listed_file(file, self.limits.file_bytes)
        except Unreadable as error:
            self._add_note(file.path, error)
            return
        if not data.strip():
            self._add_note(file.path, "is empty")
            return
        self.files[file.path] = SourceFile(file.path, data)
        folded = fold_case(file.path)
        self._folded_files.add(folded)
        self._folded_folders |= _folders_above(folded)

    def _refuse_clash(self, path: str) -> None:
        """Raise Unreadable for a path that cannot stand beside those that were read.

        Each path is there once, also on systems to which case does not matter; and no file is
        where another needs a folder.
        """
        folded = fold_case(path)
        if len(path.encode()) > self.limits.path_length:
            raise Unreadable(f"has a path of more than {self.limits.path_length} bytes")
        if path in self.files:
            raise Unreadable("was ignored: another file has its name")
        if folded in self._folded_files:
            raise Unreadable(
                "was ignored: its name differs from another file's only in upper and lower case"
            )
        is_folder = folded in self._folded_folders
        if is_folder or _folders_above(folded) & self._folded_files:
            raise Unreadable("was ignored: it is a file and a folder at once")

    def _read_listed_file(self, file: ListedFile, most: int) -> bytes:
        """The bytes of a file, which are counted.

        Those of a damaged file count as if it had been read. Raises Unreadable where it is larger
        than `most`, goes beyond what is read in total, or cannot be read.
        """
        bytes_left = self.limits.total_bytes - self.bytes_read
        in_total = format_size(self.limits.total_bytes)
        too_large = Unreadable(f"is larger than {format_size(most)}")
        too_much = Unreadable(f"goes beyond the {in_total} that are read in total")
        if file.size > most:
            raise too_large
        if file.size > bytes_left:
            raise too_much
        try:
            data = file.fetch(min(most, bytes_left))
        except Unreadable:
            # To find out that it is damaged takes as long as to read it.
            self.bytes_read += file.size
            raise
        # It may be larger than the folder or archive says.
        if len(data) > bytes_left:
            raise too_much
        if len(data) > most:
            raise too_large
        self.bytes_read += len(data)
        return data

    # The result

    def make_submission(self, entry: SubmissionEntry) -> ReadSubmission:
        """The submission of an entry, with everything that was read and all notes."""
        files = list(self.files.values())
        files.sort(key=lambda file: depth_key(file.path))
        faults = []
        for file in files:
            fault = find_fault(file)
            if fault:
                faults.append(f"{name_in_text(file.path)} {fault}.")
        return ReadSubmission(
            entry,
            files=tuple(files),
            problem=self._why_ungradable(entry, files, faults),
            notes=tuple(self._all_notes(files, faults)),
            digest=digest_of(files),
        )

    def _why_ungradable(
        self, entry: SubmissionEntry, files: list[SourceFile], faults: list[str]
    ) -> str | None:
        """The reason why nothing can be graded; None if something can be.

        That is: no file, a fault in every file, or the work of several students.
        """
        if not files:
            if self.notes:
                return self.notes[0]
            return self._why_no_files()
        if len(faults) == len(files):
            return faults[0]
        if entry.kind not in (Kind.ZIP, Kind.TAR):
            return None
        paths = [file.path for file in files]
        folders = {folder for path in paths for folder in path.split("/")[:-1]}
        is_platforms_zip = entry.kind is Kind.ZIP and entry.naming is Naming.PLAIN
        has_one = is_platforms_zip and holds_moodle_folder(folders)
        if len(people_in(paths)) < 2 and not has_one:
            return None
        instead = "give it by itself"
        if entry.kind is Kind.TAR:
            instead = "unpack it and give the folder"
        return f"It {HOLDS_SEVERAL.format(instead)}."

    def _all_notes(self, files: list[SourceFile], faults: list[str]) -> list[str]:
        """Notes for a person, as many as there may be.

        The last one then says how many are left out.
        """
        # What is wrong with the files that count, first.
        notes = []
        if self.files_too_many:
            which = "the first was"
            if len(files) > 1:
                which = f"the first {len(files)} were"
            count = len(files) + self.files_too_many
            notes.append(f"There are {count} Python files and notebooks; only {which} read.")
        notes += faults
        notes += dict.fromkeys(self.notes)
        # Remarks on files that were not read or not run.
        for file in files:
            note = note_on_written_files(file)
            if note:
                notes.append(note)
        if self.other_files and files:
            what = "file that is not an exercise was"
            if self.other_files > 1:
                what = "files that are not exercises were"
            notes.append(f"{self.other_files} {what} ignored.")
        if len(notes) > self.limits.notes:
            shown = notes[: self.limits.notes - 1]
            left_out = len(notes) - len(shown)
            return [*shown, f"There are {left_out} more remarks like these."]
        return notes

    def _why_no_files(self) -> str:
        """A sentence on what there is instead of sources."""
        if not self.other_files:
            return "It is empty."
        if self.other_files == 1:
            return "The only file is neither a Python file nor a notebook."
        return f"There is no Python file or notebook among the {self.other_files} files."


def _folders_above(path: str) -> set[str]:
    """All folders that a path lies in."""
    folders = set()
    folder = path.rpartition("/")[0]
    while folder:
        folders.add(folder)
        folder = folder.rpartition("/")[0]
    return folders
