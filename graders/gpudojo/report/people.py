"""Names of students, real or anonymous."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gpudojo.classes.store import FOLDER, write
from gpudojo.model.results import SubmissionRow
from gpudojo.platforms._entries import safe_name

COLOURS: Final = (
    "amber azure beige black blue bronze brown coral cream crimson cyan emerald fawn golden green grey indigo ivory "
    "jade khaki lemon lilac lime maroon mauve mint ochre olive orange peach pearl pink plum purple red rose ruby rust "
    "sable sand scarlet sepia silver slate tan teal umber violet white yellow"
).split()
SPRITES: Final = (
    "acorn anchor apple arrow badge bell boot bridge candle castle chest cloud coin comet crown dice door dragon drum "
    "falcon feather flag flute fox gem ghost hammer harp hat heart helmet horn key kite knight lamp leaf lute mask "
    "moon mushroom oak orb owl pearl potion raft ring robot rocket scroll shell shield ship slime snail star sword "
    "tower torch wand wheel wolf"
).split()
SHORTEST: Final = 3  # letters of a part of a name that is hidden; shorter ones occur in ordinary words


@dataclass(frozen=True)
class Person:
    """The name of one submission on the pages, its page, and patterns to hide."""

    shown: str
    file: str  # inside the folder of the report
    hidden: tuple[re.Pattern[str], ...] = ()
    anonymous: bool = False

    @property
    def link(self) -> str:
        return quote(self.file)

    def says(self, text: str) -> str:
        """The text with everything hidden that would identify this person."""
        for pattern in self.hidden:
            text = pattern.sub(self.shown, text)
        return text


class Roll:
    """The people of one class. No two share a page, even on file systems that ignore case."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._taken: set[str] = set()

    def person(self, row: SubmissionRow) -> Person:
        name = row.submission if self._secret is None else pseudonym(row.submission, self._secret)
        first = safe_name(name)
        file, number = first, 1
        while unicodedata.normalize("NFC", file.casefold()) in self._taken:
            number += 1
            file = f"{first}-{number}"
        self._taken.add(unicodedata.normalize("NFC", file.casefold()))
        if self._secret is None:
            return Person(_whole(row.submission), f"students/{_whole(file)}.html")
        return Person(file, f"students/{file}.html", hidden(row), True)


def pseudonym(name: str, secret: bytes) -> str:
    """A pseudonym, the same each time for the same name: "amber-fox-3f9a2"."""
    drawn = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=secret[:64], digest_size=16).digest()
    colour = COLOURS[int.from_bytes(drawn[:4], "big") % len(COLOURS)]
    sprite = SPRITES[int.from_bytes(drawn[4:8], "big") % len(SPRITES)]
    return f"{colour}-{sprite}-{drawn[8:].hex()[:5]}"


def anyone(row: SubmissionRow) -> Person:
    """The author of an example, without any name."""
    return Person("somebody", "", hidden(row), True)


def hidden(row: SubmissionRow) -> tuple[re.Pattern[str], ...]:
    """Patterns that would identify a student: whole names in any case, and parts of names as they are written."""
    whole = {text.strip() for text in (row.submission, row.student or "", row.identifier or "")} - {""}
    parts = {
        part for text in whole for part in re.split(r"[\W_]+", text) if len(part) >= SHORTEST and part[0].isupper()
    }
    parts |= {part for text in whole for part in re.findall(r"\d{4,}", text)}
    found = [re.compile(_bounded(text), re.IGNORECASE) for text in sorted(whole, key=len, reverse=True)]
    return (*found, *(re.compile(_bounded(text)) for text in sorted(parts, key=len, reverse=True)))


def _bounded(text: str) -> str:
    return rf"(?<![^\W_]){re.escape(text)}(?![^\W_])"


def _whole(text: str) -> str:
    """The text without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def kept_secret(results: Path) -> tuple[bytes, str]:
    """The secret that pseudonyms are made with, and a warning if it cannot be stored."""
    path = results.parent / FOLDER / "pseudonyms"
    with contextlib.suppress(OSError):
        found = path.read_bytes()
        if len(found) >= 16:
            return found, ""
    made = secrets.token_bytes(32)
    try:
        write(path, made)
    except OSError as error:
        return made, f"the next report will use other pseudonyms: cannot write {path}: {error.strerror}"
    return made, ""
