"""How do new files come into a repository that others are in? All of them or none, and none over another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graders.errors import CannotBegin, NameTaken


def plant(root: Path, files: Mapping[str, str | None]) -> list[str]:
    """Write the files, and make the folders, whose text is None; gives what was made, in order."""
    for name, text in files.items():
        path = root / name
        if path.is_symlink() or (path.exists() and not (text is None and path.is_dir() and not any(path.iterdir()))):
            raise NameTaken(name, "nothing was written")
    made: list[Path] = []
    try:
        for name, text in files.items():
            path = root / name
            _make_folders(path if text is None else path.parent, made)
            if text is not None:
                with path.open("x", encoding="utf-8", newline="\n") as file:
                    made.append(path)
                    file.write(text)
    except BaseException as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            said = f"cannot write {error.filename or root}: {error.strerror or error}; nothing was written"
            raise CannotBegin(said) from None
        raise
    return [name for name, text in files.items() if text is not None]


def _make_folders(folder: Path, made: list[Path]) -> None:
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir()
            made.append(each)
