"""Reads the sources of one submission."""

from __future__ import annotations

import os
import re
import stat
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from virtual_cuda.hooks import format_size

from gpudojo.submissions import archives
from gpudojo.submissions.archives import Contents, ListedFile
from gpudojo.submissions.entries import (
    Kind,
    ReadLimits,
    ReadSubmission,
    SourceFile,
    SubmissionEntry,
    Unreadable,
    digest_of,
)
from gpudojo.submissions.names import (
    ARCHIVES,
    SOURCES,
    STRANGE_ARCHIVES,
    depth_key,
    ending_of,
    fold_case,
    name_in_text,
    people_in,
    reason_of,
)

_NOTEBOOK: Final = (".ipynb",)
_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=]", re.M)
_UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_GZIP_MARK: Final = b"\x1f\x8b"
# How files of archives begin that are not read.
_STRANGE_MARKS: Final = {b"Rar!": "rar", b"7z\xbc\xaf": "7z", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
# A magic in the JSON of a notebook that writes a Python file.
_WRITEFILE: Final = re.compile(rb'"\s*%%(?:write)?file\s+(?:-a\s+)?([^"\\\s]+\.py)\b')
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
    # A Python file may name another encoding in its first two lines.
    names_encoding = any(_CODING.match(line) for line in file.data.split(b"\n", 2)[:2])
    if is_notebook or not names_encoding:
        fault = _fault_in_encoding(file.data)
        if fault:
            return fault
    return _fault_in_notebook(file.data) if is_notebook else None


def _fault_in_encoding(data: bytes) -> str | None:
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


def note_on_written_files(file: SourceFile) -> str:
    """A sentence about Python files that cells of a notebook would write; empty if there are none.

    It looks for the magic in the notebook's JSON, which is parsed only in the sandbox.
    """
    if not ending_of(file.path, _NOTEBOOK) or b"file" not in file.data:
        return ""
    written = sorted({name.decode("utf-8", "replace") for name in _WRITEFILE.findall(file.data)})
    if not written:
        return ""
    names = ", ".join(map(name_in_text, written[:3]))
    if len(written) > 3:
        names += f" and {len(written) - 3} more"
    return f"A cell of {name_in_text(file.path)} writes {names} {WRITTEN}"


class _SourceReader:
    """Collects sources as long as the limits allow, and notes on what it cannot use."""

    def __init__(self, limits: ReadLimits) -> None:
        """Begin with nothing read."""
        self.limits = limits
        self.files: dict[str, SourceFile] = {}
        self.notes: list[str] = []
        self.bytes_read = 0
        self.bytes_unpacked = 0  # of gzips
        self.other_files = 0  # neither sources nor archives
        self.files_too_many = 0
        self.waiting: list[ListedFile] = []  # archives inside what was handed in
        # Paths of files, and of folders that they need, as compared where case does not count.
        self._folded_files: set[str] = set()
        self._folded_folders: set[str] = set()

    def take_path(self, name: str, path: Path) -> None:
        """Read a path on disk: a folder, an archive or a source.

        `name` is its path inside the submission; empty if it is all of it.
        """
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):  # only a path from the command line can be a link here
                mode = os.stat(path).st_mode
                path = Path(os.path.realpath(path))
            # By what it is: a folder, an archive, or a single file.
            strange = ending_of(path.name, STRANGE_ARCHIVES)
            if stat.S_ISDIR(mode):
                self.take_all(archives.folder_listing(path, self.limits), name, nested=True)
            elif not stat.S_ISREG(mode):
                raise Unreadable(archives.NOT_A_FILE)
            elif ending_of(path.name, ARCHIVES):
                self.take_all(self.list_archive(self._read_archive(path)), name, nested=True)
            elif strange:
                raise Unreadable(
                    f"is an archive of a kind that is not supported ({strange}); hand in a .zip"
                )
            else:
                self._take_single(name, path)
        # Whatever cannot be read becomes a note.
        except Unreadable as error:
            self.notes.append(f"{name_in_text(path.name)} {error}.")
        except (OSError, ValueError) as error:
            self.notes.append(f"{name_in_text(path.name)} cannot be read: {reason_of(error)}.")

    def _read_archive(self, path: Path) -> bytes:
        """The bytes of an archive on disk; raises Unreadable."""
        most = self.limits.archive_bytes
        data = archives.read_file(path, most)
        if len(data) > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        return data

    def _take_single(self, name: str, path: Path) -> None:
        """Read a file on disk that is no archive; raises Unreadable."""
        contents = Contents()
        inside = contents.place(name or path.name, self.limits, on_disk=True)
        if inside is not None:
            size = os.stat(path).st_size
            contents.files[name] = ListedFile(inside, size, partial(archives.read_file, path))
        self.take_all(contents, "", nested=False)

    def list_archive(self, data: bytes) -> Contents:
        """The files in an archive, by its content, whatever its name is; raises Unreadable."""
        is_zip = data[:2] == b"PK"
        if data[:2] == _GZIP_MARK or (not is_zip and archives.is_tar(data)):
            left = max(self.limits.total_bytes - self.bytes_unpacked, 0)
            limits = msgspec.structs.replace(self.limits, total_bytes=left)
            contents = archives.tar_listing(data, limits)
            self.bytes_unpacked += contents.unpacked
            return contents
        if not data:
            raise Unreadable("is empty")
        for mark, kind in _STRANGE_MARKS.items():
            if data.startswith(mark):
                raise Unreadable(f"is a {kind} archive under another name; hand in a .zip")
        return archives.zip_listing(data, self.limits)

    def take_all(self, contents: Contents, folder: str, nested: bool) -> None:
        """Read everything that can be graded in a folder or archive, the shallowest first.

        `nested` is whether archives in it are to be read, too; `take_waiting` does that.
        """
        self.notes += contents.notes
        for file in sorted(contents.files.values(), key=lambda file: depth_key(file.path)):
            path = f"{folder}/{file.path}" if folder else file.path
            placed = ListedFile(path, file.size, file.fetch)
            if ending_of(path, SOURCES):
                self.take_source(placed)
            elif not ending_of(path, ARCHIVES):
                self.other_files += 1
            elif nested:
                self.waiting.append(placed)
            else:
                self.notes.append(
                    f"{name_in_text(path)} is an archive in an archive in an archive, "
                    "which is not opened."
                )

    def take_waiting(self) -> None:
        """Read archives inside what was handed in, one level deep.

        Platforms pack what students packed.
        """
        for file in self.waiting:
            try:
                contents = self.list_archive(self._read(file, self.limits.archive_bytes))
            except Unreadable as error:
                self.notes.append(f"{name_in_text(file.path)} {error}.")
            else:
                self.take_all(contents, file.path, nested=False)

    def take_source(self, file: ListedFile) -> None:
        """Read a source, or note why it is not used."""
        if len(self.files) >= self.limits.files:
            self.files_too_many += 1
            return
        try:
            self._refuse_clash(file.path)
            data = self._read(file, self.limits.file_bytes)
        except Unreadable as error:
            self.notes.append(f"{name_in_text(file.path)} {error}.")
            return
        if not data.strip():
            self.notes.append(f"{name_in_text(file.path)} is empty.")
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
        if folded in self._folded_folders or _folders_above(folded) & self._folded_files:
            raise Unreadable("was ignored: it is a file and a folder at once")

    def _read(self, file: ListedFile, most: int) -> bytes:
        """The bytes of a file, which are counted; raises Unreadable."""
        left = self.limits.total_bytes - self.bytes_read
        too_much = Unreadable(
            f"goes beyond the {format_size(self.limits.total_bytes)} that are read in total"
        )
        if file.size > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        if file.size > left:
            raise too_much
        try:
            data = file.fetch(min(most, left))
        except Unreadable:
            # To find out that it is damaged takes as long as to read it.
            self.bytes_read += file.size
            raise
        if len(data) > left:
            raise too_much
        if len(data) > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        self.bytes_read += len(data)
        return data

    # The result

    def make_submission(self, entry: SubmissionEntry) -> ReadSubmission:
        """The submission of an entry, with everything that was read and all notes."""
        files = tuple(sorted(self.files.values(), key=lambda file: depth_key(file.path)))
        faults = []
        for file in files:
            fault = find_fault(file)
            if fault:
                faults.append(f"{name_in_text(file.path)} {fault}.")
        problem = self._problem(entry, files, faults)
        notes = self._all_notes(files, faults)
        return ReadSubmission(entry, files, problem, notes, digest_of(files))

    def _problem(
        self, entry: SubmissionEntry, files: tuple[SourceFile, ...], faults: list[str]
    ) -> str | None:
        """The reason why nothing can be graded; None if something can be."""
        if not files:
            return self.notes[0] if self.notes else self._why_no_files()
        if len(faults) == len(files):
            return faults[0]
        if entry.kind not in (Kind.ZIP, Kind.TAR):
            return None
        if len(people_in(file.path for file in files)) < 2:
            return None
        instead = "give it by itself"
        if entry.kind is Kind.TAR:
            instead = "unpack it and give the folder"
        return (
            "It holds the work of several students; "
            f"to grade them, {instead}: dojo grade PATH --out DIR."
        )

    def _all_notes(self, files: tuple[SourceFile, ...], faults: list[str]) -> tuple[str, ...]:
        """Notes for a person, as many as there may be."""
        notes = []
        if self.files_too_many:
            which = f"the first {len(files)} were" if len(files) > 1 else "the first was"
            count = len(files) + self.files_too_many
            notes.append(f"There are {count} Python files and notebooks; only {which} read.")
        notes += faults
        notes += dict.fromkeys(self.notes)
        notes += filter(None, map(note_on_written_files, files))
        if self.other_files and files:
            what = "file that is not an exercise was"
            if self.other_files > 1:
                what = "files that are not exercises were"
            notes.append(f"{self.other_files} {what} ignored.")
        if len(notes) > self.limits.notes:
            shown = notes[: self.limits.notes - 1]
            left_out = len(notes) - len(shown)
            notes = [*shown, f"There are {left_out} more remarks like these."]
        return tuple(notes)

    def _why_no_files(self) -> str:
        if not self.other_files:
            return "It is empty."
        if self.other_files == 1:
            return "The only file is neither a Python file nor a notebook."
        return f"There is no Python file or notebook among the {self.other_files} files."


def _folders_above(path: str) -> set[str]:
    """All folders that a path lies in."""
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}
