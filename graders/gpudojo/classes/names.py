"""Names and ids of students: how they are compared, and who is meant by one that is typed.

Course files, tables and commands all find people by `find_people`.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from gpudojo.model.errors import suggest_name

_SUFFIX: Final = re.compile(r"(?:jr|sr|[js]nr|junior|senior|i{2,3}|i?v|vi{0,3}|ph\.? ?d)\.?", re.I)
MOST_NAMES: Final = 8  # that are told of those whose names hold what was typed
_Person = TypeVar("_Person")


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
    parts = split_name(name)
    return " ".join(part for part in (parts.given, parts.family, parts.suffix) if part)


class NameParts(NamedTuple):
    """The parts of a name. Where it has no comma, all of it is `given`."""

    given: str
    family: str
    suffix: str  # "Jr.", "III"


def split_name(name: str) -> NameParts:
    """The parts of a name with commas: "Example, Ada", "Example, Jr., Ada", "Ada Example, Jr."."""
    parts = [part.strip() for part in name.split(",")]
    suffix = ""
    has_both_names = len(parts) > 2 or " " in parts[0]
    if len(parts) > 1 and has_both_names and _SUFFIX.fullmatch(parts[1]):
        suffix = parts.pop(1)
    if len(parts) == 1:
        if not suffix:
            return NameParts(name, "", "")
        return NameParts(parts[0], "", suffix)
    return NameParts(" ".join(parts[1:]), parts[0], suffix)


def _words_of(name: str) -> list[str]:
    """The words of a name as letters alone, without case and accents."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    words = []
    for part in re.split(r"[\s_.-]+", _first_name_first(plain)):
        letters = "".join(c for c in part if c.isalnum())
        if letters:
            words.append(letters)
    return words


def share_a_word(name: str, other: str) -> bool:
    """True if two names have a word in common, or one of them is empty."""
    words = set(_words_of(name))
    others = set(_words_of(other))
    return not words or not others or not words.isdisjoint(others)


def spellings_of(name: str) -> list[str]:
    """A name as letters alone, in each order in which platforms write its words.

    "Ada Example" and "Example, Ada" are both ["adaexample", "exampleada"].
    """
    words = _words_of(name)
    orders = []
    for first in range(len(words)):
        order = words[first:] + words[:first]
        orders.append("".join(order))
    return list(dict.fromkeys(orders))


class NamesOfPerson(NamedTuple):
    """Everything by which one person may be called."""

    own: str  # the name in lists, which nobody else has
    as_written: tuple[str, ...]  # with the ids
    keys: frozenset[str]  # of all of these
    spellings: frozenset[str]

    @classmethod
    def from_names(cls, own: str, others: Iterable[str]) -> NamesOfPerson:
        """The names of a person; empty ones are left out."""
        as_written = tuple(name for name in dict.fromkeys((own, *others)) if name)
        spellings: set[str] = set()
        for name in as_written:
            spellings.update(spellings_of(name))
        keys = frozenset(name_key(name) for name in as_written)
        return cls(own, as_written, keys, frozenset(spellings))


def find_people(name: str, people: Mapping[_Person, NamesOfPerson]) -> list[_Person]:
    """Those who are meant by a name or id that somebody typed; several where it is not clear.

    First those who are called so, then those whose name has the same words in another order or
    other marks. Nobody is found by a part of a name.
    """
    key = name_key(name)
    matching = [person for person, names in people.items() if key in names.keys]
    if matching:
        return matching
    spellings = set(spellings_of(name))
    return [person for person, names in people.items() if spellings & names.spellings]


def suggest_people(
    name: str, people: Iterable[NamesOfPerson], instead: str = "; there are {}"
) -> str:
    """Who may be meant by a name that nobody has, as the end of a sentence.

    That is those whose name holds it, else the most similar name, else all names, put into
    `instead`. Returns "" for a number, for too many names, and where `instead` is "".
    """
    key = name_key(name)
    partly = []
    known_names: list[str] = []
    written_of: dict[str, str] = {}  # by spelling: the words may be in another order
    for names in people:
        known_names += names.as_written
        for written in names.as_written:
            written_of |= dict.fromkeys(spellings_of(written), written)
        if key and any(key in known for known in names.keys):
            partly.append(names.own)
    if not partly and key.isdecimal():
        return ""  # all numbers are similar
    if not partly:
        similar = difflib.get_close_matches("".join(spellings_of(name)[:1]), written_of, 1)
        if similar:
            return f"; did you mean {written_of[similar[0]]}?"
        return suggest_name(name, known_names, instead)
    listed = ", ".join(partly[:MOST_NAMES])
    if len(partly) > MOST_NAMES:
        listed += ", …"
    return f"; names with it: {listed}"
