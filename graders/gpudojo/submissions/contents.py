"""The files of one folder or archive, listed and not read yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gpudojo.submissions.entries import ReadLimits, Unreadable
from gpudojo.submissions.names import name_in_text
from gpudojo.submissions.storable_paths import path_in_archive

NOT_A_FILE: Final = "is neither a file nor a folder but a pipe, socket or device"
LINK: Final = "is a link, which is not followed"
IN_TWICE: Final = "is in the archive more than once; the last one counts, as when it is unpacked"

# Takes the most bytes to read, and returns as many and one more; raises Unreadable.
Fetch = Callable[[int], bytes]


class ListedFile(msgspec.Struct, frozen=True):
    """A regular file in a folder or archive, not read yet."""

    path: str
    size: int
    fetch: Fetch


@dataclass(slots=True)
class Contents:
    """The files of one folder or archive, and notes on those that cannot be used."""

    files: dict[str, ListedFile] = field(default_factory=dict)  # by path, or by name on disk
    notes: list[str] = field(default_factory=list)
    unpacked: int = 0  # bytes that a gzip held

    def add_note(self, name: str, reason: object) -> None:
        """Note something about a file: a sentence that its name begins."""
        self.notes.append(f"{name_in_text(name)} {reason}.")

    def note_new_name(self, name: str, path: str | None) -> None:
        """Note that a file is read under another name than its own."""
        shown = name_in_text(path or "")
        self.add_note(name, f"is read as {shown}, because not every system can store its name")

    def add_archived_file(
        self, name: str, limits: ReadLimits, problem: str, size: int, fetch: Fetch
    ) -> None:
        """Add a file of an archive to `files`, or a note on what is wrong with it.

        `problem` is what the archive says is wrong, or empty; `fetch` reads the file later. Junk,
        which tools make, is left out without a note.
        """
        try:
            path, needs_note = path_in_archive(name, limits)
        except Unreadable as error:
            self.add_note(name, error)
            return
        if needs_note:
            self.note_new_name(name, path)
        if path is None:
            return
        if problem:
            self.add_note(name, problem)
            return
        if path in self.files:
            self.add_note(path, IN_TWICE)
        self.files[path] = ListedFile(path, size, fetch)
