"""How does a step of a workflow speak to GitHub? Through files, which nobody but the grader may have written to.

Isolation keeps a submission from them. Where a machine lacks it, what has appeared in them while student code ran is
taken out again, so that it neither sets an output nor an environment variable of the steps that follow.
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

OUTPUT: Final = "GITHUB_OUTPUT"
SUMMARY: Final = "GITHUB_STEP_SUMMARY"
FILES: Final = (OUTPUT, SUMMARY, "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE")
LARGEST_SUMMARY: Final = 1_000_000  # bytes; GitHub drops a longer one altogether


@contextlib.contextmanager
def guarded(environment: Mapping[str, str]) -> Iterator[list[str]]:
    """While student code runs; afterwards the list names the files that were written to."""
    before = {name: _content(environment[name]) for name in FILES if environment.get(name)}
    touched: list[str] = []
    try:
        yield touched
    finally:
        for name, data in before.items():
            path = Path(environment[name])
            if _content(environment[name]) == data:
                continue
            touched.append(name)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                if data is not None:
                    path.write_bytes(data)


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def append(path: Path, text: str, most: int | None = None) -> None:
    data = text.encode("utf-8", "replace")
    if most is not None and len(data) > most:
        data = data[:most].decode("utf-8", "ignore").encode() + b"\n\n...\n"
    with path.open("ab") as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    """A file in a student's checkout: whole or not at all, and beside whatever a link of that name leads to."""
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, and a file is to be written there", str(path))
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".dojo-", delete=False) as file:
        part = Path(file.name)
    try:
        part.write_bytes(data)
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
