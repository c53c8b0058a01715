"""Tables that a teacher downloads from a platform: reading them, and finding students in them."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from gpudojo.classes.roster_file import is_heading_of_ids, participant_number
from gpudojo.model.errors import CannotExport
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import count_and_noun, first_names
from gpudojo.platforms import Options
from gpudojo.platforms._files import BYTE_ORDER_MARK
from gpudojo.platforms._rows import chosen_rows

NOBODY: Final = "in no line of the table"
MOST_NAMES: Final = 5  # of those who are left out, in a message
DELIMITERS: Final = (",", ";", "\t")


@dataclass(frozen=True)
class Table:
    """A CSV file: what it holds, and how it was written."""

    headings: list[str]
    rows: list[list[str]]
    delimiter: str
    mark: str  # a byte order mark, or nothing


class ListedPerson(NamedTuple):
    """Somebody who stands in a line of a table."""

    id: str
    name: str
    more_ids: tuple[str, ...] = ()  # such as a login: they tell people of one name apart

    @property
    def all_ids(self) -> set[str]:
        """Every id, in lower case."""
        return {each.casefold() for each in (self.id, *self.more_ids)}


def read_table(path: Path, platform: str) -> Table:
    """Read a CSV file, whatever its delimiter; all rows get the same length.

    Raises CannotExport where the file cannot be read or is no table.
    """
    text = _read_text(path, platform)
    mark = ""
    if text.startswith(BYTE_ORDER_MARK):
        mark = BYTE_ORDER_MARK
    text = text.removeprefix(BYTE_ORDER_MARK)
    if "\0" in text:
        advice = "download it as CSV, not as a workbook"
        raise CannotExport(platform, f"{path} is not a table; {advice}")
    delimiter = _delimiter_of(text)
    try:
        file = io.StringIO(text, newline="")
        rows = list(csv.reader(file, delimiter=delimiter))
    except csv.Error as error:
        raise CannotExport(platform, f"{path} is not a table: {error}") from error
    rows = [row for row in rows if any(row)]
    if not rows:
        raise CannotExport(platform, f"{path} is empty")
    width = max(len(row) for row in rows)
    padded = [row + [""] * (width - len(row)) for row in rows]
    return Table(padded[0], padded[1:], delimiter, mark)


def _read_text(path: Path, platform: str) -> str:
    """Return the text of a table; raises CannotExport where it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CannotExport(platform, f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        advice = "download it as CSV and do not edit it"
        raise CannotExport(platform, f"{path} is not UTF-8 text; {advice}") from error


def _delimiter_of(text: str) -> str:
    """Return the delimiter that makes the most columns of the first line."""
    first_line = text.partition("\n")[0]

    def count_columns(delimiter: str) -> int:
        return len(next(csv.reader([first_line], delimiter=delimiter), []))

    return max(DELIMITERS, key=count_columns)


class Worksheet(NamedTuple):
    """A grading worksheet of Moodle, and who stands in each of its lines."""

    table: Table
    people: dict[int, ListedPerson]


def read_worksheet(path: Path) -> Worksheet:
    """Read a grading worksheet of Moodle, and find who stands in each of its lines.

    Raises CannotExport where it cannot be read, or does not have Moodle's ids.
    """
    table = read_table(path, "moodle")
    id_columns = []
    for column, heading in enumerate(table.headings):
        if column > 1 and is_heading_of_ids(heading):
            id_columns.append(column)
    people = {}
    for position, row in enumerate(table.rows):
        number = participant_number(row[0])
        if number is not None:
            more_ids = [row[column].strip() for column in id_columns]
            people[position] = ListedPerson(number, row[1], tuple(filter(None, more_ids)))
    if not people or len(people) != len(table.rows):
        raise CannotExport(
            "moodle",
            f"the first column of {path} does not hold Moodle's identifiers, such as "
            'Participant 1234; download the assignment\'s "grading worksheet" from Moodle',
        )
    return Worksheet(table, people)


def letters_of(name: str) -> str:
    """Return a name without accents, case, spaces and punctuation.

    Platforms change these in the names of files.
    """
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in letters if letter.isalnum())


def spellings_of(name: str) -> set[str]:
    """Return the ways in which files name a person.

    `Lovelace, Ada` is also `Ada Lovelace` and `lovelaceada`.
    """
    words = name.replace(",", " ").split()
    spellings = {letters_of(name)}
    for first in range(len(words)):
        turned = words[first:] + words[:first]
        spellings.add(letters_of("".join(turned)))
    return spellings - {""}


def id_on(platform: str, row: SubmissionRow) -> str | None:
    """Return the platform's own id of a student.

    It is None where the id came from elsewhere: that number would be somebody else there.
    """
    if row.identifier and platform in (row.naming or "").lower():
        return row.identifier
    return None


class PlatformIds:
    """Gives the platform's own ids of students.

    They are in the names of files, and on the roster where those ids are the same ones, or where
    Moodle's worksheet is a part of it.
    """

    def __init__(self, platform: str, rows: Iterable[SubmissionRow]) -> None:
        """Find out whether the roster has the platform's own ids."""
        self.platform = platform
        self.roster_has_them = False
        for row in rows:
            if row.roster and row.roster.id == id_on(platform, row):
                self.roster_has_them = True

    def id_of(self, row: SubmissionRow) -> str:
        """Return a student's id; empty where it is not known."""
        from_file = id_on(self.platform, row)
        if from_file:
            return from_file
        if row.roster is None:
            return ""
        if self.roster_has_them:
            return row.roster.id
        return _participant_on(self.platform, row)


