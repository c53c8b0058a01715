"""What `dojo override` gives or takes back: entries for the log of overrides."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gpudojo.classes.csv_tables import read_table
from gpudojo.classes.gradebook import ClassList, Gradebook
from gpudojo.classes.names import NamesOfPerson, name_key, suggest_people
from gpudojo.classes.overrides import (
    ALL_POINTS,
    COMMENT,
    EVERYONE,
    LATE,
    NOTHING_HANDED_IN,
    REVIEW,
    SET,
    UNDO,
    KeyAndItem,
    LogEntry,
    NamedItem,
    find_item,
    parse_points_or_full,
    without_quote,
)
from gpudojo.classes.participants import Participant, describe_namesakes, find_participants
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass, BadFile, suggest_name
from gpudojo.model.results import SubmissionRow, name_of_rubric_line
from gpudojo.model.results_file import exact_points, format_points

if TYPE_CHECKING:
    from gpudojo.cli.override import OverrideArguments

MOST_ERRORS: Final = 40  # of a table, that are shown
NEEDED_COLUMNS: Final = frozenset({"student", "item", "points"})


class Recipient(NamedTuple):
    """Who gets points: a student, or everyone."""

    name: str
    keys: list[str]  # the first is the one for new entries
    row: SubmissionRow  # in which items are looked for
    work: str = ""  # what counts of a student, or NOTHING_HANDED_IN


class EntryMaker:
    """Makes the entries of one command, which all have its time and its person."""

    def __init__(self, book: Gradebook, at: str, by: str) -> None:
        self.book = book
        self.at = at
        self.by = by
        self._recipients: dict[str, Recipient] = {}  # by the name in a table

    def _require_words(self, asked: OverrideArguments) -> None:
        """Raises UsageError unless a student or everyone, and an item, are named.

        How late it was needs no item.
        """
        needed = ["STUDENT"]
        if asked.everyone:
            needed = []
        if asked.late is None:
            needed.append("CHECK or EXERCISE")
        missing = " and ".join(needed[len(asked.words) :])
        if missing:
            behind = f" behind {shlex.join(asked.words)}" if asked.words else ""
            raise click.UsageError(f"{missing} is missing{behind}")
        if len(asked.words) > len(needed):
            wanted = " and ".join(needed) or "no name"
            raise click.UsageError(
                f"give {wanted}; {shlex.join(asked.words)} is more: a name with spaces needs quotes"
            )
        if asked.points is None and asked.late is None and not (asked.undo or asked.comment):
            raise click.UsageError("--points is missing; a comment alone: --comment")

    def _refuse_wrong_order(self, words: Sequence[str]) -> None:
        """Raises UsageError where the second word is a student and the first one an item."""
        people = self.class_list.participants
        if len(words) < 2 or find_participants(words[0], people):
            return
        with contextlib.suppress(BadClass):
            find_item(words[0], largest_row(self.book), self._checks_of_day)
            participants_of_name(self.class_list, words[1])
            right = shlex.join(("dojo", "override", words[1], words[0]))
            raise click.UsageError(f"STUDENT stands before CHECK or EXERCISE: {right} …")

    def entries_for_words(self, asked: OverrideArguments, points: float | None) -> list[LogEntry]:
        """The entries for a student, a group, or everyone, and an item, as the command line says.

        Of a group, there is one for each member. Verdicts that are missing are made and written.
        Raises UsageError where something is missing, ClickException for too many points and for
        what cannot be undone, BadClass for unknown names, and BadFile, BadDay or OSError where rows
        cannot be made.
        """
        self._require_words(asked)
        if asked.everyone:
            recipients = [_everyone_in(self.book)]
        else:
            self._refuse_wrong_order(asked.words)
            recipients = students_of_name(self.book, asked.words[0])
        if asked.undo:
            return self._entries_that_take_back(recipients, asked)
        return [self._entry_for(recipient, asked, points) for recipient in recipients]

    def _entries_that_take_back(
        self, recipients: Sequence[Recipient], asked: OverrideArguments
    ) -> list[LogEntry]:
        """The entries that take back what holds for the item that is named.

        What a command gave to several at once is taken back of these, and each gets again what the
        student had before; members of the group who were given something later keep it. Raises
        ClickException where somebody has nothing to take back, BadClass for unknown names, and
        BadDay or OSError where rows cannot be made.
        """
        overrides = self.book.overrides
        held_by: list[tuple[Recipient, str, LogEntry | None]] = []
        for recipient in recipients:
            own = overrides.entries_for(recipient.keys, everyone=False)
            item = asked.words[-1]
            if item not in own:  # else it is taken back even if it is not graded any more
                item, _ = self._find_item(item, recipient)
            held = own.get(item)
            held_by.append((recipient, item, held))
        joint_times = []
        for _, _, held in held_by:
            if held is not None and overrides.was_given_to_several(held):
                joint_times.append(held.at)
        taken_back = []
        given_again = []
        for recipient, item, held in held_by:
            if joint_times and (held is None or held.at != max(joint_times)):
                continue
            undo = self.entry_that_takes_back(recipient, item, asked.comment)
            taken_back.append(undo)
            if joint_times:
                former = overrides.entries_before(max(joint_times)).get(undo.key_and_item)
                if former is not None:
                    given_again.append(former._replace(at=self.at, by=self.by))
        return taken_back + given_again

    def _entry_for(
        self, recipient: Recipient, asked: OverrideArguments, points: float | None
    ) -> LogEntry:
        """The entry that gives somebody the item that is named on the command line.

        `points` are to be given, None where there are none. Raises UsageError where something is
        missing, ClickException for too many points, BadClass for unknown names, and BadDay or
        OSError where rows cannot be made.
        """
        if asked.late is not None:
            entry = self._entry_that_gives(recipient, LATE, 0.0, asked.comment, 0.0)
            return entry._replace(about=f"{asked.late} {recipient.work}".rstrip())
        item, max_points = self._find_item(asked.words[-1], recipient)
        if item == LATE:
            raise click.UsageError("say how late it was with --late, such as --late 2h")
        if points is None:
            return self._entry_that_comments(recipient, item, asked.comment, max_points)
        if max_points < points < ALL_POINTS:
            raise click.ClickException(
                f"{item} is worth {format_points(max_points)} points, not {format_points(points)}"
            )
        return self._entry_that_gives(recipient, item, points, asked.comment, max_points)

    def _find_item(self, name: str, recipient: Recipient) -> NamedItem:
        """The item of a name, as it counts for somebody. Raises BadClass and BadDay."""
        return find_item(name, recipient.row, self._checks_of_day)

    @functools.cached_property
    def _checks_of_day(self) -> dict[str, list[str]]:
        """The checks of each exercise of the day, counted or not. Raises BadDay."""
        checks: dict[str, list[str]] = {}
        for exercise in exercises_of(self.book.state.day):
            checks[exercise.stem] = []
            for function in exercise.functions:
                for check in function.checks:
                    checks[exercise.stem].append(f"{exercise.stem}::{function.name}::{check.name}")
        return checks

    def _entry_that_gives(
        self, recipient: Recipient, item: str, points: float, comment: str, max_points: float
    ) -> LogEntry:
        """The entry that gives points for an item, which is worth `max_points` now."""
        key = recipient.keys[0]
        worth = exact_points(max_points)
        return LogEntry(self.at, self.by, SET, recipient.name, item, points, comment, key, worth)

    def _entry_that_comments(
        self, recipient: Recipient, item: str, comment: str, max_points: float
    ) -> LogEntry:
        """The entry that gives an item a comment: points that were given for it, it gives again.

        Raises ClickException for what people mark, as long as it has no points.
        """
        held = self.book.overrides.entries_for(recipient.keys).get(item)
        if held is not None and held.gives_points:
            entry = self._entry_that_gives(recipient, item, held.points, comment, max_points)
            return entry._replace(about=held.about)
        for exercise in recipient.row.exercises:
            if exercise.by_hand and item.partition("::")[0] == exercise.exercise:
                raise click.ClickException(f"{item} is not marked yet: give it --points, too")
        entry = self._entry_that_gives(recipient, item, 0.0, comment, max_points)
        return entry._replace(about=COMMENT)

    def entry_that_takes_back(self, recipient: Recipient, item: str, comment: str) -> LogEntry:
        """The entry that takes back what holds for an item; raises ClickException for nothing."""
        entries = self.book.overrides.entries_for(recipient.keys, everyone=False)
        if item not in entries and item == REVIEW:
            raise click.ClickException(f"{recipient.name} has no review that is ticked off")
        if item not in entries:
            raise click.ClickException(f"{recipient.name} has no override for {item}")
        key = entries[item].key
        return LogEntry(self.at, self.by, UNDO, recipient.name, item, 0.0, comment, key)

    def entries_to_undo(self) -> list[LogEntry]:
        """What undoes the last command.

        All that it gave is taken back, and what held before is given again. Raises ClickException
        if it took something back itself, and where there was none.
        """
        overrides = self.book.overrides
        if not overrides.log:
            raise click.ClickException("there is nothing to undo: nobody was given anything yet")
        last = overrides.entries_of_last_command()  # all with the same time
        if not last:
            taken = overrides.log[-1]
            named = shlex.join((taken.student, taken.item))
            raise click.ClickException(
                f"the last command took something back itself ({named}), which --undo does not "
                "give again; give it anew, or name what to take back: dojo override --undo "
                "STUDENT CHECK"
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
        """The entries for the lines of a CSV file that have points, and others than hold already.

        The list is empty where all hold already. Verdicts that are missing are made and written.
        Raises BadClass with a sentence for every line that cannot be used or repeats another,
        BadFile for a file that is no such table and where no line has points, and BadDay or OSError
        where rows cannot be made.
        """
        first, *lines = read_table(path)
        columns = [heading.strip().casefold() for heading in first.cells]
        _refuse_missing_columns(path, first.number, columns)
        entries = []
        errors = []
        held = self.book.overrides.entries_in_force()
        line_of: dict[KeyAndItem, int] = {}
        for line in lines:
            stripped_cells = [without_quote(cell.strip()) for cell in line.cells]
            cells = dict(zip(columns, stripped_cells, strict=False))
            if not cells.get("points"):
                continue  # not graded yet
            try:
                entry = self._entry_for_line(path, line.number, cells)
            except BadFile as error:
                errors.append(str(error))
                continue
            other_line = line_of.setdefault(entry.key_and_item, line.number)
            if other_line != line.number:
                reason = f"{entry.item} of {entry.student} is in line {other_line}, too"
                errors.append(str(BadFile(str(path), line.number, reason)))
            old = held.get(entry.key_and_item)
            if old is None or not self._repeats(entry, old, cells["student"]):
                entries.append(entry)
        if errors:
            shown = errors[:MOST_ERRORS]
            if len(errors) > MOST_ERRORS:
                shown.append(f"and {len(errors) - MOST_ERRORS} more")
            raise BadClass("\n".join([*shown, "Nothing was changed."]))
        if not line_of:
            raise BadFile(str(path), None, "no line of it has points")
        return entries

    def _repeats(self, entry: LogEntry, held: LogEntry, student: str) -> bool:
        """True if an entry of a table says what holds already.

        A sheet has the number for what was given in full. `student` is as the table says.
        """
        if entry.comment != held.comment or not held.gives_points:
            return False
        if held.points == ALL_POINTS and entry.points != ALL_POINTS:
            item = self._find_item(entry.item, self._recipient_of(student))
            return entry.points == item.max_points
        is_worth_the_same = entry.about == held.about or not held.about
        return entry.points == held.points and is_worth_the_same

    def _recipient_of(self, name: str) -> Recipient:
        """Whom a table means by a name: a student, or everyone; looked up once.

        A verdict that is missing is made and written. Raises BadClass where nobody or several have
        the name, and BadFile, BadDay or OSError where a row cannot be made.
        """
        if name not in self._recipients:
            if name == EVERYONE:
                self._recipients[name] = _everyone_in(self.book)
            else:
                participant = find_participant(
                    self.class_list.participants, name, self.class_list.removed
                )
                self._recipients[name] = _recipient(self.book, participant)
        return self._recipients[name]

    @functools.cached_property
    def class_list(self) -> ClassList:
        """All who have a row, and who was removed."""
        return self.book.list_class()

    def _entry_for_line(self, path: Path, number: int, cells: Mapping[str, str]) -> LogEntry:
        """The entry for one line, with points.

        `cells` are by heading. Raises BadFile, with the line, where something is missing, unknown
        or too much; BadDay or OSError where rows cannot be made.
        """
        file = str(path)
        for name in ("student", "item"):
            if not cells.get(name):
                raise BadFile(file, number, f"the {name} is missing")
        student = cells["student"]
        try:
            recipient = self._recipient_of(student)
            item, max_points = self._find_item(cells["item"], recipient)
        except BadClass as error:
            raise BadFile(file, number, str(error)) from None
        _refuse_other_rubric(file, number, cells, item, recipient.row)
        points = parse_points_or_full(cells["points"], file, number)
        if max_points < points < ALL_POINTS:
            reason = (
                f"{item} is worth {format_points(max_points)} points, not {format_points(points)}"
            )
            raise BadFile(file, number, reason)
        comment = cells.get("comment", "")
        return self._entry_that_gives(recipient, item, points, comment, max_points)


def _refuse_other_rubric(
    file: str, number: int, cells: Mapping[str, str], item: str, row: SubmissionRow
) -> None:
    """Raises BadFile if a sheet has another text for a line of a rubric than the course file.

    `item` is the name of what the line is about, `cells` are by heading.
    """
    text = cells.get("rubric", "")
    for exercise in row.exercises:
        line = exercise.rubric_lines.get(item)
        if line is None or not text:
            continue
        if name_of_rubric_line(exercise.exercise, text) != item:
            raise BadFile(
                file,
                number,
                f"the rubric says {text!r} here, and {line.text!r} in the course file, where "
                f"{cells['item']} is another line now; write a sheet of now, and fill in that: "
                "dojo marks --sheet FILE",
            )


def _refuse_missing_columns(path: Path, line: int, columns: Sequence[str]) -> None:
    """Raises BadFile, with a suggestion, if one of the columns that are needed is not there."""
    missing = sorted(NEEDED_COLUMNS.difference(columns))
    if not missing:
        return
    reason = f"there is no column {missing[0]!r}; student, item and points are needed"
    for heading in columns:
        if heading not in NEEDED_COLUMNS and suggest_name(heading, [missing[0]], ""):
            reason += f"; rename the column {heading!r}"
            break
    raise BadFile(str(path), line, f"{reason}; the columns are {', '.join(columns)}")


# Who is meant


def _everyone_in(book: Gradebook) -> Recipient:
    """All who handed something in. Raises BadDay, BadClass or OSError where rows cannot be made."""
    return Recipient("everyone", [EVERYONE], largest_row(book))


def students_of_name(book: Gradebook, name: str) -> list[Recipient]:
    """The student of a name, or the members of a group; raises BadClass for nobody or several.

    Verdicts that are missing are made and written. Raises BadFile, BadDay or OSError where a row
    cannot be made.
    """
    recipients = []
    for participant in participants_of_name(book.list_class(), name):
        recipients.append(_recipient(book, participant))
    return recipients


def _recipient(book: Gradebook, participant: Participant) -> Recipient:
    """A participant who gets points; a verdict that is missing is made and written.

    Raises BadClass, BadFile, BadDay or OSError where the row cannot be made.
    """
    counted = book.counted_submission(participant)
    work = NOTHING_HANDED_IN
    if counted is not None:
        work = counted.work
    return Recipient(participant.name, participant.keys, book.row_of(participant), work)


def student_of_name(book: Gradebook, name: str) -> Recipient:
    """The student of a name; raises BadClass where nobody or several have it.

    A verdict that is missing is made and written. Raises BadFile, BadDay or OSError where the row
    cannot be made.
    """
    class_list = book.list_class()
    participant = find_participant(class_list.participants, name, class_list.removed)
    return _recipient(book, participant)


def participants_of_name(class_list: ClassList, name: str) -> list[Participant]:
    """The student of a name, or the members of the group of that name, in their order.

    Raises BadClass where nobody has it, or several students.
    """
    participants = class_list.participants
    if not any(each.name == name for each in participants):
        members = [each for each in participants if name_key(each.group) == name_key(name)]
        if members and not find_participants(name, participants):
            return members
    return [find_participant(participants, name, class_list.removed)]


def find_participant(
    participants: Sequence[Participant], name: str, removed: Sequence[Participant] = ()
) -> Participant:
    """The participant of a name; raises BadClass where nobody or several have it.

    Of somebody who is among those removed, the error says how the row comes back.
    """
    matching = [each for each in participants if each.name == name]
    if not matching:
        matching = find_participants(name, participants)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise BadClass(describe_namesakes(name, matching))
    members = [each.name for each in participants if name_key(each.group) == name_key(name)]
    if members:
        raise BadClass(f"{name} is a group; name its members: {', '.join(members)}")
    if find_participants(name, removed):
        undo = shlex.join(("dojo", "remove", "--undo", name))
        raise BadClass(f"{name} was removed from the class; to take the row back: {undo}")
    groups = dict.fromkeys(each.group for each in participants if each.group)
    people = [each.names for each in participants]
    people += [NamesOfPerson.from_names(group, ()) for group in groups]
    hint = suggest_people(name, people)
    raise BadClass(f"no student is called {name!r}{hint}")


def largest_row(book: Gradebook) -> SubmissionRow:
    """The row with the most checks: of a class, any that was graded will do.

    Verdicts that are missing are made and written. Raises BadClass, BadFile, BadDay or OSError
    where a row cannot be made, and ValueError for an empty class.
    """
    participants = book.list_class().participants
    rows = [book.row_of(participant) for participant in participants]
    return max(rows, key=_count_of_checks)


def _count_of_checks(row: SubmissionRow) -> int:
    """How many checks a row has, of all its exercises."""
    count = 0
    for exercise in row.exercises:
        count += len(exercise.checks)
    return count
