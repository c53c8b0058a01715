"""How the progress and the summary of a class are printed: texts, statuses and times in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpudojo.model.errors import printable_text

if TYPE_CHECKING:
    from rich.console import Console


def print_text(console: Console | None, text: str, style: str = "") -> None:
    """Print a text as it is: what names of students hold is no markup, and does nothing.

    Without a console nothing is printed.
    """
    if console is not None:
        text = printable_text(text, keep="\n")
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def statuses_in_words(statuses: Counter[str]) -> str:
    """How many submissions have each status, the most frequent first."""
    texts = []
    for status, count in statuses.most_common():
        texts.append(f"{count} {status}")
    return ", ".join(texts)


def seconds_in_words(seconds: float) -> str:
    """A time in words: 5.0 s, or 1:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"
