"""Reads who handed in which folder, and when, from the list that Gradescope packs with a class."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

METADATA_FILE: Final = "submission_metadata.yml"
_LARGEST_FILE: Final = 64_000_000  # it holds results and histories too
_SUBMISSION: Final = re.compile(r"""["']?(submission_\d+)["']?:\s*$""")
_KEY: Final = re.compile(r"""(\s+):?["']?(\w+)["']?:\s*$""")
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
            lines = file.read(_LARGEST_FILE).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    reader = _MetadataReader()
    for line in lines:
        if line.strip():
            reader.read_line(line)
    return reader.handed_in()


class _MetadataReader:
    """Reads the few lines of the YAML that matter; a whole parser would take minutes for it."""

    def __init__(self) -> None:
        self._people: dict[str, list[Submitter]] = {}  # by folder
        self._dates: dict[str, str] = {}
        self._folder = ""  # of the current submission
        self._list_indent = _OUTSIDE  # of the current list of submitters
        self._in_date = False  # whether `utc` may follow `created_at`

    def read_line(self, line: str) -> None:
        """Take one line, which is not blank."""
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
        if self._list_indent == _OUTSIDE:
            return False
        begins_item = line.lstrip().startswith("- ")
        return indent > self._list_indent or (indent == self._list_indent and begins_item)

    def _read_field(self, line: str) -> None:
        """Take a field of a submitter, or the first field of another one."""
        field = _FIELD.match(line)
        if field is None:
            return
        people = self._people[self._folder]
        if line.lstrip().startswith("- ") or not people:
            people.append(Submitter(""))
        people[-1] = people[-1]._replace(**{field[1]: _scalar_text(field[2])})

    def _read_key(self, line: str, indent: int) -> None:
        """Begin the list of submitters, or take the date of the submission."""
        is_own = indent <= _OWN_INDENT
        key = _KEY.match(line)
        begins_list = key is not None and key[2] == "submitters" and is_own
        self._list_indent = _OUTSIDE
        if begins_list and not self._people[self._folder]:
            self._list_indent = indent
        created = _CREATED.match(line)
        is_date = created is not None and (is_own if created[1] == "created_at" else self._in_date)
        if created is not None and is_date:
            self._in_date = True
            date = _DATE.search(created[2])
            if date and self._folder not in self._dates:
                zone = "+00:00" if date[3] in ("Z", "UTC") else date[3]
                self._dates[self._folder] = f"{date[1]}T{date[2]}{zone}"
        elif is_own:
            self._in_date = False

    def handed_in(self) -> dict[str, HandedIn]:
        """The people and times that were read, by folder; folders without any are left out."""
        found = {}
        for folder, people in self._people.items():
            named = tuple(person for person in people if person.name)
            date = self._dates.get(folder, "")
            if named or date:
                found[folder] = HandedIn(named, date)
        return found


def _scalar_text(value: str) -> str:
    """The text of a simple YAML scalar, on one line, without control characters."""
    if len(value) >= 2 and value[0] == value[-1] == "'":
        value = value[1:-1].replace("''", "'")
    elif len(value) >= 2 and value[0] == value[-1] == '"':
        value = _ESCAPE.sub(_unescape, value[1:-1])
    return "".join(c if c.isprintable() else "_" for c in value).strip()


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else match[3]
