"""Finds out which lines of the tables of a roster are one person."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpudojo.classes.hand_in_dates import RosterDate
from gpudojo.classes.names import MOST_NAMES, name_key, share_a_word, spellings_of
from gpudojo.model.results import RosterRow
from gpudojo.model.results_file import first_names

# Sentences about lines of the roster, which are put into them.
OTHER_NAME: Final = (
    "taken for one person, with one id or address and different names: {}; if these are two "
    "people, give each an id of their own"
)
ID_OF_TWO: Final = (
    "an id or address belongs to two lines of one table: {}; correct it, so that it is one person's"
)
NAME_ALONE: Final = (
    "taken for one person, by the name alone: {}; if these are two people, give each an id or "
    "address in all tables"
)
TWO_PEOPLE: Final = (
    "taken for two people, of one name and with different ids or addresses: {}; if that is one "
    "person, give the same id or address in both tables"
)
UNCLEAR: Final = (
    "who of one name is who cannot be known, and more students are counted than there may be: {}; "
    "give an id or address that is in all tables"
)


@dataclass(eq=False, frozen=True, slots=True)
class ListedStudent:
    """A student as a line of a table has them."""

    table: int  # its position in the roster
    place: str  # "worksheet.csv, line 3"
    row: RosterRow
    # By kind, which is "email" or a heading. One person has one id of a kind.
    ids: Mapping[str, str]
    date: RosterDate | None

    @property
    def keys(self) -> set[str]:
        """The ids and addresses, in the form in which they are compared; without the name."""
        return {name_key(id_) for id_ in self.row.all_ids if id_ != self.row.name}


class _Person:
    """The lines of one person, each of another table."""

    def __init__(self, line: ListedStudent) -> None:
        self.lines = [line]

    @property
    def first(self) -> ListedStudent:
        """The line that was read first."""
        return self.lines[0]

    @property
    def spellings(self) -> set[str]:
        """All names, however they are spelt."""
        return {spelling for line in self.lines for spelling in spellings_of(line.row.name)}

    def shares_table_with(self, other: _Person) -> bool:
        """True if one table has both, each in a line of its own: then they are two people."""
        tables = {line.table for line in self.lines}
        return any(line.table in tables for line in other.lines)

    def may_be(self, other: _Person) -> bool:
        """True if no table has both, and there is no kind of which they have different ids."""
        if self.shares_table_with(other):
            return False
        others = other._keys_by_kind()
        for kind, keys in self._keys_by_kind().items():
            if kind in others and keys.isdisjoint(others[kind]):
                return False
        return True

    def _keys_by_kind(self) -> dict[str, set[str]]:
        """The ids of each kind, in the form in which they are compared."""
        keys: defaultdict[str, set[str]] = defaultdict(set)
        for line in self.lines:
            for kind, id_ in line.ids.items():
                keys[kind].add(name_key(id_))
        return keys


class PeopleInTables:
    """Joins the lines that are one person, whatever the order of the tables.

    Lines are joined by an id or address; by the name only where no ids of one kind differ, and
    nobody else may be meant. What may be wrong all the same is in `notes`.
    """

    def __init__(self, lines: Iterable[ListedStudent]) -> None:
        """Join the lines, which are in the order of their tables."""
        self._people = [_Person(line) for line in lines]
        self._doubts: defaultdict[str, list[str]] = defaultdict(list)  # by sentence, whom it is of
        self._join_by_ids()
        self._join_by_names()

    @property
    def people(self) -> list[list[ListedStudent]]:
        """The lines of each person, in the order of their first lines."""
        return [person.lines for person in self._people]

    @property
    def notes(self) -> list[str]:
        """Sentences about those of whom it is not certain that they are one person, or two."""
        return [
            f"roster: {sentence.format(first_names(people, MOST_NAMES))}"
            for sentence, people in self._doubts.items()
        ]

    def _note(self, sentence: str, people: Sequence[_Person]) -> None:
        """Keep a doubt about some people for the notes."""
        names = dict.fromkeys(person.first.row.name or person.first.row.id for person in people)
        places = "; ".join(person.first.place for person in people)
        self._doubts[sentence].append(f"{' and '.join(names)} ({places})")

    def _join(self, people: Sequence[_Person]) -> _Person:
        """Make one person of several: the first, who is returned, gets the lines of the others."""
        first, *others = people
        for other in others:
            first.lines += other.lines
            self._people.remove(other)
        return first

    def _join_by_ids(self) -> None:
        """Join those who have an id or address in common, unless one table has both."""
        owners: dict[str, _Person] = {}  # by id or address
        for person in list(self._people):
            found = [owners[key] for key in sorted(person.first.keys) if key in owners]
            joined = person
            for owner in dict.fromkeys(found):
                if owner.shares_table_with(joined):
                    self._note(ID_OF_TWO, [owner, person])
                    continue
                if not share_a_word(owner.first.row.name, person.first.row.name):
                    self._note(OTHER_NAME, [owner, person])
                joined = self._join([owner, joined])
            for line in joined.lines:
                owners.update(dict.fromkeys(line.keys, joined))

    def _join_by_names(self) -> None:
        """Join those of one name who may be one person, where nobody else of that name may be.

        Notes what was done, and what cannot be known.
        """
        by_spelling: defaultdict[str, list[_Person]] = defaultdict(list)
        for person in self._people:
            for spelling in person.spellings:
                by_spelling[spelling].append(person)
        compared: set[_Person] = set()
        for person in list(self._people):
            if person in compared:
                continue
            namesakes = [person]
            compared.add(person)
            for each in namesakes:
                for spelling in each.spellings:
                    others = [other for other in by_spelling[spelling] if other not in compared]
                    namesakes += others
                    compared.update(others)
            self._join_namesakes(namesakes)

    def _join_namesakes(self, namesakes: Sequence[_Person]) -> None:
        """Join people of one name of whom it is clear who is who, and note all who may be wrong."""
        different = []
        left = list(namesakes)
        while left:
            # All who may be the first, or may be one of these.
            alike = [left.pop(0)]
            for person in alike:
                possible = [other for other in left if person.may_be(other)]
                alike += possible
                left = [other for other in left if other not in possible]
            different.append(alike[0])
            if len(alike) == 1:
                continue
            if all(one.may_be(other) for one, other in itertools.combinations(alike, 2)):
                self._note(NAME_ALONE, alike)
                self._join(alike)
            else:
                self._note(UNCLEAR, alike)
        for one, other in itertools.combinations(different, 2):
            if not one.shares_table_with(other):
                self._note(TWO_PEOPLE, [one, other])
