"""Relative paths that every system can store, made from names in folders and archives.

Whoever packed an archive may mean harm: no path leads out of a submission.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final, NamedTuple

from gpudojo.model.errors import replace_unprintable
from gpudojo.submissions.entries import ReadLimits, Unreadable
from gpudojo.submissions.names import ARCHIVES, SOURCES, ending_of, is_junk

_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Names that Windows reserves for devices, with any ending; and characters it does not allow.
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)
_FORBIDDEN: Final = re.compile(r'[<>:"|?*\\]')
# Times the longest path: so much may be left out of a name (`./`, accents that are joined).
_LONGEST_NAME: Final = 4


class StorablePath(NamedTuple):
    """The relative path under which a file is read."""

    path: str | None  # None for junk, which tools make
    needs_note: bool  # it is not the file's own name, which a person should know


def path_in_archive(name: str, limits: ReadLimits) -> StorablePath:
    """The path for a name in an archive.

    Raises Unreadable for a path that leads out, or is too long or too deep.
    """
    return _path_for(name, name, limits)


@functools.lru_cache(1024)  # a class has the same names again and again
def path_on_disk(name: str, limits: ReadLimits) -> StorablePath:
    """The path for a name in a folder. Raises Unreadable for one that is too long or too deep.

    In an archive a backslash separates and a colon follows a drive; on disk both are part of a
    name.
    """
    return _path_for(re.sub(r"[\\:]", "_", name), name, limits)


def _path_for(name: str, shown_as: str, limits: ReadLimits) -> StorablePath:
    """The path for a name; a note is needed if a source or archive was called otherwise.

    `shown_as` is the name as it was written. Raises Unreadable where it leads out, or is too long
    or too deep.
    """
    path = storable_path(name, limits)
    if path is None or path == "/".join(_parts_of_path(shown_as)):
        return StorablePath(path, needs_note=False)
    is_read = bool(ending_of(path, (*SOURCES, *ARCHIVES)))
    return StorablePath(path, needs_note=is_read)


def storable_path(name: str, limits: ReadLimits) -> str | None:
    """A relative path that every system can store; None for junk, which tools make.

    Raises Unreadable for a path that leads out, or is too long or too deep.
    """
    too_long = Unreadable(f"has a path of more than {limits.path_length} bytes")
    if len(name) > _LONGEST_NAME * limits.path_length:  # before anything is done with it
        raise too_long
    if "\0" in name:
        raise Unreadable("has a null byte in its name")
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        raise Unreadable("has an absolute path, which leads out of the submission")
    parts = _parts_of_path(name)
    if ".." in parts:
        raise Unreadable("has a path with `..`, which leads out of the submission")
    if any(is_junk(part) for part in parts):
        return None
    if len(parts) - 1 > limits.depth:
        raise Unreadable(f"lies more than {limits.depth} folders deep")
    path = "/".join(_storable_name(part) for part in parts)
    if len(path.encode()) > limits.path_length:
        raise too_long
    return path or None


def _parts_of_path(name: str) -> list[str]:
    """The names of folders and file in a path. Some Windows programs pack with backslashes."""
    path = unicodedata.normalize("NFC", name).replace("\\", "/")
    return [part for part in path.split("/") if part not in ("", ".")]


@functools.lru_cache(1024)
def _storable_name(part: str) -> str:
    """A name that every system can store.

    It has no control characters, no invalid UTF-8, no space at its ends, and is no name of a
    device.
    """
    printable = replace_unprintable(part)
    name = _FORBIDDEN.sub("_", printable)
    without_end = name.rstrip(" .")
    if without_end != name:
        name = f"{without_end}_"
    if name[:1].isspace():
        name = f"_{name.lstrip()}"
    if _DEVICES.fullmatch(name):
        name = f"_{name}"
    return name
