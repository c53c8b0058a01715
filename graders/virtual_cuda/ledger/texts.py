"""Short texts for tables and pictures: sizes, durations, counts and places in files.

Some outputs do not have all characters; for these, similar signs are written instead.
"""

from __future__ import annotations

import codecs
import os
from typing import Any, Final


def short_size(count: int) -> str:
    """A number of bytes with three digits: "512 B", "1.5 KiB"."""
    value: float = count
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} TiB"


def _three_digits(value: float) -> str:
    """A figure with three digits, or with all that stand before its point."""
    if value < 1000:
        return f"{value:.3g}"
    return f"{value:.0f}"


def duration(nanoseconds: int) -> str:
    """A time with three digits: "12.3 ms"."""
    scales = {"s": 1e9, "ms": 1e6, "µs": 1e3}
    for unit, scale in scales.items():
        value = nanoseconds / scale
        if value >= 999.5:
            return f"{value:,.0f} {unit}"
        if value >= 0.9995:
            return f"{value:.3g} {unit}"
    return f"{nanoseconds} ns"


def count_phrase(count: int, one: str, several: str = "") -> str:
    """A number and what is counted: "1 wait", "64 waits"."""
    if count == 1:
        return f"1 {one}"
    word = several or f"{one}s"
    return f"{count:,} {word}"


def short_line(line: str) -> str:
    """A text like "/home/me/train.py:14" with the path from the current folder, if that is shorter.

    A text of another form stays as it is.
    """
    file, _, number = line.rpartition(":")
    if not file or not number:
        return line
    try:
        file = min(file, os.path.relpath(file), key=len)
    except (ValueError, OSError):  # another drive; the current folder was removed
        return line
    return f"{file}:{number}"


def cut(text: str, width: int) -> str:
    """The text, or its beginning with an ellipsis, in so many characters."""
    if len(text) <= width:
        return text
    beginning = text[: width - 1]
    return f"{beginning}…"


def printable(text: str) -> str:
    """The text, with replacements for characters that a terminal would obey.

    Such characters move the cursor or turn the line around.
    """
    replacement = "\N{REPLACEMENT CHARACTER}"
    return "".join(sign if sign.isprintable() else replacement for sign in text)


# What is written instead where an output has not all characters, such as a file in a Windows code
# page.
_SIMILAR_SIGNS: Final = {
    "#": "█▓▇■",
    "=": "▒▆▅",
    ".": "░▄▃▂▁·…",
    "-": "─━╌–—",
    "|": "│┃║┊╎",
    "+": "┌┐└┘├┤┬┴┼╭╮╰╯✓✔",
    "v": "↓▼▽",
    "^": "↑▲△",
    ">": "→▶▸❱›",
    "<": "←◀",
    "x": "↔×✗✘",
    "*": "•●★",
    "A": "◆",
    "a": "◇",
    "u": "µ",
    '"': "“”",
}
SIMILAR: Final = {sign: similar for similar, signs in _SIMILAR_SIGNS.items() for sign in signs}
_HANDLER: Final = "similar"  # as Python's codecs call it


def _similar_signs(error: UnicodeError) -> tuple[str, int]:
    """The signs that a codec writes instead of those it does not have, and where it goes on."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    similar = "".join(SIMILAR.get(sign, "?") for sign in missing)
    return similar, error.end


def with_similar_signs(text: str, encoding: str) -> str:
    """The text, with similar signs for those that the encoding does not have.

    Registers the handler of errors for that with Python's codecs. Raises LookupError for an
    encoding that Python does not know.
    """
    codecs.register_error(_HANDLER, _similar_signs)
    return text.encode(encoding, _HANDLER).decode(encoding)


def write_similar(*streams: Any) -> None:
    """Let text streams that lack characters write similar ones instead of raising an error.

    Changes the error handler of each stream that lacks some, and registers it with Python's codecs.
    """
    codecs.register_error(_HANDLER, _similar_signs)
    for stream in streams:
        try:
            "█".encode(stream.encoding or "ascii")
        except (UnicodeEncodeError, LookupError, AttributeError):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors=_HANDLER)
