"""Tables that a teacher downloads from a platform: reading them, and finding students in them."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import SubmissionRow, SubmissionStatus

BYTE_ORDER_MARK: Final = "\ufeff"
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

    Raises CannotExport where it does not have Moodle's ids.
    """
    table = read_table(path, "moodle")
    people = {}
    for position, row in enumerate(table.rows):
        # The number at the end of `Participant 1234567`, in whatever language.
        match = re.search(r"([0-9]+)\s*$", row[0])
        if match:
            people[position] = ListedPerson(match[1], row[1])
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

    They are in the names of files, and on the roster where those ids are the same ones.
    """

    def __init__(self, platform: str, rows: Iterable[SubmissionRow]) -> None:
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
        if self.roster_has_them and row.roster:
            return row.roster.id
        return ""


def match_lines(
    people: Mapping[int, ListedPerson],
    submissions: Iterable[SubmissionRow],
    platform: str,
    say: Callable[[str], None],
) -> Iterator[tuple[int, SubmissionRow]]:
    """Yield submissions with the line of the table that each belongs to.

    It is found by the platform's id, and without one by the name. A submission that matches no
    line, or several, or one that is taken, is left out with a message to `say`. Of those on the
    roster who handed in nothing, only the number is told, at the end.
    """
    finder = _PersonFinder(people, platform)
    submission_by_line: dict[int, str] = {}
    absent = 0
    for row in submissions:
        if row.status is SubmissionStatus.ABSENT and not row.overrides:
            absent += 1
            continue
        # The one line that nobody else has.
        lines = finder.lines_of(row)
        if len(lines) != 1:
            whom = "nobody"
            if lines:
                whom = f"{len(lines)} people"
            say(f"{row.submission!r} matches {whom} in the table and is left out.")
            continue
        line = lines.pop()
        if line in submission_by_line:
            other = submission_by_line[line]
            say(f"{row.submission!r} is from the same person as {other!r} and is left out.")
            continue
        submission_by_line[line] = row.submission
        yield line, row
    if absent:
        say(
            f"{absent} on the roster handed in nothing; "
            "what the table has for them is left as it is."
        )


class _PersonFinder:
    """Finds the lines of a table in which a student may stand."""

    def __init__(self, people: Mapping[int, ListedPerson], platform: str) -> None:
        self.platform = platform
        self.lines_by_id: dict[str, set[int]] = {}
        self.lines_by_name: dict[str, set[int]] = {}
        for line, person in people.items():
            self.lines_by_id.setdefault(person.id, set()).add(line)
            for spelling in spellings_of(person.name):
                self.lines_by_name.setdefault(spelling, set()).add(line)

    def lines_of(self, row: SubmissionRow) -> set[int]:
        """Return the lines in which the student of a row may stand, by id or else by name."""
        own_id = id_on(self.platform, row)
        if own_id:
            lines = set(self.lines_by_id.get(own_id, ()))
        else:
            lines = self._lines_by_names(row)
        if len(lines) > 1 and row.roster:
            # The roster may be the same table, and tell two of one name apart.
            by_roster = lines & self.lines_by_id.get(row.roster.id, set())
            return by_roster or lines
        return lines

    def _lines_by_names(self, row: SubmissionRow) -> set[int]:
        """Return the lines with one of the student's names."""
        names = [row.student or "", row.submission]
        if row.roster:
            names.append(row.roster.name)
        lines: set[int] = set()
        for name in names:
            lines |= self.lines_by_name.get(letters_of(name), set())
        return lines


def number_in(cell: str) -> float | None:
    """Return the number that a platform wrote, with a decimal point or comma; else None."""
    try:
        return float(cell.strip().replace(",", "."))
    except ValueError:
        return None