def _participant_on(platform: str, row: SubmissionRow) -> str:
    """Return Moodle's number of a student, as the roster has it; empty elsewhere."""
    if row.roster is None or platform != "moodle":
        return ""
    return row.roster.participant


Line = TypeVar("Line", bound=Hashable)


def match_lines(
    people: Mapping[Line, ListedPerson],
    rows: Iterable[SubmissionRow],
    platform: str,
    options: Options,
    fills_table: bool = True,
) -> Iterator[tuple[Line, SubmissionRow]]:
    """Yield submissions, or the one that was asked for, with each line that belongs to one.

    It is found by the platform's id, and without one by the name; somebody may have a line in each
    of several tables. Who matches no line, or several people, or a line that is taken, is left out
    with a message at the end, and noted in `options`. Of those on the roster who handed in nothing,
    only the number is told. Where the table is not what is filled in, only unclear lines are told.
    `rows` are gone through twice.
    """
    finder = _PersonFinder(people, platform, rows)
    submission_by_line: dict[Line, str] = {}
    absent = 0
    left_out: dict[str, list[str]] = {}  # names, by the reason
    for row in chosen_rows(rows, options):
        lines = finder.lines_of(row)
        if row.is_empty:
            absent += bool(lines)
            if not lines:
                options.left_out.add(row.submission)
            continue
        taken = [submission_by_line[line] for line in lines if line in submission_by_line]
        if not lines:
            left_out.setdefault(NOBODY, []).append(row.called)
        elif len({people[line].id for line in lines}) > 1:
            left_out.setdefault("in lines of several people", []).append(row.called)
        elif taken:
            left_out.setdefault(f"the same person as {taken[0]!r}", []).append(row.called)
        else:
            for line in lines:
                submission_by_line[line] = row.submission
                yield line, row
            continue
        options.left_out.add(row.submission)
    if not fills_table:
        left_out.pop(NOBODY, None)
    for reason, names in left_out.items():
        count = count_and_noun(len(names), "student")
        options.say(f"{count} left out, {reason}: {first_names(names, MOST_NAMES)}.")
    if absent and fills_table:
        options.say(
            f"{absent} on the roster handed in nothing; "
            "what the table has for them is left as it is."
        )


class _PersonFinder(Generic[Line]):
    """Finds the lines of tables in which a student may stand."""

    def __init__(
        self, people: Mapping[Line, ListedPerson], platform: str, rows: Iterable[SubmissionRow]
    ) -> None:
        """Note the lines of all people in the tables, by id and by spellings of the name."""
        self.platform = platform
        self.people = people
        self.lines_by_id: dict[str, set[Line]] = {}
        self.lines_by_name: dict[str, set[Line]] = {}
        for line, person in people.items():
            self.lines_by_id.setdefault(person.id, set()).add(line)
            for spelling in spellings_of(person.name):
                self.lines_by_name.setdefault(spelling, set()).add(line)
        # Everything by which the roster knows somebody.
        self.ids_on_roster: set[str] = set()
        for row in rows:
            self.ids_on_roster |= _ids_on_roster(row)

    def lines_of(self, row: SubmissionRow) -> set[Line]:
        """Return the lines in which the student of a row may stand, by id or else by name."""
        own_id = id_on(self.platform, row)
        if own_id:
            return set(self.lines_by_id.get(own_id, ()))
        lines = set(self.lines_by_id.get(_participant_on(self.platform, row), ()))
        return lines or self._lines_by_names(row)

    def _lines_by_names(self, row: SubmissionRow) -> set[Line]:
        """Return the lines with one of the student's names, unless they are of somebody else.

        The roster tells two of one name apart, by an id that the table has as well.
        """
        names = [row.student or "", row.submission]
        if row.roster:
            names.append(row.roster.name)
        lines: set[Line] = set()
        for name in names:
            lines |= self.lines_by_name.get(letters_of(name), set())
        own_ids = _ids_on_roster(row)
        own_lines = {line for line in lines if self.people[line].all_ids & own_ids}
        if own_lines:
            return own_lines
        return {line for line in lines if not self._is_somebody_else(line, own_ids)}

    def _is_somebody_else(self, line: Line, own_ids: set[str]) -> bool:
        """True if a line without any of these ids is another student's, by an id or address."""
        ids = self.people[line].all_ids
        if own_ids and ids & self.ids_on_roster:
            return True
        return _has_address(ids) and _has_address(own_ids)


def _ids_on_roster(row: SubmissionRow) -> set[str]:
    """Return every id and address that the roster has of a student, in lower case."""
    if row.roster is None:
        return set()
    return {each.casefold() for each in row.roster.all_ids if each != row.roster.name}


def _has_address(ids: Iterable[str]) -> bool:
    """True if one of these ids is an e-mail address."""
    return any("@" in id_ for id_ in ids)


def number_in(cell: str) -> float | None:
    """Return the number that a platform wrote, with a decimal point or comma; else None."""
    try:
        return float(cell.strip().replace(",", "."))
    except ValueError:
        return None
