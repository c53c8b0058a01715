"""Sees which files are saved in a folder."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

QUIET_MILLISECONDS: Final = 15  # without a change, after which a file counts as saved
POLLING_SECONDS: Final = 0.2  # between two looks, if watchfiles is not installed


def watch_saves(folder: Path, stop: threading.Event) -> Iterator[set[Path]]:
    """Yield the Python files of a folder that were saved, each time some were.

    It ends when `stop` is set. Files that an editor has replaced or removed are yielded, too. The
    first are all files of the folder: one may have been saved before this began to look. Raises
    FileNotFoundError if the folder is removed.
    """
    try:
        from watchfiles import watch
    except ImportError:
        yield from saves_by_polling(folder, stop)
        return
    paths = set(_stamps_of_files(folder))
    for changes in watch(
        folder,
        recursive=False,
        step=QUIET_MILLISECONDS,
        debounce=10 * QUIET_MILLISECONDS,
        stop_event=stop,
        rust_timeout=500,
        yield_on_timeout=True,
    ):
        for _, path in changes:
            if path.endswith(".py"):
                paths.add(Path(path))
        if paths:
            yield paths
        paths = set()


def saves_by_polling(folder: Path, stop: threading.Event) -> Iterator[set[Path]]:
    """Yield the files that were saved, found by their times and sizes.

    It is for machines without `watchfiles`. The first are all files of the folder; files that were
    removed are yielded, too. It ends when `stop` is set. Raises FileNotFoundError if the folder is
    removed.
    """
    stamps = _stamps_of_files(folder)
    yield {*stamps}
    while not stop.wait(POLLING_SECONDS):
        stamps_before = stamps
        stamps = _stamps_of_files(folder)
        paths = set()
        for path in stamps_before.keys() | stamps.keys():
            if stamps_before.get(path) != stamps.get(path):
                paths.add(path)
        if paths:
            yield paths


def _stamps_of_files(folder: Path) -> dict[Path, tuple[int, int]]:
    """The time of change and the size of each Python file. Raises FileNotFoundError."""
    stamps = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".py"):
                continue
            with contextlib.suppress(OSError):  # removed meanwhile
                stat = entry.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                stamps[Path(entry.path)] = stamp
    return stamps
