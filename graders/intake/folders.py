"""Which files lie in a folder on disk? Regular ones; no link is followed, nothing that can block is opened."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import Final

from graders.intake.contents import Contents, Found
from graders.intake.names import is_junk, natural
from graders.intake.records import Limits, Unreadable

# A FIFO opened without O_NONBLOCK waits for a writer; a file swapped for a link after it was listed is not followed.
_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def listing(root: Path, limits: Limits) -> Contents:
    """Everything of interest below a folder, nothing opened yet."""
    contents = Contents()
    waiting: list[tuple[Path, str, int]] = [(root, "", 0)]
    looked_at = 0
    while waiting:
        folder, inside, depth = waiting.pop(0)
        try:
            with os.scandir(folder) as entries:
                children = sorted(entries, key=lambda child: natural(child.name))
        except OSError as error:
            contents.refuse(inside or "The folder", f"cannot be read: {_reason(error)}")
            continue
        if any(child.name == "pyvenv.cfg" for child in children):
            continue  # a virtual environment under a name of its own
        for child in children:
            looked_at += 1
            if looked_at > limits.entries:
                contents.notes.append(f"There are more than {limits.entries} files; the rest was not looked at.")
                return contents
            if is_junk(child.name):
                continue
            name = f"{inside}/{child.name}" if inside else child.name
            try:
                if child.is_symlink() or _is_junction(child):
                    contents.refuse(name, _link(root, folder / child.name))
                elif child.is_dir(follow_symlinks=False):
                    if depth >= limits.depth:
                        contents.refuse(name, f"lies more than {limits.depth} folders deep")
                    else:
                        waiting.append((folder / child.name, name, depth + 1))
                elif child.is_file(follow_symlinks=False):
                    if path := contents.place(name, limits, on_disk=True):
                        size = child.stat(follow_symlinks=False).st_size
                        contents.files.append(Found(path, size, partial(fetch, folder / child.name)))
                else:
                    contents.refuse(name, "is neither a file nor a folder but a pipe, socket or device")
            except Unreadable as error:
                contents.refuse(name, error)
            except OSError as error:
                contents.refuse(name, f"cannot be read: {_reason(error)}")
    return contents


def fetch(path: Path, most: int) -> bytes:
    """A regular file's bytes, at most so many and one more, by which the reader sees that there are more."""
    try:
        descriptor = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be read: {_reason(error)}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable("is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {_reason(error)}") from None
    finally:
        os.close(descriptor)


def _link(root: Path, path: Path) -> str:
    target = os.path.realpath(path)
    inside = os.path.realpath(root)
    if target == inside or target.startswith(inside + os.sep):
        return "is a link, which is not followed; what it leads to is read at its own place"
    return "is a link that leads out of the submission"


def _is_junction(child: os.DirEntry[str]) -> bool:
    """Windows' other kind of link; Python knows it since 3.12."""
    ask = getattr(child, "is_junction", None)
    return bool(ask and ask())


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is gone"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
