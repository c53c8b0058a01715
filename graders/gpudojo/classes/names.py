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
    last, comma, first = name.partition(",")
    if comma:
        name = f"{first} {last}"
    return " ".join(name.split()).casefold()


def spellings_of(name: str) -> list[str]:
    """A name as letters alone, in each order in which platforms write its words.

    "Ada Example" and "Example, Ada" are both ["adaexample", "exampleada"].
    """
    plain = unicodedata.normalize("NFKD", name).casefold()
    last, comma, first = plain.partition(",")
    if comma:
        plain = f"{first} {last}"
    words = []
    for part in re.split(r"[\s_.-]+", plain):
        letters = "".join(c for c in part if c.isalnum())
        if letters:
            words.append(letters)
    orders = ["".join(words[n:] + words[:n]) for n in range(len(words))]
    return list(dict.fromkeys(orders))
