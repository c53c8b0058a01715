"""Which mistakes have a name? Those of `misconceptions.toml`, each with two sentences on why it matters on a GPU."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Misconception:
    name: str
    why: str
    at: tuple[str, ...] = ()  # what shows it in the source, where nothing recorded tells the line: see probes.signs
    cause: tuple[str, ...] = ()  # signs that are the mistake itself, better than the line at which it came to light


MISCONCEPTIONS: Final[dict[str, Misconception]] = {
    key: Misconception(entry["name"], entry["why"], tuple(entry.get("at", ())), tuple(entry.get("cause", ())))
    for key, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
