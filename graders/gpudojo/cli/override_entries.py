"""What `dojo override` gives or takes back: entries for the log of overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gpudojo.classes.csv_tables import read_table
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.names import name_key
from gpudojo.classes.overrides import (
    EVERYONE,
    SET,
    UNDO,
    KeyAndItem,
    LogEntry,
    find_item,
    parse_points,
)
from gpudojo.classes.participants import Participant
from gpudojo.model.errors import BadClass, BadFile, suggest_name
from gpudojo.model.results import SubmissionRow

if TYPE_CHECKING:
    from gpudojo.cli.override import OverrideArguments

MOST_NAMES: Final = 8  # of students whose name holds what was given
NEEDED_COLUMNS: Final = frozenset({"student", "item", "points"})


class Recipient(NamedTuple):
    """Who gets points: a student, or everyone."""

    name: str
    keys: list[str]  # the first is the one for new entries
    row: SubmissionRow  # in which items are looked for


class EntryMaker:
    """Makes the entries of one command, which all have its time and its person."""

    def __init__(self, book: Gradebook, at: str, by: str) -> None:
        self.book = book
        self.at = at
        self.by = by

    def entry_for_words(self, asked: OverrideArguments, points: float | None) -> LogEntry:
        """The entry for a student, or everyone, and an item that are named on the command line.

        Raises UsageError where something is missing, ClickException for too many points and for
        what cannot be undone, and BadClass for unknown names.
        """
        expected_words = 2
        if asked.everyone:
            expected_words = 1
        if len(asked.words) != expected_words:
            raise click.UsageError("give STUDENT and CHECK or EXERCISE, or --all and one of these")
        if points is None and not asked.undo:
            raise click.UsageError("--points is missing")
        if asked.everyone:
            recipient = _everyone_in(self.book)
        else:
            recipient = _student_of_name(self.book, asked.words[0])
        item, max_points = find_item(asked.words[-1], recipient.row)
        if asked.undo:
            return self._entry_that_takes_back(recipient, item, asked.comment)
        assert points is not None
        if points > max_points:
            raise click.ClickException(f"{item} is worth {max_points:g} points, not {points:g}")
        return self._entry_that_gives(recipient, item, points, asked.comment)

    def _entry_that_gives(
        self, recipient: Recipient, item: str, points: float, comment: str
    ) -> LogEntry:
        """The entry that gives points for an item."""
        key = recipient.keys[0]
        return LogEntry(self.at, self.by, SET, recipient.name, item, points, comment, key)

    def _entry_that_takes_back(self, recipient: Recipient, item: str, comment: str) -> LogEntry:
        """The entry that takes back what holds for an item; raises ClickException for nothing."""
        entries = self.book.overrides.entries_for(recipient.keys, everyone=False)
        if item not in entries:
            raise click.ClickException(f"{recipient.name} has no override for {item}")
        key = entries[item].key
        return LogEntry(self.at, self.by, UNDO, recipient.name, item, 0.0, comment, key)

    def entries_to_undo(self) -> list[LogEntry]:
        """What undoes the last command; raises ClickException if it took something back itself.

        All that it gave is taken back, and what held before is given again.
        """
        overrides = self.book.overrides
        last = overrides.entries_of_last_command()  # all with the same time
        if not last:
            raise click.ClickException(
                "the last command gave nothing; to take one back, name STUDENT and CHECK"
            )
        before = overrides.entries_before(last[0].at)
        taken_back = []
        given_again = []
        for entry in last:
            undo = entry._replace(at=self.at, by=self.by, action=UNDO)
            taken_back.append(undo)
            former = before.get(entry.key_and_item)
            if former is not None:
                given_again.append(former._replace(at=self.at, by=self.by))
        return taken_back + given_again

    # A table of points

    def entries_for_file(self, path: Path) -> list[LogEntry]:
        """The entries for the lines of a CSV file, without those that have no points yet.

        Raises BadFile, with the line, for a line that cannot be used or repeats another, and
        where no line has points.
        """
        first, *lines = read_table(path)
        columns = [heading.strip().casefold() for heading in first.cells]
        _refuse_missing_columns(path, first.number, columns)
        entries = []
        line_of: dict[KeyAndItem, int] = {}
        for line in lines:
            stripped_cells = [cell.strip() for cell in line.cells]
            cells = dict(zip(columns, stripped_cells, strict=False))
            if not cells.get("points"):
                continue  # not graded yet
            entry = self._entry_for_line(path, line.number, cells)
            entries.append(entry)
            other_line = line_of.setdefault(entry.key_and_item, line.number)
            if other_line != line.number:
                reason = f"{entry.item} of {entry.student} is in line {other_line}, too"
                raise BadFile(str(path), line.number, reason)
        if not entries:
            raise BadFile(str(path), None, "no line of it has points")
        return entries

    def _entry_for_line(self, path: Path, number: int, cells: Mapping[str, str]) -> LogEntry:
        """The entry for one line, with points; raises BadFile."""
        file = str(path)
        for name in ("student", "item"):
            if not cells.get(name):
                raise BadFile(file, number, f"the {name} is missing")
        student = cells["student"]
        try:
            if student == EVERYONE:
                recipient = _everyone_in(self.book)
            else:
                recipient = _student_of_name(self.book, student)
            item, max_points = find_item(cells["item"], recipient.row)
        except BadClass as error:
            raise BadFile(file, number, str(error)) from None
        points = parse_points(cells["points"], file, number)
        if points > max_points:
            reason = f"{item} is worth {max_points:g} points, not {points:g}"
            raise BadFile(file, number, reason)
        return self._entry_that_gives(recipient, item, points, cells.get("comment", ""))


def _refuse_missing_columns(path: Path, line: int, columns: Sequence[str]) -> None:
    """Raises BadFile, with a suggestion, if one of the columns that are needed is not there."""
    missing = sorted(NEEDED_COLUMNS.difference(columns))
    if not missing:
        return
    hint = ""
    for heading in columns:
        hint = hint or suggest_name(heading, missing, "")
    reason = f"there is no column {missing[0]!r}; student, item and points are needed"
    raise BadFile(str(path), line, f"{reason}{hint}")


# Who is meant


def _everyone_in(book: Gradebook) -> Recipient:
    """All who handed something in."""
    return Recipient("everyone", [EVERYONE], largest_row(book))


def _student_of_name(book: Gradebook, name: str) -> Recipient:
    """The student of a name; raises BadClass where nobody or several have it."""
    participant = _find_participant(book, name)
    return Recipient(participant.name, participant.keys, book.row_of(participant))


def _find_participant(book: Gradebook, name: str) -> Participant:
    """The participant of a name; raises BadClass where nobody or several have it."""
    participants = book.list_class().participants
    key = name_key(name)
    matching = [each for each in participants if each.name == name]
    if not matching:
        matching = [each for each in participants if key in each.all_names]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join([each.name for each in matching])
        raise BadClass(f"{len(matching)} students are called {name!r}: {names}")
    hint = _suggest_student(name, participants)
    raise BadClass(f"no student is called {name!r}{hint}")


def _suggest_student(name: str, participants: Sequence[Participant]) -> str:
    """Who may have been meant by a name that nobody has; for the end of a sentence."""
    key = name_key(name)
    partly = []
    known_names = []
    for each in participants:
        known_names += [each.name, each.display_name, *each.all_names]
        with_key = [known for known in each.all_names if key in known]
        if with_key:
            partly.append(each.name)
    if not partly:
        return suggest_name(name, known_names)
    names = ", ".join(partly[:MOST_NAMES])
    if len(partly) > MOST_NAMES:
        names += ", …"
    return f"; names with it: {names}"


def largest_row(book: Gradebook) -> SubmissionRow:
    """The row with the most checks: of a class, any that was graded will do."""
    participants = book.list_class().participants
    rows = [book.row_of(participant) for participant in participants]
    return max(rows, key=_count_of_checks)


def _count_of_checks(row: SubmissionRow) -> int:
    """How many checks a row has, of all its exercises."""
    count = 0
    for exercise in row.exercises:
        count += len(exercise.checks)
    return count
