"""Lists the files below a folder, and reads one file.

Whoever made the folder may mean harm: no link is followed, and limits are kept.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections import deque
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.submissions.contents import LINK, NOT_A_FILE, Contents, ListedFile
from gpudojo.submissions.entries import ReadLimits, Unreadable
from gpudojo.submissions.names import is_junk, natural_key, reason_of
from gpudojo.submissions.storable_paths import path_on_disk

_LEAST_READ: Final = 4096  # bytes at a time: some file systems know of no size
# O_NONBLOCK: a FIFO would wait for a writer. O_NOFOLLOW: a file may have been replaced by a link
# since it was listed. Not every system has all of them.
_FLAG_NAMES: Final = ("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")
_FLAGS: Final = sum(getattr(os, name, 0) for name in _FLAG_NAMES)


def list_folder(root: Path, limits: ReadLimits) -> Contents:
    """The files below a folder, with notes on what cannot be used; no file is opened yet.

    Junk and virtual environments are left out without a note. Raises nothing: a folder that cannot
    be read is noted.
    """
    return _FolderLister(root, limits).list_all()


class _Folder(NamedTuple):
    """A folder that is still to be listed."""

    path: Path
    name: str  # below the root; empty for the root itself
    depth: int


class _FolderLister:
    """Lists the files below one folder, the shallowest first."""

    def __init__(self, root: Path, limits: ReadLimits) -> None:
        """List nothing yet."""
        self.root = root
        self.limits = limits
        self.contents = Contents()
        self._waiting = deque([_Folder(root, "", 0)])
        self._looked_at = 0  # files and folders

    def list_all(self) -> Contents:
        """List folder after folder, until there are too many names.

        Junk and virtual environments are left out; what cannot be read is noted.
        """
        while self._waiting:
            folder = self._waiting.popleft()
            for child in self._children_of(folder):
                self._looked_at += 1
                if self._looked_at > self.limits.entries:
                    self.contents.notes.append(
                        f"There are more than {self.limits.entries} files; the rest was ignored."
                    )
                    return self.contents
                if not is_junk(child.name):
                    self._add_child(folder, child)
        return self.contents

    def _children_of(self, folder: _Folder) -> list[os.DirEntry[str]]:
        """The names in a folder, in an order that is the same everywhere.

        There are none in a virtual environment, and, after a note, in a folder that cannot be read.
        """
        try:
            with os.scandir(folder.path) as listing:
                entries = itertools.islice(listing, self.limits.entries + 1)
                children = sorted(entries, key=lambda child: natural_key(child.name))
        except OSError as error:
            name = folder.name or "The folder"
            self.contents.add_note(name, f"cannot be read: {reason_of(error)}")
            return []
        if any(child.name == "pyvenv.cfg" for child in children):
            return []
        return children

    def _add_child(self, folder: _Folder, child: os.DirEntry[str]) -> None:
        """Add a file, keep a folder for later, or note what cannot be used. Raises nothing.

        `child` is an entry of `folder`.
        """
        if folder.name:
            name = f"{folder.name}/{child.name}"
        else:
            name = child.name
        path = folder.path / child.name
        try:
            if child.is_symlink() or _is_junction(child):
                self.contents.add_note(name, _problem_of_link(self.root, path))
            elif child.is_dir(follow_symlinks=False):
                if folder.depth >= self.limits.depth:
                    raise Unreadable(f"lies more than {self.limits.depth} folders deep")
                self._waiting.append(_Folder(path, name, folder.depth + 1))
            elif child.is_file(follow_symlinks=False):
                self._add_file(name, path, child)
            else:
                raise Unreadable(NOT_A_FILE)
        except Unreadable as error:
            self.contents.add_note(name, error)
        except OSError as error:
            self.contents.add_note(name, f"cannot be read: {reason_of(error)}")

    def _add_file(self, name: str, path: Path, child: os.DirEntry[str]) -> None:
        """Add a regular file; raises Unreadable and OSError."""
        inside, needs_note = path_on_disk(name, self.limits)
        if needs_note:
            self.contents.note_new_name(name, inside)
        if inside is None:
            return
        size = child.stat(follow_symlinks=False).st_size
        self.contents.files[name] = ListedFile(inside, size, partial(read_file, path))


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file, at most `most` and one more.

    The one more shows that the file is larger. Raises Unreadable for anything else and for a file
    that cannot be read.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {reason_of(error)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("is not a regular file")
        # As much as there is, and no more memory: to ask for `most` would set that aside for every
        # file.
        size = max(status.st_size, _LEAST_READ)
        parts = []
        bytes_left = most + 1
        while bytes_left:
            part = os.read(descriptor, min(bytes_left, size))
            if not part:
                break
            parts.append(part)
            bytes_left -= len(part)
        return b"".join(parts)
    except OSError as error:
        raise Unreadable(f"cannot be read: {reason_of(error)}") from None
    finally:
        os.close(descriptor)


def _problem_of_link(root: Path, path: Path) -> str:
    """What to say of a link, by where it leads."""
    target = os.path.realpath(path)
    inside = os.path.realpath(root)
    if target == inside or target.startswith(inside + os.sep):
        return f"{LINK}; what it points to is read at its own path"
    return "is a link that leads out of the submission"


def _is_junction(child: os.DirEntry[str]) -> bool:
    """True for Windows' other kind of link, which Python knows since 3.12."""
    ask = getattr(child, "is_junction", None)
    return bool(ask and ask())
