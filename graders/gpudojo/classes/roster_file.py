"""Reads the roster of a class from a CSV file that people or platforms wrote."""

from __future__ import annotations

import datetime
import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.classes.csv_tables import UNCLOSED, TableLine, read_table
from gpudojo.classes.hand_in_dates import RosterDate
from gpudojo.classes.names import MOST_NAMES, name_key, split_name
from gpudojo.classes.roster import Roster
from gpudojo.classes.roster_dates import parse_date
from gpudojo.classes.roster_people import ListedStudent, PeopleInTables
from gpudojo.model.errors import BadFile, suggest_name
from gpudojo.model.results import RosterRow
from gpudojo.model.results_file import count_and_noun, first_names

HEADINGS_FILE: Final = Path(__file__).with_name("roster_headings.toml")
# Headings of which one is needed: they say who somebody is.
WHO: Final = frozenset({"id", "name", "first", "last", "email", "github"})
# Kinds of ids that have several headings: of one person, two ids of a kind are the same.
PARTICIPANT: Final = "participant"
MOODLES_NUMBER: Final = "id number"
# "Last modified (submission)", in any language; also in the brackets of Chinese and Japanese.
_WITH_BRACKETS: Final = re.compile(r"(.+?)\s*[(\uff08]\D+[)\uff09]")


def read_roster(paths: Sequence[Path], zone: datetime.tzinfo = datetime.UTC) -> Roster:
    """The roster in CSV files that complete each other. Dates without a time zone are in `zone`.

    Somebody who is in several files has one row, with what each of them says; where two differ,
    the first file is right. Of dates, the later one counts: tables of one platform are downloaded
    one after another. Notes of the roster say whose dates differ, and of whom it is not certain who
    they are. Raises BadFile, with the line where there is one, for a file that is no roster.
    """
    roster = Roster()
    readers = [_RosterReader(path, zone, roster, table) for table, path in enumerate(paths)]
    lines: list[ListedStudent] = []
    for reader in readers:
        reader.read_students()
        lines += reader.students
    joined = PeopleInTables(lines)
    roster.notes += joined.notes
    number_of: dict[ListedStudent, int] = {}
    for first, *others in joined.people:
        number = roster.add_student(first.row)
        for line in others:
            roster.complete_student(number, line.row)
        number_of.update(dict.fromkeys((first, *others), number))
    roster.mark_namesakes()
    for reader in readers:
        reader.add_dates(number_of)
    return roster


class _Headings(NamedTuple):
    """The headings of `roster_headings.toml`."""

    by_column: dict[str, list[str]]  # those of one column, the best first
    ids: frozenset[str]  # of all columns with ids
    numbers: frozenset[str]  # of Moodle's "ID number", in its languages
    participants: frozenset[str]  # words before the number in Moodle's ids, not headings
    submitted: frozenset[str]  # of columns with the time when a student handed in


@functools.cache
def _known_headings() -> _Headings:
    """The headings, read from their file once."""
    file = tomllib.loads(HEADINGS_FILE.read_text(encoding="utf-8"))
    by_column = file["columns"]
    more = file["more"]
    ids = frozenset(by_column["id"] + more["ids"])
    return _Headings(
        by_column,
        ids,
        numbers=frozenset(more["numbers"]),
        participants=frozenset(more["participants"]),
        submitted=frozenset(more["submitted"]),
    )


