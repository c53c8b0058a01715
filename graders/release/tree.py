"""How does a folder come into being at once? Written beside its place and renamed: nothing is ever half there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from graders.errors import CannotRelease


def refuse_if_taken(target: Path) -> None:
    """A sentence where the target cannot become a new folder."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CannotRelease(f"{target} is there already and is no folder; name one that does not exist yet")
    if target.is_dir():
        there = sorted(path.name for path in target.iterdir())
        if there:
            few = ", ".join(there[:3]) + (", …" if len(there) > 3 else "")
            raise CannotRelease(f"{target} is not empty (it has {few}); name a folder that does not exist yet")


def write(files: Mapping[str, bytes], target: Path) -> None:
    """All files, or none."""
    target = Path(os.path.abspath(target))
    refuse_if_taken(target)
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name:
            raise CannotRelease(f"{name!r} is no path inside a student's repository")
    made: list[Path] = []
    beside: Path | None = None
    try:
        for folder in reversed((target.parent, *target.parent.parents)):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        beside.chmod(0o755)  # as a folder usually is; a temporary one is its owner's alone
        for name, data in sorted(files.items()):
            path = beside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if target.is_dir():
            target.rmdir()
        beside.rename(target)
    except OSError as error:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
        for folder in reversed(made):
            folder.rmdir()
        raise CannotRelease(f"cannot write {target}: {error.strerror or error}") from None
