"""Formats texts, sizes and durations for pages."""

from __future__ import annotations

import re
from typing import Final

from markupsafe import Markup, escape

# Controls, marks that change the direction of writing, and others that are there but cannot be seen.
UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
COLOUR_CODES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def shown(value: object) -> object:
    """What jinja puts on a page for a value: unseen characters of a text are named."""
    if not isinstance(value, str):
        return value
    if isinstance(value, Markup):
        return value
    return UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", COLOUR_CODES.sub("", value.replace("\r\n", "\n")))


def prose(text: str) -> Markup:
    """A text in which `code` is marked; what has several lines is aligned: code, or a drawing of values."""
    first, *rest = str(shown(text)).splitlines() or [""]
    # Escaped before it is looked at.
    marked = Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(first))))
    return marked + (Markup("<pre>{}</pre>").format("\n".join(rest)) if rest else Markup(""))


def breakable(name: str) -> Markup:
    """The name of a check, which may go on in the next line between its parts."""
    return Markup("::<wbr>").join(str(shown(name)).split("::"))


def short_id(id_: str) -> Markup:
    """A check's id with the number of its exercise for its name; it may go on in the next line between its parts."""
    exercise, _, rest = id_.partition("::")
    return Markup("{} {}").format(exercise[:2], breakable(rest)) if rest else breakable(id_)


def told_once(status: str, reason: str) -> str:
    """Why something has a status, without the status said twice: "crashed in file 01.py", "to do: f is a stub"."""
    return reason if reason.casefold().startswith(status.casefold()) else f"{status}: {reason}"


def size(count: float) -> str:
    """1536 is 1.5 KiB."""
    unit = 0
    while abs(count) >= 1024 and unit < len(SIZES) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {SIZES[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {SIZES[unit]}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """1 wall, 64 walls."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.2f} ms"
