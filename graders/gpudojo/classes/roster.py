"""The roster of a class: who should have handed something in, and whose a submission is."""

from __future__ import annotations

import csv
import datetime
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpudojo.classes.course_file import key
from gpudojo.model.errors import BadFile, suggestion
from gpudojo.model.results import RosterRow
from gpudojo.submissions.entries import Submitter

# By field, the headings of Canvas, Moodle, Gradescope, GitHub Classroom and plain tables; the first one found is used.
HEADINGS: Final = {
    "id": ("id", "student id", "identifier", "sid", "sis user id", "id number", "number", "matriculation number"),
    "name": ("name", "student", "full name", "student name"),
    "first": ("first name", "given name", "firstname"),
    "last": ("last name", "surname", "family name", "lastname"),
    "email": ("email", "e-mail", "email address", "e-mail address", "mail"),
    "section": ("section", "sections", "section name", "group", "groups", "course section", "tutorial"),
    "github": ("github", "github username", "github name", "github login", "github account"),
    "login": ("sis login id", "login", "login id", "username", "user name", "netid", "account"),
}
IDS: Final = frozenset(HEADINGS["id"]) | {"github id", "integration id"}
_SUBMITTED: Final = re.compile(r"last modified \((submission|abgabe)\)|zuletzt geändert \(abgabe\)|submitted( at)?")
_DATES: Final = ("%A, %d %B %Y, %I:%M %p", "%A, %d %B %Y, %H:%M", "%d %B %Y, %I:%M %p", "%d %B %Y, %H:%M")
_DATES_IN_FIGURES: Final = ("%d.%m.%Y, %H:%M", "%d/%m/%Y, %H:%M", "%Y-%m-%d %H:%M")


@dataclass
class Roster:
    """The students of a class."""

    rows: list[RosterRow] = field(default_factory=list)
    submitted: dict[int, str] = field(default_factory=dict)  # by row: when, where the platform's table says so
    notes: list[str] = field(default_factory=list)
    _ids: dict[str, set[int]] = field(default_factory=dict)
    _names: dict[str, set[int]] = field(default_factory=dict)

    def add(self, row: RosterRow, more_ids: Iterable[str] = ()) -> int:
        number = len(self.rows)
        self.rows.append(row)
        for one in (row.id, row.email, row.github, row.login, *more_ids):
            if one:
                self._ids.setdefault(key(one), set()).add(number)
        for spelled in spellings(row.name):
            self._names.setdefault(spelled, set()).add(number)
        return number

    def match(self, identifier: str | None, *names: str) -> set[int]:
        """The rows of a student: by an id, then by a name, then by an id in a name; several where they are alike."""
        given = [name for name in names if name]
        for one in (identifier, *given):
            if one and (found := self._ids.get(key(one))):
                return found
        for one in given:
            for spelled in spellings(one):
                if found := self._names.get(spelled):
                    return found
        parts = {key(part) for one in given for part in re.split(r"[\s_]+|(?<=\d)-|-(?=\d)", one) if len(part) >= 4}
        return set().union(*(self._ids.get(part, set()) for part in parts))

    def people(
        self, identifier: str | None, names: Sequence[str], people: Sequence[Submitter]
    ) -> tuple[list[int], str]:
        """The rows of those who handed in one submission; and a sentence where one of them is not known."""
        found: list[int] = []
        said = ""
        for who in people or [Submitter("")]:
            rows = self.match(who.sid or who.email or None, who.email, who.name) if who.name else set()
            rows = rows or (self.match(identifier, *names) if len(people) < 2 else set())
            if len(rows) == 1:
                found += [row for row in rows if row not in found]
            elif rows:
                alike = ", ".join(sorted(self.rows[row].id or self.rows[row].name for row in rows))
                said = f"several on the roster match {who.name or names[0]}: {alike}"
            else:
                said = f"nobody on the roster matches {who.name or names[0]}"
        return found, said


