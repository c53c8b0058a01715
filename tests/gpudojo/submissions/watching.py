"""Reports the files that are touched while something runs: none may be written, and none read
outside.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_opened: list[tuple[str, Any, int]] | None = None
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = (
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.link",
    "os.symlink",
    "os.truncate",
    "tempfile.mkstemp",
)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _opened is not None:
        if event in ("open", "os.scandir", "os.listdir"):
            flags = args[2] if event == "open" else 0
            _opened.append((event, args[0], flags if isinstance(flags, int) else 0))
        elif event == "exec":  # modules being imported; never what was handed in
            name = getattr(args[0], "co_filename", "")
            _opened.append((event, name, WRITING if "submission" in name else 0))
        elif event.startswith(CHANGING) or event in (
            "subprocess.Popen",
            "socket.connect",
            "os.system",
        ):
            _opened.append((event, None, WRITING))


sys.addaudithook(_audit)  # there is no way to take it back: it does nothing unless `watched` is on


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Nothing may be written, and nothing read but below the folder (and modules that Python itself
    imports).
    """
    global _opened
    seen: list[tuple[str, Any, int]] = []
    _opened = seen
    try:
        yield
    finally:
        _opened = None
    packages = [place for place in sys.path if place.endswith("site-packages")]
    own = [os.path.realpath(place) for place in (folder, sysconfig.get_path("stdlib"), *packages)]
    for event, path, flags in seen:
        assert not flags & WRITING, (event, path)
        # What the parser calls "<unknown>" is no file, though it looks for one when it words a
        # syntax error.
        if (
            event != "exec"
            and isinstance(path, str | bytes | os.PathLike)
            and not str(path).startswith("<")
        ):
            place = os.path.realpath(os.fsdecode(path))
            assert os.fsdecode(path) in sys.path or any(
                place == one or place.startswith(one + os.sep) for one in own
            ), (event, path)
