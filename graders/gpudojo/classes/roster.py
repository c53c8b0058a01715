"""The roster: who is in a class, and whose a submission is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gpudojo.classes.names import name_key, spellings_of
from gpudojo.model.results import RosterRow
from gpudojo.submissions.submitters import Submitter

_SHORTEST_ID: Final = 4  # letters of an id that is looked for inside of a longer name

# An id may stand between spaces and underscores, and beside a hyphen if it has figures.
_PARTS_OF_NAME: Final = re.compile(r"[\s_]+|(?<=\d)-|-(?=\d)")


class MatchedPeople(NamedTuple):
    """Rows of the roster for those who handed in, and a sentence if one of them has none."""

    rows: list[int]
    problem: str


class Roster:
    """The students of a class. A row of the roster is known by its number."""

    def __init__(self) -> None:
        self.rows: list[RosterRow] = []
        # By row, when the student handed in; where the platform's table has it.
        self.submitted: dict[int, str] = {}
        self.notes: list[str] = []
        self._rows_by_id: defaultdict[str, set[int]] = defaultdict(set)
        self._rows_by_name: defaultdict[str, set[int]] = defaultdict(set)

    def add_student(self, row: RosterRow, more_ids: Iterable[str] = ()) -> int:
        """Add a student, who may have more ids than the row. Returns the number of the row."""
        number = len(self.rows)
        self.rows.append(row)
        for id_ in (row.id, row.email, row.github, row.login, *more_ids):
            if id_:
                key = name_key(id_)
                self._rows_by_id[key].add(number)
        for spelling in spellings_of(row.name):
            self._rows_by_name[spelling].add(number)
        return number

    def find_rows(self, identifier: str | None, *names: str) -> set[int]:
        """The rows of a student, several where the roster has several that fit.

        They are looked for by id, then by name, then by an id that is part of a name.
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
                id_ = person.sid or person.email
                matching = self.find_rows(id_, person.email, person.name)
            if not matching and len(people) < 2:
                matching = self.find_rows(identifier, *names)
            if len(matching) == 1:
                rows += matching.difference(rows)
            else:
                problem = self._describe_mismatch(person.name or names[0], matching)
        return MatchedPeople(rows, problem)

    def _describe_mismatch(self, name: str, rows: set[int]) -> str:
        """A sentence about a name that fits no row, or these several ones."""
        if not rows:
            return f"nobody on the roster matches {name}"
        alike = []
        for row in rows:
            person = self.rows[row]
            alike.append(person.id or person.name)
        listed = ", ".join(sorted(alike))
        return f"several on the roster match {name}: {listed}"
