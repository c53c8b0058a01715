"""Whose page it is: names on the pages of a report, pseudonyms, and names to hide."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gpudojo.classes.store import FOLDER, write_file
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import without_surrogates
from gpudojo.platforms._files import new_name

COLOURS: Final = (
    "amber azure beige black blue bronze brown coral cream crimson cyan emerald fawn golden green "
    "grey indigo ivory jade khaki lemon lilac lime maroon mauve mint ochre olive orange peach "
    "pearl pink plum purple red rose ruby rust sable sand scarlet sepia silver slate tan teal "
    "umber violet white yellow"
).split()
SPRITES: Final = (
    "acorn anchor apple arrow badge bell boot bridge candle castle chest cloud coin comet crown "
    "dice door dragon drum falcon feather flag flute fox gem ghost hammer harp hat heart helmet "
    "horn key kite knight lamp leaf lute mask moon mushroom oak orb owl pearl potion raft ring "
    "robot rocket scroll shell shield ship slime snail star sword tower torch wand wheel wolf"
).split()
# Letters of a part of a name that is hidden; shorter ones occur in ordinary words.
SHORTEST_PART: Final = 3


@dataclass(frozen=True)
class Person:
    """The name of one submission on the pages, its page, and patterns to hide."""

    shown: str
    file: str  # inside the folder of the report
    hidden: tuple[re.Pattern[str], ...] = ()
    anonymous: bool = False
    sorted_as: str = ""  # where that is not as it is shown
    hide_others: Callable[[str], str] = str  # replaces the names of others in a text

    @property
    def link(self) -> str:
        return quote(self.file)

    def hide_names(self, text: str) -> str:
        """Return the text with everything hidden that would identify this person.

        On anonymous pages the names of everybody else are replaced, too.
        """
        for pattern in self.hidden:
            text = pattern.sub(self.shown, text)
        return self.hide_others(text)


class Roll:
    """The people of one class. No two share a page, even on file systems that ignore case."""

    def __init__(self, secret: bytes | None) -> None:
        """Begin without anybody; with a secret, everybody gets a pseudonym."""
        self._secret = secret  # pseudonyms are made with it; None: names are shown
        self._taken: set[str] = set()  # names of pages
        self._shown_by_name: dict[str, str] = {}  # what is put for a name in lower case
        self._owner_of: dict[str, str] = {}  # by what is shown, the first submission with it
        # By group, patterns that would identify its members, and what is put for them.
        self._members: dict[str, list[tuple[re.Pattern[str], str]]] = {}

    def add_person(self, row: SubmissionRow) -> Person:
        """Return who this is on the pages, and remember it for `replace_names`."""
        if self._secret is None:
            return self._named_person(row)
        return self._anonymous_person(row, self._secret)

    def _named_person(self, row: SubmissionRow) -> Person:
        """Return who this is, by name.

        Reserves the name of the page, and remembers what `replace_names` puts for others.
        """
        file = new_name(row.submission, self._taken)
        shown = name_on_pages(row)
        if self._owner_of.setdefault(shown, row.submission) != row.submission:
            shown = f"{shown} ({row.submission})"
        if shown != row.submission:
            self._replace_in_texts(row.submission, shown)
            self._replace_in_texts(row.called, shown)
        family_first = ""
        if row.roster and row.roster.family:
            family_first = without_surrogates(row.roster.sorted_as)
        return Person(
            without_surrogates(shown),
            f"students/{without_surrogates(file)}.html",
            sorted_as=family_first,
        )

    def _anonymous_person(self, row: SubmissionRow, secret: bytes) -> Person:
        """Return who this is, by a pseudonym.

        Reserves the name of the page, and remembers what `replace_names` puts for the names.
        """
        file = new_name(pseudonym_of(row.submission, secret), self._taken)
        for name in {*all_names_of(row), row.called}:
            if len(name) >= SHORTEST_PART:
                self._replace_in_texts(name, file)
        patterns = patterns_to_hide(row)
        if row.group:
            members = self._members.setdefault(row.group, [])
            members += [(pattern, file) for pattern in patterns]
        return Person(
            file,
            f"students/{file}.html",
            patterns,
            anonymous=True,
            hide_others=functools.partial(self._hide_others, row.group),
        )

    def _hide_others(self, group: str, text: str) -> str:
        """Return the text with everybody's names replaced; of a group, with parts of names, too."""
        text = self.replace_names(text)
        for pattern, shown in self._members.get(group, ()):
            text = pattern.sub(shown, text)
        return text

    def _replace_in_texts(self, name: str, shown: str) -> None:
        """Let `replace_names` put `shown` in place of a name, from now on."""
        self._shown_by_name[name.casefold()] = shown

    def replace_names(self, text: str) -> str:
        """Return the text with everybody's names replaced by what is shown for them.

        To be called when all people have been added.
        """
        if self._first_words.isdisjoint(_words_in(text)):
            return text  # as almost every line of code: the pattern is long
        return self._pattern_of_names.sub(self._shown_for_match, text)

    @functools.cached_property
    def _first_words(self) -> frozenset[str]:
        """The first word of every name that is replaced, in lower case."""
        words = set()
        for name in self._shown_by_name:
            words.update(_words_in(name)[:1])
        return frozenset(words)

    def _shown_for_match(self, match: re.Match[str]) -> str:
        """Return what is put for a name that the pattern found; the name itself, if nothing is."""
        name = match[0]
        return self._shown_by_name.get(name.casefold(), name)

    @functools.cached_property
    def _pattern_of_names(self) -> re.Pattern[str]:
        """Finds every name that is replaced, the longest first; nothing, where there are none."""
        names = sorted(self._shown_by_name, key=len, reverse=True)
        pattern = "|".join(map(_whole_word, names))
        if not self._secret:
            # The name of a file is told as it is; with pseudonyms no name may be left.
            pattern = rf"(?:{pattern}){_NOT_IN_FILE_NAME}"
        if not names:
            pattern = "(?!)"
        return re.compile(pattern, re.IGNORECASE)


