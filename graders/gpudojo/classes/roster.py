"""The roster: who is in a class, and whose a submission is."""

from __future__ import annotations

import datetime
import functools
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.classes.csv_tables import UNCLOSED, TableLine, read_table
from gpudojo.classes.names import name_key, spellings_of
from gpudojo.classes.roster_dates import parse_date
from gpudojo.model.errors import BadFile, suggest_name
from gpudojo.model.results import RosterRow
from gpudojo.submissions.submitters import Submitter

HEADINGS_FILE: Final = Path(__file__).with_name("roster_headings.toml")
_SHORTEST_ID: Final = 4  # letters of an id that is looked for inside of a longer name


class MatchedPeople(NamedTuple):
    """Rows of the roster for those who handed in, and a sentence if one of them has none."""

    rows: list[int]
    problem: str


@dataclass
class Roster:
    """The students of a class."""

    rows: list[RosterRow] = field(default_factory=list)
    # By row, when the student handed in; where the platform's table has it.
    submitted: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _rows_by_id: dict[str, set[int]] = field(default_factory=dict)
    _rows_by_name: dict[str, set[int]] = field(default_factory=dict)

    def add_student(self, row: RosterRow, more_ids: Iterable[str] = ()) -> int:
        """Add a student, who may have more ids than the row. Returns the number of the row."""
        number = len(self.rows)
        self.rows.append(row)
        for id_ in (row.id, row.email, row.github, row.login, *more_ids):
            if id_:
                self._rows_by_id.setdefault(name_key(id_), set()).add(number)
        for spelling in spellings_of(row.name):
            self._rows_by_name.setdefault(spelling, set()).add(number)
        return number

    def find_rows(self, identifier: str | None, *names: str) -> set[int]:
        """The rows of a student, several where the roster has several that fit.

        They are looked for by id, then by name, then by an id that is part of a name.
        """
        known_names = [name for name in names if name]
        for id_ in (identifier, *known_names):
            if id_ and name_key(id_) in self._rows_by_id:
                return self._rows_by_id[name_key(id_)]
        for name in known_names:
            for spelling in spellings_of(name):
                if spelling in self._rows_by_name:
                    return self._rows_by_name[spelling]
        rows = set()
        for name in known_names:
            for part in re.split(r"[\s_]+|(?<=\d)-|-(?=\d)", name):
                if len(part) >= _SHORTEST_ID:
                    rows |= self._rows_by_id.get(name_key(part), set())
        return rows

    def match_people(
        self, identifier: str | None, names: Sequence[str], people: Sequence[Submitter]
    ) -> MatchedPeople:
        """The rows of those who handed in one submission.

        `people` are those whom the platform lists. Where it lists nobody, or one person who is
        not found, `identifier` and `names` of the submission are looked for.
        """
        rows: list[int] = []
        problem = ""
        for person in people or [Submitter("")]:
            # By what the platform says of the person, else by the names of the submission.
            matching: set[int] = set()
            if person.name:
                matching = self.find_rows(
                    person.sid or person.email or None, person.email, person.name
                )
            if not matching and len(people) < 2:
                matching = self.find_rows(identifier, *names)
            called = person.name or names[0]
            if len(matching) == 1:
                rows += matching.difference(rows)
            elif matching:
                alike = sorted(self.rows[row].id or self.rows[row].name for row in matching)
                problem = f"several on the roster match {called}: {', '.join(alike)}"
            else:
                problem = f"nobody on the roster matches {called}"
        return MatchedPeople(rows, problem)


def read_roster(path: Path, zone: datetime.tzinfo = datetime.UTC) -> Roster:
    """The roster in a CSV file. Dates without a time zone are in `zone`.

    Raises BadFile, with the line where there is one, for a file that is no roster.
    """
    return _RosterReader(path, zone).read_students()


class _Headings(NamedTuple):
    """The headings of `roster_headings.toml`."""

    by_column: dict[str, list[str]]
    ids: frozenset[str]
    submitted: frozenset[str]


@functools.cache
def _known_headings() -> _Headings:
    """The headings, read from their file once."""
    file = tomllib.loads(HEADINGS_FILE.read_text(encoding="utf-8"))
    by_column = file["columns"]
    ids = frozenset(by_column["id"]) | frozenset(file["more"]["ids"])
    return _Headings(by_column, ids, frozenset(file["more"]["submitted"]))


