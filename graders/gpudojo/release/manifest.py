"""The manifest of a released repository, and what differs from it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from gpudojo.model.catalogue import days
from gpudojo.model.errors import CannotRelease
from gpudojo.submissions.archives import fetch
from gpudojo.submissions.entries import Unreadable, is_junk

WORKFLOW: Final = ".github/workflows/classroom.yml"
GUARDED_FOLDERS: Final = ("vendor", ".github")
GUARDED_FILES: Final = frozenset({"requirements.txt", "pytest.ini", "conftest.py"})
# Files that would influence pytest or Python if a grader trusted the folder it runs in.
STEERING: Final = frozenset(
    "conftest.py pytest.ini tox.ini setup.cfg pyproject.toml sitecustomize.py usercustomize.py".split()
)
SHADOWS: Final = frozenset("gpudojo virtual_cuda torch numpy pytest msgspec click".split())
LARGEST: Final = 64 << 20
MOST: Final = 20_000  # entries of a checkout that are looked at
VERSION: Final = 1


class Manifest(msgspec.Struct, frozen=True):
    """What a release is made of, as far as students leave it alone."""

    day: str
    wheel: str  # "vendor/gpudojo-….whl"
    files: dict[str, str]  # path: SHA-256
    requirements: tuple[str, ...]  # what the grader needs, in the versions that it was released with
    version: int = VERSION

    @property
    def grader(self) -> str:
        """The version of gpudojo in the wheel."""
        return PurePosixPath(self.wheel).name.split("-")[1]


@dataclass(frozen=True)
class Change:
    """A file that is not as it was released."""

    path: str
    what: str  # "changed", "deleted", "added"


def manifest(files: Mapping[str, bytes], day: str) -> Manifest:
    """The manifest of a student's repository, by the paths of its files."""
    wheels = [path for path in files if re.fullmatch(r"vendor/gpudojo-[^/]+\.whl", path)]
    if len(wheels) != 1:
        said = f"a student's repository has one wheel of gpudojo in vendor/, but this one has {len(wheels)}"
        raise CannotRelease(said)
    lines = files.get("requirements.txt", b"").decode("utf-8", "replace").splitlines()
    needed = tuple(line.strip() for line in lines if line.strip() and not line.startswith(("./", "#", "-")))
    guarded = [path for path in files if path in GUARDED_FILES or path.partition("/")[0] in GUARDED_FOLDERS]
    return Manifest(day, wheels[0], {path: hashed(files[path]) for path in sorted(guarded)}, needed)


def of_folder(folder: Path) -> Manifest:
    """The same, of a released repository on disk."""
    files = {}
    for path in (*GUARDED_FILES, *(path for path in _walk(folder) if path.partition("/")[0] in GUARDED_FOLDERS)):
        with contextlib.suppress(Unreadable):
            files[path] = fetch(folder / path, LARGEST)
    day = next((name for name in days() if (folder / "exercises" / name).is_dir()), None)
    if day is None or not any(path.endswith(".whl") for path in files):
        raise CannotRelease(f"{folder} was not made by `dojo release student`: it has no exercises or no wheel")
    return manifest(files, day)


def dumped(made: Manifest) -> str:
    """The manifest on one line."""
    return msgspec.json.encode(made, order="sorted").decode()


def loaded(text: str) -> Manifest:
    try:
        found = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise CannotRelease(f"this is not the manifest of a release: {error}") from None
    if found.version != VERSION or found.day not in days() or not re.fullmatch(r"vendor/[^/]+-[^/]+", found.wheel):
        raise CannotRelease("this is not the manifest of a release that this version of gpudojo knows")
    return found


def hashed(data: bytes) -> str:
    """A hash that does not change with the line ends that git gives text on some systems."""
    return hashlib.sha256(data if b"\0" in data else data.replace(b"\r\n", b"\n")).hexdigest()


def changes(folder: Path, released: Manifest) -> list[Change]:
    """What of a checkout is not as it was released; nothing in it is run or followed."""
    found = []
    for path, wanted in sorted(released.files.items()):
        data = b""
        with contextlib.suppress(Unreadable):
            data = fetch(folder / path, LARGEST)
        if not os.path.lexists(folder / path):
            found.append(Change(path, "deleted"))
        elif hashed(data) != wanted:
            found.append(Change(path, "changed"))
    found += [Change(path, "added") for path in _steering(folder) if path not in released.files]
    return found


def _steering(folder: Path) -> Iterator[str]:
    """Files and folders that no release has there, and that would influence a grader that trusted them."""
    for path in _walk(folder):
        name = PurePosixPath(path).name
        first, _, rest = path.partition("/")
        shadow = not rest and name.removesuffix(".py") in SHADOWS
        if name in STEERING or shadow or name.endswith(".pth") or (rest and first in GUARDED_FOLDERS):
            yield path


def _walk(folder: Path) -> Iterator[str]:
    """Files below a folder by path, and links and folders that shadow a package; no link is followed."""
    waiting, looked_at = [""], 0
    while waiting:
        inside = waiting.pop(0)
        try:
            with os.scandir(folder / inside) as entries:
                children = sorted(entries, key=lambda child: child.name)
        except OSError:
            continue
        for child in children:
            looked_at += 1
            if looked_at > MOST:
                return
            path = f"{inside}/{child.name}" if inside else child.name
            if child.is_dir(follow_symlinks=False):
                if not inside and child.name in SHADOWS:
                    yield path
                elif child.name in GUARDED_FOLDERS or not is_junk(child.name):
                    waiting.append(path)
            else:
                yield path