def spellings(name: str) -> list[str]:
    """A name as letters alone, in the orders in which platforms write it: Ada Example, Example, Ada, examplead."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    first, comma, last = plain.partition(",")
    if comma:
        plain = f"{last} {first}"
    words = ["".join(c for c in word if c.isalnum()) for word in re.split(r"[\s_.-]+", plain)]
    words = [word for word in words if word]
    turned = ["".join([*words[n:], *words[:n]]) for n in range(len(words))]
    return list(dict.fromkeys(turned))


def read_roster(path: Path, zone: datetime.tzinfo = datetime.UTC) -> Roster:
    """The roster in a CSV file; raises BadFile with the line. Dates without a time zone are in `zone`."""
    lines = table(path)
    headings = [key(cell.replace("_", " ")) for cell in lines[0][1]]
    columns = {
        name: next((headings.index(heading) for heading in known if heading in headings), None)
        for name, known in HEADINGS.items()
    }
    if all(columns[name] is None for name in ("id", "name", "first", "last", "email", "github")):
        every = [heading for known in HEADINGS.values() for heading in known]
        near = next((hint for one in headings if (hint := suggestion(one, every, ""))), "")
        said = f"no column is called id, name, email or github; they are {', '.join(lines[0][1])}{near}"
        raise BadFile(str(path), lines[0][0], said)
    dates = next((n for n, heading in enumerate(headings) if _SUBMITTED.fullmatch(heading)), None)
    more = [n for n, heading in enumerate(headings) if heading in IDS]
    roster = Roster()
    seen: dict[str, int] = {}
    for line, cells in lines[1:]:
        if key(cells[0]) in ("points possible", "student, test") or not any(cell.strip() for cell in cells):
            continue  # of Canvas: the maximum, and a student that does not exist

        def cell(name: str, cells: list[str] = cells) -> str:
            at = columns[name]
            return " ".join(cells[at].split()) if at is not None and at < len(cells) else ""

        first, comma, last = cell("name").partition(",")
        name = f"{last.strip()} {first}" if comma else first or f"{cell('first')} {cell('last')}".strip()
        id_ = _number(cell("id")) or cell("email") or cell("github") or name
        if not id_:
            raise BadFile(str(path), line, "neither an id, a name, an e-mail address nor a GitHub name is given")
        if key(id_) in seen:
            raise BadFile(str(path), line, f"{id_!r} is the id of line {seen[key(id_)]}, too")
        seen[key(id_)] = line
        row = RosterRow(id_, name, cell("email"), cell("section"), cell("github"), cell("login"))
        others = [_number(" ".join(cells[n].split())) for n in more if n < len(cells)]
        number = roster.add(row, others)
        if dates is not None and dates < len(cells) and cells[dates].strip(" -"):
            if at := _moment(cells[dates], zone):
                roster.submitted[number] = at
            else:
                roster.notes.append(f"{path}, line {line}: the date {cells[dates]!r} cannot be read and is not used")
    if not roster.rows:
        raise BadFile(str(path), None, "there is nobody in it")
    return roster


def table(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, each with its number; raises BadFile where there are none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadFile(str(path), None, f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadFile(str(path), line, "this is not UTF-8 text; save the table as CSV in UTF-8") from None
    head = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
    found: list[tuple[int, list[str]]] = []
    at = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                found.append((at, cells))
            at = reader.line_num + 1
    except csv.Error as error:
        raise BadFile(str(path), reader.line_num, f"this is not CSV: {error}") from None
    if not found:
        raise BadFile(str(path), None, "it is empty")
    return found


def _number(cell: str) -> str:
    """Moodle's "Participant 1234", of which the names of its files have the number."""
    words = cell.split()
    return words[1] if len(words) == 2 and words[0].isalpha() and words[1].isdigit() else cell


def _moment(text: str, zone: datetime.tzinfo) -> str:
    text = " ".join(text.split())
    for form in (*_DATES, *_DATES_IN_FIGURES):
        try:
            return datetime.datetime.strptime(text, form).replace(tzinfo=zone).isoformat()
        except ValueError:
            continue
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return ""
    return (found if found.tzinfo else found.replace(tzinfo=zone)).isoformat()
