"""What `dojo override` gives or takes back: entries for the log of overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gpudojo.classes.csv_tables import read_table
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.names import name_key
from gpudojo.classes.overrides import EVERYONE, SET, UNDO, LogEntry, find_item, parse_points
from gpudojo.classes.participants import Participant
from gpudojo.model.errors import BadClass, BadFile, suggest_name
from gpudojo.model.results import SubmissionRow

if TYPE_CHECKING:
    from gpudojo.cli.override import OverrideArguments

MOST_NAMES: Final = 8  # of students whose name holds what was given


class GivenPoints(NamedTuple):
    """Points for an item; in the order of a log entry."""

    student: str
    item: str
    points: float
    comment: str
    key: str


def log_entry(at: str, by: str, given: GivenPoints) -> LogEntry:
    """The entry that gives these points, at a time and by a person."""
    return LogEntry(at, by, SET, *given)


def entry_for_words(
    book: Gradebook, asked: OverrideArguments, points: float | None, at: str, by: str
) -> LogEntry:
    """The entry for a student, or everyone, and an item that are named on the command line.

    Raises UsageError where something is missing, ClickException for too many points and for what
    cannot be undone, and BadClass for unknown names.
    """
    expected_words = 1 if asked.everyone else 2
    if len(asked.words) != expected_words:
        raise click.UsageError("give STUDENT and CHECK or EXERCISE, or --all and one of these")
    if points is None and not asked.undo:
        raise click.UsageError("--points is missing")
    participant = None
    if not asked.everyone:
        participant = _find_participant(book, asked.words[0])
    student, key = _name_and_key(participant)
    item, max_points = _find_item(book, participant, asked.words[-1])
    if asked.undo:
        keys = participant.keys if participant is not None else [key]
        former = book.overrides.entries_for(keys, everyone=False).get(item)
        if former is None:
            raise click.ClickException(f"{student} has no override for {item}")
        return LogEntry(at, by, UNDO, student, item, 0.0, asked.comment, former.key)
    assert points is not None
    if points > max_points:
        raise click.ClickException(f"{item} is worth {max_points:g} points, not {points:g}")
    return log_entry(at, by, GivenPoints(student, item, points, asked.comment, key))


def _name_and_key(participant: Participant | None) -> tuple[str, str]:
    """How the log calls a participant, and its key; None is everyone."""
    if participant is None:
        return "everyone", EVERYONE
    return participant.name, participant.keys[0]


def entries_to_undo(book: Gradebook, at: str, by: str) -> list[LogEntry]:
    """What undoes the last command; raises ClickException if it took something back itself.

    All that it gave is taken back, and what held before is given again.
    """
    last = book.overrides.entries_of_last_command()
    if not last:
        raise click.ClickException(
            "the last command gave nothing; to take one back, name STUDENT and CHECK"
        )
    before = book.overrides.entries_before(last[0].at)
    taken_back = [entry._replace(at=at, by=by, action=UNDO) for entry in last]
    given_again = []
    for entry in last:
        former = before.get(entry.key_and_item)
        if former is not None:
            given_again.append(former._replace(at=at, by=by))
    return taken_back + given_again


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
        names = ", ".join(each.name for each in matching)
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
        if any(key in known for known in each.all_names):
            partly.append(each.name)
    if not partly:
        return suggest_name(name, known_names)
    names = ", ".join(partly[:MOST_NAMES])
    if len(partly) > MOST_NAMES:
        names += ", …"
    return f"; names with it: {names}"


def _find_item(book: Gradebook, participant: Participant | None, name: str) -> tuple[str, float]:
    """The name of a check, exercise or item, and what it is worth; raises BadClass."""
    row = largest_row(book) if participant is None else book.row_of(participant)
    return find_item(name, row)


def largest_row(book: Gradebook) -> SubmissionRow:
    """The row with the most checks: of a class, any that was graded will do."""
    rows = [book.row_of(participant) for participant in book.list_class().participants]
    return max(rows, key=_count_of_checks)


def _count_of_checks(row: SubmissionRow) -> int:
    return sum(len(exercise.checks) for exercise in row.exercises)


def read_points_file(book: Gradebook, path: Path) -> list[GivenPoints]:
    """What the lines of a CSV file give, without those that have no points yet.

    Raises BadFile with the line, before any is given.
    """
    return _PointsFile(book, path).read_lines()


class _PointsFile:
    """A CSV file of points. Its methods raise BadFile with the line."""

    def __init__(self, book: Gradebook, path: Path) -> None:
        self.book = book
        self.path = path

    def read_lines(self) -> list[GivenPoints]:
        """What the lines give. Raises BadFile also for two lines about the same."""
        first, *lines = read_table(self.path)
        columns = [heading.strip().casefold() for heading in first.cells]
        self._refuse_missing_columns(first.number, columns)
        points_of_lines = []
        line_of: dict[tuple[str, str], int] = {}
        for line in lines:
            cells = {}
            for column, cell in zip(columns, line.cells, strict=False):
                cells[column] = cell.strip()
            if not cells.get("points"):
                continue  # not graded yet
            given = self._read_line(line.number, cells)
            points_of_lines.append(given)
            other_line = line_of.setdefault((given.key, given.item), line.number)
            if other_line != line.number:
                reason = f"{given.item} of {given.student} is in line {other_line}, too"
                raise self._bad_line(line.number, reason)
        return points_of_lines

    def _bad_line(self, number: int, reason: str) -> BadFile:
        """The error to raise for a line."""
        return BadFile(str(self.path), number, reason)

    def _refuse_missing_columns(self, line: int, columns: Sequence[str]) -> None:
        """Raises BadFile, with a suggestion, if one of the columns that are needed is not there."""
        missing = sorted({"student", "item", "points"} - set(columns))
        if not missing:
            return
        reason = f"there is no column {missing[0]!r}; student, item and points are needed"
        for heading in columns:
            hint = suggest_name(heading, missing, "")
            if hint:
                raise self._bad_line(line, reason + hint)
        raise self._bad_line(line, reason)

    def _read_line(self, number: int, cells: Mapping[str, str]) -> GivenPoints:
        """What one line gives. Raises BadFile."""
        for name in ("student", "item"):
            if not cells.get(name):
                raise self._bad_line(number, f"the {name} is missing")
        participant = None
        try:
            if cells["student"] != EVERYONE:
                participant = _find_participant(self.book, cells["student"])
            item, max_points = _find_item(self.book, participant, cells["item"])
        except BadClass as error:
            raise self._bad_line(number, str(error)) from None
        points = parse_points(cells["points"], str(self.path), number)
        if points > max_points:
            reason = f"{item} is worth {max_points:g} points, not {points:g}"
            raise self._bad_line(number, reason)
        student, key = _name_and_key(participant)
        return GivenPoints(student, item, points, cells.get("comment", ""), key)
