"""The roster: who is in a class, and whose a submission is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpudojo.classes.hand_in_dates import RosterDate
from gpudojo.classes.names import NamesOfPerson, name_key, spellings_of
from gpudojo.model.results import RosterRow
from gpudojo.submissions.submitters import Submitter

_SHORTEST_ID: Final = 4  # letters of an id that is looked for inside of a longer name

# An id may stand between spaces and underscores, and beside a hyphen if it has figures.
_PARTS_OF_NAME: Final = re.compile(r"[\s_]+|(?<=\d)-|-(?=\d)")


class MatchedPeople(NamedTuple):
    """Rows of the roster for those who handed in, and a sentence if one of them has none."""

    rows: list[int]
    problem: str
    is_ambiguous: bool = False  # several rows fit one of them, who is on the roster, then


class Roster:
    """The students of a class. A row of the roster is known by its number."""

    def __init__(self) -> None:
        """Begin without students."""
        self.rows: list[RosterRow] = []
        # By row, when the student handed in; where the platform's table has it.
        self.dates: dict[int, RosterDate] = {}
        # By row, dates of other tables, when the student had handed in before that.
        self.earlier_dates: defaultdict[int, list[RosterDate]] = defaultdict(list)
        self.files_with_dates: list[str] = []  # names of files of the roster
        # Sentences about columns with dates whose headings are not known: these are not used.
        self.unused_dates: list[str] = []
        self.notes: list[str] = []
        self._rows_by_id: defaultdict[str, set[int]] = defaultdict(set)
        self._rows_by_name: defaultdict[str, set[int]] = defaultdict(set)

    def add_student(self, row: RosterRow) -> int:
        """Add a student, who is then found by ids and name. Returns the number of the row."""
        number = len(self.rows)
        self.rows.append(row)
        self._know_names(number, row)
        return number

    def _know_names(self, number: int, row: RosterRow) -> None:
        """Let the student of that number be found by the ids and names in a row."""
        for id_ in row.all_ids:
            key = name_key(id_)
            self._rows_by_id[key].add(number)
        for spelling in spellings_of(row.name):
            self._rows_by_name[spelling].add(number)

    def complete_student(self, number: int, row: RosterRow) -> None:
        """Add what a row of another file says of a student and the first one does not.

        The student is from now on found by the ids and the name in that row, too.
        """
        known = self.rows[number]
        more_ids = list(known.more_ids)
        for id_ in (row.id, *row.more_ids):
            if id_ and id_ not in (*known.all_ids, row.email, row.name, *more_ids):
                more_ids.append(id_)
        self.rows[number] = replace(
            known,
            name=known.name or row.name,
            email=known.email or row.email,
            section=known.section or row.section,
            github=known.github or row.github,
            login=known.login or row.login,
            family=known.family or row.family,
            participant=known.participant or row.participant,
            more_ids=more_ids,
        )
        self._know_names(number, row)

    def mark_namesakes(self) -> None:
        """Note in their rows who has the name of somebody else."""
        rows_by_name: defaultdict[str, list[int]] = defaultdict(list)
        for number, row in enumerate(self.rows):
            rows_by_name[name_key(row.name)].append(number)
        for name, numbers in rows_by_name.items():
            if name and len(numbers) > 1:
                for number in numbers:
                    self.rows[number] = replace(self.rows[number], is_namesake=True)

    @property
    def submitted(self) -> dict[int, str]:
        """By row, when the student handed in, in ISO 8601."""
        return {row: date.time for row, date in self.dates.items()}

    def names_of_all(self) -> dict[int, NamesOfPerson]:
        """By row, everything by which the roster knows the student."""
        people = {}
        for number, row in enumerate(self.rows):
            people[number] = NamesOfPerson.from_names(row.name or row.id, [row.id, *row.all_names])
        return people

    def find_rows(self, identifier: str | None, *names: str) -> set[int]:
        """The numbers of the rows that a student may be; several where several of the roster fit.

        The first of `identifier` and `names` that is an id on the roster decides; without one, the
        first of `names` that is a name there; without one, all ids that are part of one of `names`.
        The set may be the roster's own and must not be changed.
        """
        known_names = [name for name in names if name]
        ids = list(known_names)
        if identifier:
            ids.insert(0, identifier)
        rows = self._rows_with_id(ids)
        if not rows:
            rows = self._rows_with_name(known_names)
        if not rows:
            rows = self._rows_with_id_in(known_names)
        return rows

    def _rows_with_id(self, ids: Iterable[str]) -> set[int]:
        """The rows with the first of these ids that is on the roster."""
        for id_ in ids:
            key = name_key(id_)
            if key in self._rows_by_id:
                return self._rows_by_id[key]
        return set()

    def _rows_with_name(self, names: Iterable[str]) -> set[int]:
        """The rows with the first of these names that is on the roster, however it is spelt."""
        for name in names:
            for spelling in spellings_of(name):
                if spelling in self._rows_by_name:
                    return self._rows_by_name[spelling]
        return set()

    def _rows_with_id_in(self, names: Iterable[str]) -> set[int]:
        """The rows whose id is a part of one of these names."""
        rows = set()
        for name in names:
            for part in _PARTS_OF_NAME.split(name):
                if len(part) < _SHORTEST_ID:
                    continue
                key = name_key(part)
                rows |= self._rows_by_id.get(key, set())
        return rows

    def match_people(
        self,
        identifier: str | None,
        names: Sequence[str],
        people: Sequence[Submitter],
    ) -> MatchedPeople:
        """The rows of those who handed in one submission, and a sentence if one of them is unclear.

        That is somebody who is not found, or for whom several rows fit; such rows are left out.
        `people` are those whom the platform lists. Where it lists nobody, or one person who is not
        found, `identifier` and `names` of the submission are looked for.
        """
        rows: list[int] = []
        problem = ""
        is_ambiguous = False
        for person in people or [Submitter("")]:
            # By what the platform says of the person, else by the names of the submission.
            matching: set[int] = set()
            if person.name:
                id_ = person.sid or person.email
                matching = self.find_rows(id_, person.email, person.name)
            if not matching and len(people) < 2:
                matching = self.find_rows(identifier, *names)
            if len(matching) == 1:
                rows += matching.difference(rows)
            else:
                id_ = person.sid or person.email or identifier or ""
                problem = self._describe_mismatch(person.name or names[0], id_, matching)
                is_ambiguous = bool(matching)
        return MatchedPeople(rows, problem, is_ambiguous)

    def _describe_mismatch(self, name: str, id_: str, rows: set[int]) -> str:
        """A sentence about a name that fits no row, or these several ones, and what to do.

        `id_` is what the platform has for the person, or empty.
        """
        if not rows:
            return f"nobody on the roster matches {name}"
        alike = []
        for row in rows:
            person = self.rows[row]
            alike.append(person.id or person.name)
        listed = ", ".join(sorted(alike))
        advice = "write an id of the roster into the name of the submission"
        if id_:
            advice = (
                f"a table with {id_} as one more `roster` tells who it is, such as Moodle's "
                "grading worksheet"
            )
        return f"several on the roster match {name}: {listed}; {advice}"
