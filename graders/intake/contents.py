"""What lies in a folder, a zip or a tar? The same list for all of them: paths, sizes, and how to get the bytes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from graders.intake.names import ARCHIVES, SOURCES, is_junk, shown, suffix
from graders.intake.records import Limits, Unreadable

_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Names that Windows keeps for devices, with any ending; and characters it has no files with.
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)
_FORBIDDEN: Final = re.compile(r'[<>:"|?*\\]|^\s+|[\s.]+$')


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file in something, not read yet."""

    path: str
    size: int
    fetch: Callable[[int], bytes]  # at most so many bytes; raises Unreadable


@dataclass(slots=True)
class Contents:
    """The files of one folder or archive, and sentences about what could not be taken."""

    files: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def place(self, name: str, limits: Limits, on_disk: bool = False) -> str | None:
        """Where a file belongs, below any folder; None for junk, Unreadable for a path that leads astray."""
        # In an archive a backslash separates and a colon follows a drive; in a file that is there, both are just names.
        path = placed(re.sub(r"[\\:]", "_", name) if on_disk else name, limits)
        if path is not None and path != "/".join(_parts(name)) and suffix(path, (*SOURCES, *ARCHIVES)):
            # A name is no reason to leave work ungraded.
            self.refuse(name, f"is read as {shown(path)}, because not every system can store its name")
        return path

    def refuse(self, name: str, reason: object) -> None:
        self.notes.append(f"{shown(name)} {reason}.")


def placed(name: str, limits: Limits) -> str | None:
    """A path that can be written below any folder; None for junk, Unreadable for one that leads astray."""
    if "\0" in name:
        raise Unreadable("has a null byte in its name")
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        raise Unreadable("has an absolute path, which leads out of the submission")
    parts = _parts(name)
    if ".." in parts:
        raise Unreadable("has a path with `..`, which leads out of the submission")
    if any(is_junk(part) for part in parts):
        return None
    if len(parts) - 1 > limits.depth:
        raise Unreadable(f"lies more than {limits.depth} folders deep")
    path = "/".join(map(_storable, parts))
    if len(path.encode()) > limits.path_length:
        raise Unreadable(f"has a path of more than {limits.path_length} bytes")
    return path or None


def _parts(name: str) -> list[str]:
    # Some Windows programs pack with backslashes; on no system should a source file have one in its name.
    whole = unicodedata.normalize("NFC", name).replace("\\", "/")
    return [part for part in whole.split("/") if part not in ("", ".")]


def _storable(part: str) -> str:
    """A name without what some system has no files with: control characters, bytes that are no UTF-8, devices."""
    part = _FORBIDDEN.sub("_", "".join(c if c.isprintable() else "_" for c in part))
    return f"_{part}" if _DEVICES.fullmatch(part) else part
