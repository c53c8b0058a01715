"""Names and ids of students, as they are compared."""

from __future__ import annotations

import re
import unicodedata


def name_key(name: str) -> str:
    """A name or id in the one form in which names are compared.

    Case, spaces, the encoding of accents and marks of direction make no difference, and
    "Example, Ada" is "ada example".
    """
    if not name.isascii():
        composed = unicodedata.normalize("NFC", name)
        name = "".join(c for c in composed if unicodedata.category(c) != "Cf")
    words = _first_name_first(name).split()
    return " ".join(words).casefold()


def _first_name_first(name: str) -> str:
    """A name without a comma: "Ada Example" for "Example, Ada". Others stay as they are."""
    last, comma, first = name.partition(",")
    if not comma:
        return name
    return f"{first} {last}"


def spellings_of(name: str) -> list[str]:
    """A name as letters alone, in each order in which platforms write its words.

    "Ada Example" and "Example, Ada" are both ["adaexample", "exampleada"].
    """
    plain = unicodedata.normalize("NFKD", name).casefold()
    words = []
    for part in re.split(r"[\s_.-]+", _first_name_first(plain)):
        letters = "".join(c for c in part if c.isalnum())
        if letters:
            words.append(letters)
    orders = []
    for first in range(len(words)):
        order = words[first:] + words[:first]
        orders.append("".join(order))
    return list(dict.fromkeys(orders))
