"""Reads the roster of a class from a CSV file that people or platforms wrote."""

from __future__ import annotations

import datetime
import functools
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.classes.csv_tables import UNCLOSED, TableLine, read_table
from gpudojo.classes.names import name_key
from gpudojo.classes.roster import Roster
from gpudojo.classes.roster_dates import parse_date
from gpudojo.model.errors import BadFile, suggest_name
from gpudojo.model.results import RosterRow

HEADINGS_FILE: Final = Path(__file__).with_name("roster_headings.toml")
# Headings of which one is needed: they say who somebody is.
WHO: Final = frozenset({"id", "name", "first", "last", "email", "github"})
# "Last modified (submission)", in any language; also in the brackets of Chinese and Japanese.
_WITH_BRACKETS: Final = re.compile(r"(.+?)\s*[(\uff08]\D+[)\uff09]")


def read_roster(path: Path, zone: datetime.tzinfo = datetime.UTC) -> Roster:
    """The roster in a CSV file. Dates without a time zone are in `zone`.

    Raises BadFile, with the line where there is one, for a file that is no roster.
    """
    return _RosterReader(path, zone).read_students()


class _Headings(NamedTuple):
    """The headings of `roster_headings.toml`."""

    by_column: dict[str, list[str]]  # those of one column, the best first
    ids: frozenset[str]  # of all columns with ids
    submitted: frozenset[str]  # of columns with the time when a student handed in


@functools.cache
def _known_headings() -> _Headings:
    """The headings, read from their file once."""
    file = tomllib.loads(HEADINGS_FILE.read_text(encoding="utf-8"))
    by_column = file["columns"]
    more = file["more"]
    ids = frozenset(by_column["id"] + more["ids"])
    return _Headings(by_column, ids, frozenset(more["submitted"]))


class _RosterReader:
    """Reads one roster, line by line."""

    def __init__(self, path: Path, zone: datetime.tzinfo) -> None:
        self.path = path
        self.zone = zone
        self.roster = Roster()
        # Of the table, found in its first line: where each column is that we know.
        self.columns: dict[str, int] = {}
        self.id_columns: list[int] = []
        self.date_column: int | None = None
        self._line_of_id: dict[str, int] = {}

    def read_students(self) -> Roster:
        """Read the roster. Raises BadFile for a file or a line that cannot be used."""
        first, *lines = read_table(self.path)
        self._find_columns(first)
        for line in lines:
            if not _is_no_student(line.cells):
                self._add_student(line)
        if not self.roster.rows:
            raise BadFile(str(self.path), None, "there is nobody in it")
        return self.roster

    def _bad_line(self, line: TableLine, reason: str) -> BadFile:
        """The error to raise for a line."""
        return BadFile(str(self.path), line.number, reason)

    def _find_columns(self, first: TableLine) -> None:
        """Note which column holds what. Raises BadFile where none says who somebody is.

        Sets `columns`, `id_columns` and `date_column`.
        """
        known_headings = _known_headings()
        headings = [name_key(cell.replace("_", " ")) for cell in first.cells]
        for column, names in known_headings.by_column.items():
            for name in names:
                if name in headings:
                    self.columns[column] = headings.index(name)
                    break
        for number, heading in enumerate(headings):
            if heading in known_headings.ids:
                self.id_columns.append(number)
        self.date_column = _column_of_dates(headings)
        # One of them has to say who it is.
        if self.columns.keys().isdisjoint(WHO):
            beginnings = [cell[:40] for cell in first.cells[:8]]
            cells = ", ".join(beginnings)
            hint = _suggested_heading(headings)
            reason = (
                "the first line has to name the columns, one of them id, name, email or github; "
                f"it has {cells}{hint}"
            )
            raise self._bad_line(first, reason)

    def _add_student(self, line: TableLine) -> None:
        """Add the student of a line, with the date if there is one.

        Raises BadFile for a line that says nobody, or somebody who is in it already.
        """
        # Who it is.
        self._refuse_several_lines_in_a_cell(line)
        name, family = self._name_and_family(line)
        email = self._cell_in(line, "email")
        github = self._cell_in(line, "github")
        login = self._cell_in(line, "login")
        own_id = _without_participant(self._cell_in(line, "id"))
        id_ = own_id or email or github or name
        self._refuse_unusable_id(line, id_, name)
        row = RosterRow(
            id=id_,
            name=name,
            email=email or _address_among(login, id_),
            section=self._cell_in(line, "section"),
            github=github,
            login=login,
            family=family,
        )
        # The other ids of the same person.
        more_ids = []
        for position in self.id_columns:
            cell = _cell_at(line, position)
            more_ids.append(_without_participant(cell))
        number = self.roster.add_student(row, more_ids)
        self._add_date(line, number)

    def _cell_in(self, line: TableLine, column: str) -> str:
        """What a line has in a column, on one line. Empty where there is no such column."""
        if column not in self.columns:
            return ""
        return _cell_at(line, self.columns[column])

    def _name_and_family(self, line: TableLine) -> tuple[str, str]:
        """The whole name, first name first; and the family name, empty where it is not known."""
        name = self._cell_in(line, "name")
        if name and "," not in name:
            return name, ""
        if name:
            family, _, first_name = name.partition(",")
        else:
            family = self._cell_in(line, "last")
            first_name = self._cell_in(line, "first")
        whole = f"{first_name.strip()} {family}"
        return whole.strip(), family.strip()

    def _refuse_several_lines_in_a_cell(self, line: TableLine) -> None:
        """Raises BadFile for a name or id with a line break: a quotation mark was not closed."""
        for column in (*self.id_columns, *self.columns.values()):
            if column >= len(line.cells):
                continue
            if "\n" in line.cells[column].strip():
                reason = f"a name or id has several lines; {UNCLOSED}"
                raise self._bad_line(line, reason)

    def _refuse_unusable_id(self, line: TableLine, id_: str, name: str) -> None:
        """Raises BadFile for no id, or for the id of another line; else remembers the line."""
        if not id_:
            reason = "neither an id, a name, an e-mail address nor a GitHub name is given"
            raise self._bad_line(line, reason)
        other_line = self._line_of_id.setdefault(name_key(id_), line.number)
        if other_line == line.number:
            return
        relation = "in"
        if self._cell_in(line, "id"):
            relation = "the id of"
        reason = f"{id_!r} is {relation} line {other_line}, too"
        if id_ == name:
            reason += "; give both an id"
        raise self._bad_line(line, reason)

    def _add_date(self, line: TableLine, row: int) -> None:
        """Note when the student of a row handed in, if the table says so.

        A date that cannot be read is not used, and is noted.
        """
        if self.date_column is None:
            return
        if self.date_column >= len(line.cells):
            return
        text = line.cells[self.date_column]
        if not text.strip(" -"):
            return
        date = parse_date(text, self.zone)
        if date is None:
            self.roster.notes.append(
                f"{self.path}, line {line.number}: the date {text!r} cannot be read and is not used"
            )
        else:
            self.roster.submitted[row] = date.isoformat()


