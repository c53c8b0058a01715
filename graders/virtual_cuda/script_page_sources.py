"""The files on the page of a script, and where their lines are on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from virtual_cuda.ledger.line_table import NO_LINE
from virtual_cuda.ledger.names import SourceLine


class PageSource(NamedTuple):
    """A file of which some lines used the device."""

    path: str  # as the ledger has it
    shown_path: str
    lines: list[str]  # of its text; empty where it cannot be read


def place_and_code(line: SourceLine, files: Sequence[PageSource]) -> str:
    """A line's file, number and text."""
    if line == NO_LINE:
        return NO_LINE[0]
    path, number = line
    for file in files:
        if file.path == path:
            code = ""
            if number <= len(file.lines):
                code = file.lines[number - 1].strip()
            return f"{file.shown_path}:{number}  {code}"
    return f"{path}:{number}"


def anchor_of(line: SourceLine, files: Sequence[PageSource]) -> str:
    """The name of a line's place on the page; "" where it is not on it."""
    path, number = line
    for place, file in enumerate(files):
        if file.path == path:
            return f"L{place}-{number}"
    return ""
