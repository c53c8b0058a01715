"""Reads the hints of an exercise from its TOML file, `hints/STEM.toml` in the folder of its day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpudojo.model.errors import BadDay, BadFile
from gpudojo.model.toml_mistakes import convert_setting, line_of_setting, parse_toml

Steps = tuple[str, ...]
"""Hints that a student reads one after another."""


@dataclass(frozen=True)
class FunctionHints:
    """The hints of one function. A key is the name of one of its checks, or of a misconception."""

    every: Steps = ()  # in the order of the file
    by_key: Mapping[str, Steps] = field(default_factory=dict)
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # patterns, best first
    pages: Mapping[str, str] = field(default_factory=dict)  # what to read

    @property
    def keys(self) -> list[str]:
        """Every key that has hints or patterns."""
        return list({**self.by_key, **self.lines})


class _HintTable(msgspec.Struct, forbid_unknown_fields=True):
    """One table `[[FUNCTION.hints]]`: steps towards the answer.

    `about` names the checks and misconceptions that they are for, `read` a page about them.
    """

    steps: Steps
    about: tuple[str, ...] = ()
    read: str = ""


class _FunctionTable(msgspec.Struct, forbid_unknown_fields=True):
    """Everything about one function, as it is written."""

    hints: tuple[_HintTable, ...]
    lines: dict[str, tuple[str, ...]] = {}


def read_hints(path: Path) -> dict[str, FunctionHints]:
    """The hints in a file, by function; none where there is no file.

    Raises BadDay, with a sentence for the author, where the file cannot be understood, and OSError
    where it cannot be read.
    """
    if not path.is_file():
        return {}
    hints = {}
    try:
        tables, text = parse_toml(path)
        for name, entry in tables.items():
            table = convert_setting(path, text, entry, _FunctionTable, name)
            hints[name] = _hints_of_function(path, text, name, table)
    except BadFile as error:
        raise BadDay(error.file, error.line, error.reason) from error
    return hints


def _hints_of_function(path: Path, text: str, name: str, table: _FunctionTable) -> FunctionHints:
    """The hints of one function. `text` is that of the whole file.

    Raises BadFile for an empty hint, or for a key that has two lists of hints.
    """
    every: list[str] = []
    by_key: dict[str, Steps] = {}
    pages: dict[str, str] = {}
    for number, hints in enumerate(table.hints):
        line = line_of_setting(text, (name, "hints", str(number)))
        steps = [step.strip() for step in hints.steps]
        if not steps or "" in steps:
            reason = f"`{name}` has an empty hint, or an empty list of hints"
            raise BadFile(str(path), line, reason)
        every += hints.steps
        for key in hints.about:
            if key in by_key:
                reason = f"`{name}` has two lists of hints about {key!r}"
                raise BadFile(str(path), line, reason)
            by_key[key] = hints.steps
            if hints.read:
                pages[key] = hints.read
    return FunctionHints(tuple(every), by_key, table.lines, pages)
