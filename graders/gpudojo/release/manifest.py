"""The manifest of a released repository, and what of a checkout differs from it."""

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

from gpudojo.model.catalogue import day_names, exercises_of
from gpudojo.model.errors import CannotRelease
from gpudojo.submissions.entries import Unreadable
from gpudojo.submissions.folders import read_file
from gpudojo.submissions.names import is_junk

WORKFLOW: Final = ".github/workflows/classroom.yml"
GUARDED_FOLDERS: Final = ("vendor", ".github")
GUARDED_FILES: Final = frozenset({"requirements.txt", "pytest.ini", "conftest.py"})
# Files that would influence pytest or Python if a grader trusted the folder it runs in.
STEERING_FILES: Final = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "usercustomize.py",
    }
)
# Packages that a file or folder of the same name would hide.
SHADOWED_PACKAGES: Final = frozenset(
    {"gpudojo", "virtual_cuda", "torch", "numpy", "pytest", "msgspec", "click"}
)
LARGEST_FILE: Final = 64 << 20
MOST_ENTRIES: Final = 20_000  # of a checkout that are looked at
VERSION: Final = 1


class Manifest(msgspec.Struct, frozen=True):
    """What a release is made of, as far as students leave it alone."""

    day: str
    wheel: str  # "vendor/gpudojo-….whl"
    files: dict[str, str]  # path: SHA-256
    requirements: tuple[str, ...]  # of the grader, in the versions it was released with
    version: int = VERSION
    # The stems of the exercises that students got; empty: all of the day.
    only: tuple[str, ...] = ()

    @property
    def grader(self) -> str:
        """The version of gpudojo in the wheel."""
        return PurePosixPath(self.wheel).name.split("-")[1]


@dataclass(frozen=True)
class Change:
    """A file that is not as it was released."""

    path: str
    what: str  # "changed", "deleted", "added"


def make_manifest(files: Mapping[str, bytes], day: str) -> Manifest:
    """Return the manifest of a student's repository, given its files by path.

    Raises CannotRelease where there is not exactly one wheel, and BadDay where the day cannot be
    imported.
    """
    wheels = [path for path in files if re.fullmatch(r"vendor/gpudojo-[^/]+\.whl", path)]
    if len(wheels) != 1:
        raise CannotRelease(
            "a student's repository has one wheel of gpudojo in vendor/, "
            f"but this one has {len(wheels)}"
        )
    requirements = []
    text = files.get("requirements.txt", b"").decode("utf-8", "replace")
    for line in text.splitlines():
        if line.strip() and not line.startswith(("./", "#", "-")):
            requirements.append(line.strip())
    hashes = {path: hash_of(files[path]) for path in sorted(files) if _is_guarded(path)}
    stems = [exercise.stem for exercise in exercises_of(day)]
    only = [stem for stem in stems if f"exercises/{day}/{stem}.py" in files]
    if only == stems:
        only = []
    return Manifest(day, wheels[0], hashes, tuple(requirements), only=tuple(only))


def _is_guarded(path: str) -> bool:
    """True for a file that students leave alone."""
    return path in GUARDED_FILES or path.partition("/")[0] in GUARDED_FOLDERS


def manifest_of_folder(folder: Path) -> Manifest:
    """Return the manifest of a released repository on disk.

    Raises CannotRelease if it is none, and BadDay where its day cannot be imported.
    """
    needed = [*GUARDED_FILES]
    for path in _paths_below(folder):
        if path.partition("/")[0] in (*GUARDED_FOLDERS, "exercises"):
            needed.append(path)
    files = {}
    for path in needed:
        with contextlib.suppress(Unreadable):
            files[path] = read_file(folder / path, LARGEST_FILE)
    days = [day for day in day_names() if (folder / "exercises" / day).is_dir()]
    if not days or not any(path.endswith(".whl") for path in files):
        raise CannotRelease(
            f"{folder} was not made by `dojo release student`: it has no exercises or no wheel"
        )
    return make_manifest(files, days[0])


def encode_manifest(manifest: Manifest) -> str:
    """Return the manifest on one line."""
    return msgspec.json.encode(manifest, order="sorted").decode()


def decode_manifest(text: str) -> Manifest:
    """Return the manifest that a text holds; raises CannotRelease if it is none that we know."""
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise CannotRelease(f"this is not the manifest of a release: {error}") from None
    known_version = manifest.version == VERSION and manifest.day in day_names()
    if not known_version or not re.fullmatch(r"vendor/[^/]+-[^/]+", manifest.wheel):
        raise CannotRelease(
            "this is not the manifest of a release that this version of gpudojo knows"
        )
    return manifest


def hash_of(data: bytes) -> str:
    """Return a hash that does not change with the line ends that git gives text on some systems."""
    if b"\0" not in data:
        data = data.replace(b"\r\n", b"\n")
    return hashlib.sha256(data).hexdigest()


def find_changes(folder: Path, released: Manifest) -> list[Change]:
    """Return what of a checkout is not as it was released; nothing in it is run or followed.

    Of files that were added, only those are told that would influence a grader. A file that cannot
    be read counts as an empty one. Raises nothing for what students may do to it.
    """
    changes = []
    for path, wanted in sorted(released.files.items()):
        if not os.path.lexists(folder / path):
            changes.append(Change(path, "deleted"))
            continue
        data = b""
        with contextlib.suppress(Unreadable):
            data = read_file(folder / path, LARGEST_FILE)
        if hash_of(data) != wanted:
            changes.append(Change(path, "changed"))
    for path in _paths_below(folder):
        if path not in released.files and _steers_a_grader(path):
            changes.append(Change(path, "added"))
    return changes


def _steers_a_grader(path: str) -> bool:
    """True if a file or folder would influence a grader that trusted the checkout."""
    name = PurePosixPath(path).name
    top, _, rest = path.partition("/")
    if name in STEERING_FILES or name.endswith(".pth"):
        return True
    if rest:
        return top in GUARDED_FOLDERS
    return name.removesuffix(".py") in SHADOWED_PACKAGES


def _paths_below(folder: Path) -> Iterator[str]:
    """Yield files below a folder by path, and links and folders that shadow a package.

    No link is followed. Folders that cannot be read are left out; after MOST_ENTRIES it ends.
    """
    waiting = [""]
    looked_at = 0
    while waiting:
        inside = waiting.pop(0)
        try:
            with os.scandir(folder / inside) as entries:
                children = sorted(entries, key=lambda child: child.name)
        except OSError:
            continue
        for child in children:
            looked_at += 1
            if looked_at > MOST_ENTRIES:
                return
            if inside:
                path = f"{inside}/{child.name}"
            else:
                path = child.name
            is_folder = child.is_dir(follow_symlinks=False)
            shadows_package = not inside and child.name in SHADOWED_PACKAGES
            if shadows_package or not is_folder:
                yield path
            elif child.name in GUARDED_FOLDERS or not is_junk(child.name):
                waiting.append(path)