def _address_among(*texts: str) -> str:
    """The first of these texts that is an e-mail address; empty for none.

    The tables of Canvas and GitHub Classroom have no addresses, but logins or identifiers that
    often are.
    """
    for text in texts:
        if "@" in text:
            return text
    return ""


def _cell_at(line: TableLine, position: int) -> str:
    """A cell of a line, its spaces and line ends made one. Empty where the line is too short."""
    if position >= len(line.cells):
        return ""
    words = line.cells[position].split()
    return " ".join(words)


def _is_no_student(cells: list[str]) -> bool:
    """True for lines that Canvas adds to the students.

    They hold the maximum, a student for tests, and which assignments are posted by hand.
    """
    if name_key(cells[0]) in ("points possible", "test student"):
        return True
    contents = {cell.strip() for cell in cells}
    return not cells[0].strip() and contents <= {"", "Manual Posting"}


def _without_participant(cell: str) -> str:
    """The number in Moodle's "Participant 1234". Other cells stay as they are.

    Moodle names files by that number alone.
    """
    participant = re.fullmatch(r"[^\W\d_][^\s\d]*\s+(\d+)", cell)
    if participant is None:
        return cell
    return participant[1]


def _column_of_dates(headings: Sequence[str]) -> int | None:
    """The column that tells when each student handed in. Returns None where there is none."""
    headings_of_dates = _known_headings().submitted
    for number, heading in enumerate(headings):
        if heading in headings_of_dates:
            return number
    # In languages that are not listed: Moodle has two headings that begin alike, "Last modified
    # (submission)" and, after it, "Last modified (grade)".
    beginnings = [_text_before_brackets(heading) for heading in headings]
    for number, beginning in enumerate(beginnings):
        if beginning and beginnings.count(beginning) == 2:
            return number
    return None


def _text_before_brackets(heading: str) -> str:
    """What a heading says before its brackets. Empty where it has none."""
    match = _WITH_BRACKETS.fullmatch(heading)
    if match is None:
        return ""
    return match[1]


def _suggested_heading(headings: Sequence[str]) -> str:
    """Which heading may have been meant, for the end of a sentence. Empty where none is near."""
    known_headings = []
    for names in _known_headings().by_column.values():
        known_headings += names
    for heading in headings:
        hint = suggest_name(heading, known_headings, "")
        if hint:
            return hint
    return ""
