"""Reads the hints of an exercise from its TOML file, `hints/STEM.toml` in the folder of its day."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpudojo.model.errors import BadDay


@dataclass(frozen=True)
class FunctionHints:
    """The hints of one function. A key is the name of one of its checks, or of a misconception."""

    every: tuple[str, ...] = ()  # in the order of the file
    by_key: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # patterns, best first

    @property
    def keys(self) -> list[str]:
        """Every key that has hints or patterns."""
        return list({**self.by_key, **self.lines})


class _Steps(msgspec.Struct, forbid_unknown_fields=True):
    """One table `[[FUNCTION.hints]]`: steps towards the answer.

    `about` names the checks and misconceptions that they are for.
    """

    steps: tuple[str, ...]
    about: tuple[str, ...] = ()


class _OfFunction(msgspec.Struct, forbid_unknown_fields=True):
    """Everything about one function, as it is written."""

    hints: tuple[_Steps, ...]
    lines: dict[str, tuple[str, ...]] = {}


def read_hints(path: Path) -> dict[str, FunctionHints]:
    """The hints in a file, by function; none where there is no file.

    Raises BadDay, with a sentence for the author, where the file cannot be understood.
    """
    if not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        written = msgspec.convert(tables, dict[str, _OfFunction])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise BadDay(str(path), None, str(error)) from error
    hints = {}
    for name, table in written.items():
        hints[name] = _hints_of_function(path, name, table)
    return hints


def _hints_of_function(path: Path, name: str, table: _OfFunction) -> FunctionHints:
    """The hints of one function.

    Raises BadDay for an empty hint, or for a key that has two lists of hints.
    """
    every: list[str] = []
    by_key: dict[str, tuple[str, ...]] = {}
    for hints in table.hints:
        steps = [step.strip() for step in hints.steps]
        if not steps or "" in steps:
            raise BadDay(str(path), None, f"`{name}` has an empty hint, or an empty list of hints")
        every += hints.steps
        for key in hints.about:
            if key in by_key:
                raise BadDay(str(path), None, f"`{name}` has two lists of hints about {key!r}")
            by_key[key] = hints.steps
    return FunctionHints(tuple(every), by_key, table.lines)
