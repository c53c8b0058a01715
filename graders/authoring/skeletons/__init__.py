"""What does a skeleton look like? The texts beside this file, with `$words` to be filled in."""

from __future__ import annotations

from pathlib import Path
from string import Template


def filled(skeleton: str, **words: object) -> str:
    """A text; a word that it has and is not given, is an error."""
    text = (Path(__file__).parent / f"{skeleton}.txt").read_text(encoding="utf-8")
    return Template(text).substitute({name: str(word) for name, word in words.items()})
