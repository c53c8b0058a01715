"""What lies in a folder, a zip or a tar? The same list for all of them: paths, sizes, and how to get the bytes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from graders.intake.names import is_junk, shown
from graders.intake.records import Limits, Unreadable

_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Names that Windows keeps for devices, with any ending; and characters it has no files with.
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)
_FORBIDDEN: Final = re.compile(r'[<>:"|?*\\]')


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

    def refuse(self, name: str, reason: object) -> None:
        self.notes.append(f"{shown(name)} {reason}.")


def placed(name: str, limits: Limits) -> str | None:
    """Where a file of an archive belongs, as a path below any folder; None for junk, Unreadable for a bad path."""
    if "\0" in name:
        raise Unreadable("has a null byte in its name")
    # Some Windows programs pack with backslashes; on no system may a source file have one in its name.
    whole = unicodedata.normalize("NFC", name).replace("\\", "/")
    if whole.startswith("/") or _DRIVE.match(whole):
        raise Unreadable("has an absolute path, which leads out of the submission")
    parts = [part for part in whole.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Unreadable("has a path with `..`, which leads out of the submission")
    if any(is_junk(part) for part in parts):
        return None
    if len(parts) - 1 > limits.depth:
        raise Unreadable(f"lies more than {limits.depth} folders deep")
    path = "/".join(parts)
    if len(path.encode("utf-8", "surrogateescape")) > limits.path_length:
        raise Unreadable(f"has a path of more than {limits.path_length} bytes")
    for part in parts:
        if not part.isprintable():  # control characters, and the lone surrogates that stand for bytes that are no UTF-8
            raise Unreadable("has a name with control characters or bytes that are not UTF-8")
        if _FORBIDDEN.search(part) or _DEVICES.fullmatch(part) or part != part.strip() or part.endswith("."):
            raise Unreadable("has a name that not every system can store")
    return path or None
