"""Puts into words what is easily overlooked between a value and the right one.

Spaces around a text, upper and lower case, characters that look alike and types that print alike
cannot be seen, or hardly, where two values are shown. `hidden_difference` names such a difference,
and `tell_apart` adds it to a sentence that shows the wrong value. Where there is no one right text,
`unusual_character` names what may look like another letter.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gpudojo.grading.comparing import numpy_values
from gpudojo.model.errors import without_addresses
from gpudojo.model.evidence import Array, Fact
from gpudojo.model.exercise import with_article

LONGEST_SHOWN: Final = 80  # characters of a value that is told
CLOSE: Final = 0.8  # how alike a key and the one that is meant are at least, from 0 to 1
# Characters that look alike in many fonts, besides those that are not ASCII.
_LOOK_ALIKE: Final = ("0Oo", "1lI|", "5S", "2Z", "8B", "'`", "-_", ",.", ":;")


class ToldValue(msgspec.Struct, frozen=True):
    """A value of any type, as plain data where it is some, and as it prints itself."""

    kind: str  # the type's name
    shown: str
    value: Fact = None  # of None, numbers and texts

    def __str__(self) -> str:
        """The value and its type, because 3 and "3" print alike."""
        if self.kind == "NoneType":
            return "None"
        return f"{self.shown} ({self.kind})"


def told_value(value: Any) -> ToldValue:
    """A value that can be shown and compared. Raises what printing a student's own class raises."""
    plain = None
    if type(value) in (bool, int, float, str):
        plain = value
    shown = without_addresses(repr(value))[:LONGEST_SHOWN]
    return ToldValue(type(value).__name__, shown, plain)


def tell_apart(sentence: str, found: Fact, right: Fact, what: str = "it") -> str:
    """The sentence, which shows a wrong value, and after it what is easily overlooked in it.

    `what` is the value in words.
    """
    difference = hidden_difference(found, right, what)
    if difference:
        return f"{sentence}: {difference}"
    return sentence


def hidden_difference(found: Fact, right: Fact, what: str = "it") -> str:
    """What is easily overlooked between two values; "" where they are equal or plainly different.

    Of dicts and lists, what is found first in them. `what` is the value in words, and begins the
    sentence.
    """
    if isinstance(found, ToldValue) and isinstance(right, ToldValue):
        return _difference_of_told(found, right, what)
    if isinstance(found, str) and isinstance(right, str):
        difference = _difference_of_texts(found, right)
    elif type(found) is not type(right):
        difference = ""
        if _print_alike(found, right):
            difference = f"is {_type_in_words(found)}, not {_type_in_words(right)}"
    elif isinstance(found, dict):
        return _difference_in_dicts(found, right, what)
    elif isinstance(found, (list, tuple)) and len(found) == len(right):
        names = [f"item {number} of {what}" for number in range(1, len(found) + 1)]
        return _first_difference(zip(found, right, names, strict=True))
    else:
        return ""
    if not difference:
        return ""
    return f"{what} {difference}"


def _first_difference(pairs: Iterable[tuple[Fact, Fact, str]]) -> str:
    """The first hidden difference of some values, right ones and their names; "" without one."""
    for found, right, name in pairs:
        difference = hidden_difference(found, right, name)
        if difference:
            return difference
    return ""


def _difference_of_told(found: ToldValue, right: ToldValue, what: str) -> str:
    """What is easily overlooked between two values that were told; "" where nothing is.

    `what` is the value in words.
    """
    if found.value is not None and right.value is not None:
        return hidden_difference(found.value, right.value, what)
    if found.kind != right.kind and _print_alike(found.shown, right.shown):
        return f"{what} is {with_article(found.kind)}, not {with_article(right.kind)}"
    return ""


def _difference_in_dicts(found: dict[Any, Fact], right: dict[Any, Fact], what: str) -> str:
    """A key that almost is another one, or what is easily overlooked in a value of two dicts."""
    unknown = [key for key in found if key not in right]
    missing = [key for key in right if key not in found]
    for key in unknown:
        for wanted in missing:
            difference = hidden_difference(key, wanted, f"the key {key!r}")
            if difference:
                return difference
    # Of several keys, one that is misspelt; of one, whatever it is.
    alike = 0.0 if len(unknown) == len(missing) == 1 else CLOSE
    names = [str(key) for key in missing]
    for key in unknown:
        for name in difflib.get_close_matches(str(key), names, 1, alike):
            return f"the key {str(key)!r} is there instead of {name!r}"
    shared = [key for key in right if key in found]
    return _first_difference((found[key], right[key], f"`{key}`") for key in shared)


def _difference_of_texts(found: str, right: str) -> str:
    """What is easily overlooked between two texts; "" where they are equal or plainly different."""
    if found == right:
        return ""
    if found.strip() == right.strip():
        return _difference_of_margins(found, right)
    if "".join(found.split()) == "".join(right.split()):
        return "has other spaces inside"
    if found.strip("'\"") == right:
        return "has quotes around it"
    if found.casefold() == right.casefold():
        return "has other upper and lower case"
    seen = [char for char in found if unicodedata.category(char) != "Cf"]
    if len(seen) < len(found) and "".join(seen) == right:
        return "has a character that is not seen"
    if len(found) == len(right):
        return _difference_of_characters(found, right)
    return ""


def _difference_of_margins(found: str, right: str) -> str:
    """Where one of two texts has spaces that the other has not."""
    if found.strip() != found and right.strip() == right:
        if found.lstrip() == found:
            return "has spaces at its end"
        if found.rstrip() == found:
            return "has spaces at its beginning"
        return "has spaces around it"
    return "has other spaces around it"


def _difference_of_characters(found: str, right: str) -> str:
    """The first character of a text that looks like that of the other; "" where one does not."""
    first = ""
    for place, (one, other) in enumerate(zip(found, right, strict=True), 1):
        if one == other:
            continue
        if not _look_alike(one, other):
            return ""
        names = f"{_name_of_character(one)}, not {_name_of_character(other)}"
        first = first or f"has another character in place {place}: {names}"
    return first


def unusual_character(text: str) -> str:
    """The name of the first character of a text that is not ASCII; "" where all are."""
    for char in text:
        if not char.isascii():
            return _name_of_character(char)
    return ""


def _name_of_character(char: str) -> str:
    return unicodedata.name(char, repr(char)).lower()


def _look_alike(one: str, other: str) -> bool:
    """True for two characters that are easily taken for each other.

    That is assumed of one that is not ASCII beside one that is.
    """
    if one.isascii() != other.isascii():
        return True
    return any(one in group and other in group for group in _LOOK_ALIKE)


def _print_alike(found: Fact, right: Fact) -> bool:
    """True if two values of different types are equal, or print alike but for quotes and ".0"."""
    bare_found = _bare_text(found)
    return bare_found != "" and bare_found == _bare_text(right)


def _bare_text(value: Fact) -> str:
    """What is seen of a value: its text without quotes and spaces, and whole numbers as such."""
    if isinstance(value, Array):
        values = numpy_values(value)
        value = values.item() if values.size == 1 else values.tolist()
    if isinstance(value, bool):
        return str(value).casefold()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, tuple):
        value = list(value)
    text = str(value).strip().strip("'\"")
    return text.casefold().removesuffix(".0")


def _type_in_words(value: Fact) -> str:
    """The type of a value, with its article."""
    if isinstance(value, Array):
        return "a Tensor"
    return with_article(type(value).__name__)