class _RosterReader:
    """Reads one file of a roster, line by line."""

    def __init__(self, path: Path, zone: datetime.tzinfo, roster: Roster, table: int) -> None:
        """Read nothing yet. `roster` gets the dates; `table` is the position of the file in it."""
        self.path = path
        self.zone = zone
        self.roster = roster
        self.table = table
        self.students: list[ListedStudent] = []
        # Of the table, found in its first line: where each column is that we know.
        self.columns: dict[str, int] = {}
        self.id_columns: list[int] = []
        self.kinds_of_ids: dict[int, str] = {}  # by column; see `ListedStudent.ids`
        self.date_column: int | None = None
        self._is_worksheet = False  # it is Moodle's grading worksheet, in any language
        self._line_of_id: dict[str, int] = {}

    def read_students(self) -> None:
        """Find those who are in the file, with the dates of their submissions.

        A date that cannot be read becomes a note of the roster. Raises BadFile for a file or a line
        that cannot be used, and where there is nobody in it.
        """
        first, *lines = read_table(self.path)
        self._find_columns(first)
        for line in lines:
            if not _is_no_student(line.cells):
                self._add_student(line)
        if not self.students:
            raise BadFile(str(self.path), None, "there is nobody in it")
        if self.date_column is None:
            self._note_unused_dates(first, lines)

    def _note_unused_dates(self, first: TableLine, lines: Sequence[TableLine]) -> None:
        """Note the first column of this file that has times of a day; `first` has the headings."""
        for position, heading in enumerate(first.cells):
            for line in lines:
                cell = _cell_at(line, position)
                if ":" in cell and parse_date(cell, self.zone) is not None:
                    self.roster.unused_dates.append(
                        f"{self.path}: the column {heading!r} has dates, and is not known as the "
                        "time of handing in; if it is that, call it 'submitted'"
                    )
                    return

    def _bad_line(self, line: TableLine, reason: str) -> BadFile:
        """The error to raise for a line. Raises nothing itself."""
        return BadFile(str(self.path), line.number, reason)

    def _find_columns(self, first: TableLine) -> None:
        """Note which column holds what. Raises BadFile where none says who somebody is.

        Sets `columns`, `id_columns` and `date_column`, and whether this is Moodle's worksheet.
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
                kind = MOODLES_NUMBER if heading in known_headings.numbers else heading
                self.kinds_of_ids[number] = kind
        self.date_column = _column_of_dates(headings)
        if self.date_column is not None:
            self._is_worksheet = bool(_text_before_brackets(headings[self.date_column]))
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
        """Add the student of a line, with the date if there is one, to the students.

        A date that cannot be read becomes a note of the roster. Remembers which line has the id.
        Raises BadFile for a line that says nobody, that has a line break in a cell, or whose id an
        earlier line has.
        """
        # Who it is.
        self._refuse_several_lines_in_a_cell(line)
        name, family = self._name_and_family(line)
        email = self._cell_in(line, "email")
        github = self._cell_in(line, "github")
        login = self._cell_in(line, "login")
        own_id = ""
        if "id" in self.columns:
            own_id = self._id_at(line, self.columns["id"])
        id_ = own_id or email or github or name
        self._refuse_unusable_id(line, id_, name)
        ids = self._ids_by_kind(line)
        # Of all columns with ids, those that are not in a field of their own.
        more_ids: list[str] = []
        for position in self.id_columns:
            cell = self._id_at(line, position)
            if cell and cell not in (id_, *more_ids):
                more_ids.append(cell)
        row = RosterRow(
            id=id_,
            name=name,
            email=email or _address_among(login, id_),
            section=self._cell_in(line, "section"),
            github=github,
            login=login,
            family=family,
            more_ids=more_ids,
            participant=ids.get(PARTICIPANT, ""),
        )
        place = f"{self.path.name}, line {line.number}"
        self.students.append(ListedStudent(self.table, place, row, ids, self._date_of(line)))

    def _ids_by_kind(self, line: TableLine) -> dict[str, str]:
        """The ids and addresses of a line, by their kinds; none is empty."""
        ids = {}
        for position, kind in self.kinds_of_ids.items():
            id_ = self._id_at(line, position)
            if id_ != _cell_at(line, position) or (self._is_worksheet and position == 0):
                kind = PARTICIPANT
            ids[kind] = id_
        for column in ("email", "github"):
            ids[column] = self._cell_in(line, column)
        return {kind: id_ for kind, id_ in ids.items() if id_}

    def _cell_in(self, line: TableLine, column: str) -> str:
        """What a line has in a column, on one line. Empty where there is no such column."""
        if column not in self.columns:
            return ""
        return _cell_at(line, self.columns[column])

    def _id_at(self, line: TableLine, position: int) -> str:
        """The id that a line has in a column; of Moodle's "Participant 1234" the number.

        Moodle names files by that number alone. It is in the first column of a worksheet, and
        elsewhere known by the word before it.
        """
        cell = _cell_at(line, position)
        number = participant_number(cell)
        if number is None:
            return cell
        in_worksheet = self._is_worksheet and position == 0
        if in_worksheet or _begins_like_participant(cell, number):
            return number
        return cell

    def _name_and_family(self, line: TableLine) -> tuple[str, str]:
        """The whole name, first name first; and the family name, empty where it is not known."""
        name = self._cell_in(line, "name")
        if name and "," not in name:
            return name, ""
        if name:
            parts = split_name(name)
            family = f"{parts.family} {parts.suffix}".strip()
            first_name = parts.given
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

    def _date_of(self, line: TableLine) -> RosterDate | None:
        """When the student of a line handed in; None where the table does not say so.

        A date that cannot be read is not used, and is noted in the roster.
        """
        if self.date_column is None or self.date_column >= len(line.cells):
            return None
        text = line.cells[self.date_column]
        if not text.strip(" -"):
            return None
        date = parse_date(text, self.zone)
        if date is None:
            self.roster.notes.append(
                f"{self.path}, line {line.number}: the date {text!r} cannot be read and is not used"
            )
            return None
        return RosterDate(text.strip(), date.isoformat())

    def add_dates(self, number_of: Mapping[ListedStudent, int]) -> None:
        """Note in the roster when its students handed in, as this file says.

        `number_of` has their rows. Whose dates are others than in earlier files is noted, too.
        """
        if self.date_column is None:
            return
        with_other_dates = []
        for student in self.students:
            if student.date is None:
                continue
            row = number_of[student]
            known = self.roster.dates.setdefault(row, student.date)
            if known.moment != student.date.moment:
                with_other_dates.append(row)
                earlier, later = sorted((known, student.date), key=lambda each: each.moment)
                self.roster.earlier_dates[row].append(earlier)
                self.roster.dates[row] = later
        if with_other_dates:
            self._note_other_dates(with_other_dates)
        self.roster.files_with_dates.append(self.path.name)

    def _note_other_dates(self, rows: Sequence[int]) -> None:
        """Add to the notes that the dates of these rows differ from those in an earlier file."""
        names = []
        for number in rows:
            row = self.roster.rows[number]
            names.append(row.name or row.id)
        earlier = ", ".join(self.roster.files_with_dates)
        self.roster.notes.append(
            f"{self.path}: {count_and_noun(len(names), 'student')} handed in at another time than "
            f"in {earlier}: {first_names(names, MOST_NAMES)}; the later time counts"
        )


def is_heading_of_ids(heading: str) -> bool:
    """True for the heading of a column with ids or addresses, as rosters have them."""
    known_headings = _known_headings()
    key = name_key(heading.replace("_", " "))
    return key in known_headings.ids or key in known_headings.by_column["email"]


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


def participant_number(cell: str) -> str | None:
    """The number at the end of Moodle's "Participant 1234", in any language; None without one.

    Some languages have no space before it.
    """
    match = re.search(r"([0-9]+)\s*$", cell)
    if match is None:
        return None
    return match[1]


def _begins_like_participant(cell: str, number: str) -> bool:
    """True if there is one word and a space before the number, or Moodle's word alone."""
    word = cell.removesuffix(number)
    if word in _known_headings().participants:
        return True
    return re.fullmatch(r"[^\W\d_][^\s\d]*\s+", word) is not None


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