def name_on_pages(row: SubmissionRow) -> str:
    """Return a student's name on the roster; without one, that of the submission.

    Of two of one name, the id is there, too.
    """
    if row.roster and row.roster.name:
        return row.roster.shown_name
    return row.submission


def all_names_of(row: SubmissionRow) -> set[str]:
    """Return everything that a student and the submissions are called."""
    names = {row.submission, row.student, row.identifier}
    if row.roster:
        names |= {*row.roster.all_names, row.roster.sorted_as}
    for attempt in row.attempts:
        names.add(attempt.submission)
    stripped = {name.strip() for name in names if name}
    return stripped - {""}


def pseudonym_of(name: str, secret: bytes) -> str:
    """Return a pseudonym, the same each time for the same name: "amber-fox-3f9a2".

    Without the secret nobody can tell whose it is.
    """
    data = name.encode("utf-8", "surrogatepass")
    hashed = hashlib.blake2b(data, key=secret[:64], digest_size=16).hexdigest()
    number_of_colour = int(hashed[:8], 16)
    number_of_sprite = int(hashed[8:16], 16)
    colour = COLOURS[number_of_colour % len(COLOURS)]
    sprite = SPRITES[number_of_sprite % len(SPRITES)]
    return f"{colour}-{sprite}-{hashed[16:21]}"


def nameless_author(row: SubmissionRow, author: Person) -> Person:
    """Return the author of an example, without any name."""
    return Person(
        "somebody", "", patterns_to_hide(row), anonymous=True, hide_others=author.hide_others
    )


def patterns_to_hide(row: SubmissionRow) -> tuple[re.Pattern[str], ...]:
    """Return patterns of what would identify a student, the longest first.

    These are whole names in any case, and parts of names as they are written.
    """
    names = set()
    parts = set()
    for name in all_names_of(row):
        if len(name) < SHORTEST_PART and name.isdigit():
            continue
        names.add(name)
        parts.update(_telling_parts(name))
    patterns = []
    for name in sorted(names, key=len, reverse=True):
        patterns.append(re.compile(_whole_word(name), re.IGNORECASE))
    for part in sorted(parts, key=len, reverse=True):
        patterns.append(re.compile(_whole_word(part)))
    return tuple(patterns)


def _telling_parts(name: str) -> list[str]:
    """Return the parts of a name that alone tell whose it is: capitalized words, long numbers."""
    parts = re.findall(r"\d{4,}", name)
    for word in re.split(r"[\W_]+", name):
        if len(word) >= SHORTEST_PART and word[0].isupper():
            parts.append(word)
    return parts


def _words_in(text: str) -> list[str]:
    """Return the words of a text, in lower case, without underscores."""
    return re.findall(r"[^\W_]+", text.lower())


# A name is not followed by what makes it a file's: "_1026_55025_day8.7z".
_NOT_IN_FILE_NAME: Final = r"(?![\w-]*\.\w)"


def _whole_word(text: str) -> str:
    """Return a pattern that finds the text where it is no part of a longer word."""
    return rf"(?<![^\W_]){re.escape(text)}(?![^\W_])"


def secret_of_pseudonyms(results: Path) -> tuple[bytes, str]:
    """Return the secret that pseudonyms are made with, and a warning if it cannot be stored.

    It is kept in a file beside the results, and made where there is none. The warning is empty if
    all is well.
    """
    path = results.parent / FOLDER / "pseudonyms"
    with contextlib.suppress(OSError):
        stored = path.read_bytes()
        if len(stored) >= 16:
            return stored, ""
    secret = secrets.token_bytes(32)
    try:
        write_file(path, secret)
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror}"
        return secret, f"the next report will use other pseudonyms: {reason}"
    return secret, ""
