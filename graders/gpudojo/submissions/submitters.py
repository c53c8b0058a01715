"""Reads who handed in which folder, and when, from the list that Gradescope packs with a class."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpudojo.model.errors import replace_unprintable

METADATA_FILE: Final = "submission_metadata.yml"
_LARGEST_FILE: Final = 64_000_000  # it holds results and histories too
# Lines that matter: `submission_1:`, `:submitters:`, `- :name: Ada` and `:created_at: DATE`.
_SUBMISSION: Final = re.compile(r"""["']?(submission_\d+)["']?:\s*$""")
_SUBMITTERS: Final = re.compile(r"""\s+:?["']?submitters["']?:\s*$""")
_FIELD: Final = re.compile(r"""\s*(?:-\s+)?:?["']?(name|sid|email)["']?:\s+(.+?)\s*$""")
_CREATED: Final = re.compile(r"""\s+:?["']?(created_at|utc)["']?:(.*)$""")
_DATE: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?\s*(Z|UTC|[+-]\d\d:?\d\d)"
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))")
# The submission's own entries have at most this indentation: its history repeats them, further in.
_OWN_INDENT: Final = 2
_OUTSIDE: Final = -1


class Submitter(NamedTuple):
    """A student, as a platform lists who handed in."""

    name: str
    sid: str = ""
    email: str = ""


class HandedIn(msgspec.Struct, frozen=True):
    """Who handed a submission in, and when: ISO 8601, or empty."""

    people: tuple[Submitter, ...] = ()
    at: str = ""


def read_submitters(path: Path) -> dict[str, HandedIn]:
    """The people who handed in each folder, and the time, by the folder's name.

    Empty if there is no readable list.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE)
    except OSError:
        return {}
    reader = _MetadataReader()
    for line in data.decode("utf-8", "replace").splitlines():
        if line.strip():
            reader.read_line(line)
    return reader.handed_in_by_folder()


class _MetadataReader:
    """Reads the few lines of the YAML that matter; a whole parser would take minutes for it."""

    def __init__(self) -> None:
        """Read nothing yet."""
        self._people: dict[str, list[Submitter]] = {}  # by folder
        self._dates: dict[str, str] = {}
        self._folder = ""  # of the current submission
        self._list_indent = _OUTSIDE  # of the current list of submitters
        self._in_date = False  # whether `utc` may follow `created_at`

    def read_line(self, line: str) -> None:
        """Take one line, which is not blank.

        It begins another submission, or tells something about the current one.
        """
        indent = len(line) - len(line.lstrip())
        heading = _SUBMISSION.match(line)
        if heading:
            self._folder = heading[1]
            self._list_indent = _OUTSIDE
            self._in_date = False
            self._people.setdefault(self._folder, [])
        elif not self._folder:
            return
        elif self._is_in_list(line, indent):
            self._read_field(line)
        else:
            self._read_key(line, indent)

    def _is_in_list(self, line: str, indent: int) -> bool:
        """True if a line belongs to the current list of submitters."""
        if self._list_indent == _OUTSIDE:
            return False
        if indent == self._list_indent:
            return _begins_item(line)
        return indent > self._list_indent

    def _read_field(self, line: str) -> None:
        """Take a field of a submitter of the current folder, or the first field of another one.

        Other fields than those of `Submitter` are passed over.
        """
        match = _FIELD.match(line)
        if match is None:
            return
        people = self._people[self._folder]
        if _begins_item(line) or not people:
            people.append(Submitter(""))
        field = match[1]
        text = _scalar_text(match[2])
        people[-1] = people[-1]._replace(**{field: text})

    def _read_key(self, line: str, indent: int) -> None:
        """Begin the list of submitters, or take the date of the submission.

        Other keys only end the list of submitters.
        """
        is_own = indent <= _OWN_INDENT
        # Only the first list is the submission's own.
        has_people = bool(self._people[self._folder])
        self._list_indent = _OUTSIDE
        if is_own and not has_people and _SUBMITTERS.match(line):
            self._list_indent = indent
        created = _CREATED.match(line)
        if created is not None and self._is_date(created[1], is_own):
            self._in_date = True
            date = _iso_date(created[2])
            if date:
                self._dates.setdefault(self._folder, date)
        elif is_own:
            self._in_date = False

    def _is_date(self, key: str, is_own: bool) -> bool:
        """True for `created_at` of the submission itself, and for the `utc` that may follow it."""
        if key == "created_at":
            return is_own
        return self._in_date

    def handed_in_by_folder(self) -> dict[str, HandedIn]:
        """The people and times that were read, by folder; folders without any are left out."""
        by_folder = {}
        for folder, people in self._people.items():
            named = [person for person in people if person.name]
            date = self._dates.get(folder, "")
            if named or date:
                by_folder[folder] = HandedIn(tuple(named), date)
        return by_folder


def _begins_item(line: str) -> bool:
    """True if a line begins another item of a list."""
    return line.lstrip().startswith("- ")


def _iso_date(text: str) -> str:
    """The date in a text, in ISO 8601; empty where there is none."""
    date = _DATE.search(text)
    if date is None:
        return ""
    day, time, zone = date.groups()
    if zone in ("Z", "UTC"):
        zone = "+00:00"
    return f"{day}T{time}{zone}"


def _scalar_text(value: str) -> str:
    """The text of a simple YAML scalar, on one line, without control characters.

    Quotes around it are removed, and escapes within double quotes are replaced.
    """
    inside = value[1:-1]
    if len(value) < 2 or value[0] != value[-1]:
        text = value
    elif value[0] == "'":
        text = inside.replace("''", "'")
    elif value[0] == '"':
        text = _ESCAPE.sub(_escaped_character, inside)
    else:
        text = value
    return replace_unprintable(text).strip()


def _escaped_character(match: re.Match[str]) -> str:
    """The character that an escape stands for."""
    code = match[1] or match[2]
    if not code:
        return match[3]
    return chr(int(code, 16))