class _RosterReader:
    """Reads one roster, line by line."""

    def __init__(self, path: Path, zone: datetime.tzinfo) -> None:
        self.path = path
        self.zone = zone
        self.roster = Roster()
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

    def _find_columns(self, first: TableLine) -> None:
        """Note which column holds what. Raises BadFile where none says who somebody is."""
        known = _known_headings()
        headings = [name_key(cell.replace("_", " ")) for cell in first.cells]
        self.columns: dict[str, int] = {}
        for column, names in known.by_column.items():
            present = [name for name in names if name in headings]
            if present:
                self.columns[column] = headings.index(present[0])
        self.id_columns = [n for n, heading in enumerate(headings) if heading in known.ids]
        self.date_column = _column_of_dates(headings)
        if self.columns.keys().isdisjoint({"id", "name", "first", "last", "email", "github"}):
            cells = ", ".join(cell[:40] for cell in first.cells[:8])
            raise BadFile(
                str(self.path),
                first.number,
                "the first line has to name the columns, one of them id, name, email or github; "
                f"it has {cells}{_suggested_heading(headings)}",
            )

    def _add_student(self, line: TableLine) -> None:
        """Add the student of a line, with the date if there is one. Raises BadFile."""
        self._refuse_several_lines_in_a_cell(line)
        name, family = self._name_and_family(line)
        email = self._cell_in(line, "email")
        github = self._cell_in(line, "github")
        login = self._cell_in(line, "login")
        id_ = _without_participant(self._cell_in(line, "id")) or email or github or name
        self._refuse_unusable_id(line, id_, name)
        # The tables of Canvas and GitHub Classroom have no addresses, but logins or identifiers
        # that often are.
        if not email and "@" in login:
            email = login
        elif not email and "@" in id_:
            email = id_
        row = RosterRow(id_, name, email, self._cell_in(line, "section"), github, login, family)
        more_ids = []
        for column in self.id_columns:
            if column < len(line.cells):
                more_ids.append(_without_participant(" ".join(line.cells[column].split())))
        number = self.roster.add_student(row, more_ids)
        self._add_date(line, number)

    def _cell_in(self, line: TableLine, column: str) -> str:
        """What a line has in a column, on one line. Empty where there is no such column."""
        position = self.columns.get(column)
        if position is None or position >= len(line.cells):
            return ""
        return " ".join(line.cells[position].split())

    def _name_and_family(self, line: TableLine) -> tuple[str, str]:
        """The whole name, first name first; and the family name, empty where it is not known."""
        name = self._cell_in(line, "name")
        last, comma, first = name.partition(",")
        if comma:
            return f"{first.strip()} {last}".strip(), last.strip()
        if name:
            return name, ""
        family = self._cell_in(line, "last")
        return f"{self._cell_in(line, 'first')} {family}".strip(), family

    def _refuse_several_lines_in_a_cell(self, line: TableLine) -> None:
        """Raises BadFile for a name or id with a line break: a quotation mark was not closed."""
        for column in (*self.id_columns, *self.columns.values()):
            if column < len(line.cells) and "\n" in line.cells[column].strip():
                reason = f"a name or id has several lines; {UNCLOSED}"
                raise BadFile(str(self.path), line.number, reason)

    def _refuse_unusable_id(self, line: TableLine, id_: str, name: str) -> None:
        """Raises BadFile for no id, or for the id of another line; else remembers the line."""
        if not id_:
            reason = "neither an id, a name, an e-mail address nor a GitHub name is given"
            raise BadFile(str(self.path), line.number, reason)
        other_line = self._line_of_id.setdefault(name_key(id_), line.number)
        if other_line != line.number:
            relation = "the id of" if self._cell_in(line, "id") else "in"
            advice = "; give both an id" if id_ == name else ""
            reason = f"{id_!r} is {relation} line {other_line}, too{advice}"
            raise BadFile(str(self.path), line.number, reason)

    def _add_date(self, line: TableLine, row: int) -> None:
        """Note when the student of a row handed in, if the table says so."""
        if self.date_column is None or self.date_column >= len(line.cells):
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


def _is_no_student(cells: list[str]) -> bool:
    """True for lines that Canvas adds to the students.

    They hold the maximum, a student for tests, and which assignments are posted by hand.
    """
    if name_key(cells[0]) in ("points possible", "test student"):
        return True
    return not cells[0].strip() and {cell.strip() for cell in cells} <= {"", "Manual Posting"}


def _without_participant(cell: str) -> str:
    """The number in Moodle's "Participant 1234". Other cells stay as they are.

    Moodle names files by that number alone.
    """
    participant = re.fullmatch(r"[^\W\d_][^\s\d]*\s+(\d+)", cell)
    return participant[1] if participant else cell


def _column_of_dates(headings: Sequence[str]) -> int | None:
    """The column that tells when each student handed in. Returns None where there is none."""
    known = _known_headings().submitted
    for number, heading in enumerate(headings):
        if heading in known:
            return number
    # In languages that are not listed: Moodle has two headings that begin alike, "Last modified
    # (submission)" and, after it, "Last modified (grade)".
    beginnings = []
    for heading in headings:
        modified = re.fullmatch(r"(.+?)\s*[(\uff08]\D+[)\uff09]", heading)
        beginnings.append(modified[1] if modified else "")
    for number, beginning in enumerate(beginnings):
        if beginning and beginnings.count(beginning) == 2:
            return number
    return None


def _suggested_heading(headings: Sequence[str]) -> str:
    """Which heading may have been meant, for the end of a sentence. Empty where none is near."""
    every = []
    for names in _known_headings().by_column.values():
        every += names
    for heading in headings:
        hint = suggest_name(heading, every, "")
        if hint:
            return hint
    return ""
