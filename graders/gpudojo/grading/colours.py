"""The colours of feedback and of timelines, in the words of rich, for every terminal output."""

from __future__ import annotations

from typing import Final

# By the first word of a part's label; other labels have none.
LABEL_STYLES: Final = {
    "happened": "red",
    "expected": "green",
    "mistake": "yellow",
    "hint": "cyan",
    "read": "cyan",
}
# By the meaning of a piece of a timeline; other pieces have none.
TIMELINE_STYLES: Final = {
    "wait": "red bold",
    "copy": "cyan",
    "grad": "yellow",
    "no grad": "green",
    "autocast": "magenta",
    "pass": "bold",
    "memory": "blue",
}


def style_of_label(label: str) -> str:
    """The style of a label such as `hint 2`; an empty text if it has none."""
    return LABEL_STYLES.get(label.partition(" ")[0], "")


def style_of_timeline(meaning: str) -> str:
    """The style of a piece of a timeline; an empty text if it has none."""
    return TIMELINE_STYLES.get(meaning, "")
