"""Marks what `dojo` itself writes, so that it is never taken for somebody's work.

A folder of feedback, of pages or of an export holds a file MARK, a zip of ours has a comment. A
release is what students hand in again once they have worked on it: its mark counts only as long as
nothing in the folder has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpudojo.model.errors import BadClass
from gpudojo.model.results_file import first_names
from gpudojo.submissions.names import ZIPS, ending_of, is_junk

MARK: Final = ".dojo-output"
RESULTS: Final = ".dojo"  # in the folder of a class
MOST_NAMES: Final = 3  # of what is in a folder, in an error
ZIP_COMMENT: Final = b"made by gpudojo"
_UNCHANGED: Final = "unchanged"  # stands before the digest of a release
_MOST_FILES: Final = 2_000  # of a folder that is compared with the digest of a release
_LONGEST_MARK: Final = 1_000


@contextlib.contextmanager
def marking_output(folder: Path, command: str) -> Iterator[None]:
    """Make a folder, mark it as ours, and let a command fill it in the block.

    The folder of a class, which has results, is not marked: submissions may lie in it. There, the
    folders that the command makes are. After an error in the block nothing of this is left, unless
    something was written. Raises BadClass for a folder with anything else in it, and OSError.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    before = set(folder.iterdir())
    is_ours = mark in before
    is_free = not is_ours and not (folder / RESULTS).is_dir()
    text = f"Written by `{command}`; `dojo grade` does not grade it.\n"
    if is_free:
        _refuse_others(folder, before)
        mark.write_text(text)
    try:
        yield
        if not is_free and not is_ours:
            for path in folder.iterdir():
                if path.is_dir() and path not in before:
                    (path / MARK).write_text(text)
    except BaseException:
        with contextlib.suppress(OSError):
            if is_free and list(folder.iterdir()) == [mark]:
                mark.unlink()
            if is_new:
                folder.rmdir()  # which fails where something was written
        raise


def _refuse_others(folder: Path, paths: Iterable[Path]) -> None:
    """Raises BadClass where these paths in a folder are more than what tools make."""
    names = sorted(path.name for path in paths if not is_junk(path.name))
    if names:
        raise BadClass(
            f"{folder} holds files that are not of `dojo`, which may be submissions: "
            f"{first_names(names, MOST_NAMES)}; give a new or an empty folder with --out"
        )


def mark_of_release(files: Mapping[str, bytes]) -> bytes:
    """The content of MARK for a folder that will hold these files."""
    return f"{_UNCHANGED} {_digest_of_files(files)}\n".encode()


def is_own_output(path: Path) -> bool:
    """True for a folder or zip that `dojo` wrote and that nobody has worked in since.

    False for what cannot be read.
    """
    try:
        if path.is_dir():
            return _is_marked_folder(path)
        return bool(ending_of(path.name, ZIPS)) and _has_comment(path)
    except OSError:
        return False


def _is_marked_folder(folder: Path) -> bool:
    """True for a folder with our mark; of a release, only if it is as it was. Raises OSError."""
    mark = folder / MARK
    if mark.is_symlink() or not mark.is_file():
        return False
    with mark.open("rb") as file:
        words = file.read(_LONGEST_MARK).decode("utf-8", "replace").split()
    if words[:1] != [_UNCHANGED]:
        return True
    if (folder / ".git").exists():  # a student's checkout, though nothing is done yet
        return False
    return words[1:] == [_digest_of_files(dict(_files_in(folder)))]


def _has_comment(path: Path) -> bool:
    """True for a zip with our comment at its end. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - len(ZIP_COMMENT), 0))
        return file.read() == ZIP_COMMENT


def _files_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files in a folder by path, the first of them if there are too many.

    Raises OSError.
    """
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_junk(name)]
        for name in names:
            count += 1
            if count > _MOST_FILES:
                return
            path = Path(place, name)
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _digest_of_files(files: Mapping[str, bytes]) -> str:
    """A digest of files, without those that tools make."""
    whole = hashlib.sha256()
    for path in sorted(files):
        if any(is_junk(part) for part in path.split("/")):
            continue
        for part in (path.encode("utf-8", "surrogateescape"), files[path]):
            whole.update(len(part).to_bytes(8, "big"))
            whole.update(part)
    return whole.hexdigest()
