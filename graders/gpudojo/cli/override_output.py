"""What `dojo override` and `dojo marks` write and print."""

from __future__ import annotations

import shlex
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from gpudojo.classes.class_notices import UnusedOverrides
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.overrides import (
    ALL_POINTS,
    COMMENT,
    EVERYONE,
    FULL,
    LATE,
    REMOVED,
    REVIEW,
    SET,
    LogEntry,
)
from gpudojo.classes.participants import Participant
from gpudojo.classes.result_writing import RULES_CHANGED, write_decisions
from gpudojo.cli.marks_sheet import write_sheet
from gpudojo.cli.options import print_note
from gpudojo.cli.override_entries import largest_row
from gpudojo.model.errors import printable_text
from gpudojo.model.results import (
    CheckRow,
    Grade,
    HandItem,
    SubmissionRow,
    sum_points,
)
from gpudojo.model.results_file import count_and_noun, format_points
from gpudojo.platforms._texts import describe_seconds

MOST_LINES: Final = 20  # about students whose points changed
WIDTH: Final = 100
TO_GRADE: Final = (
    "To mark by hand: dojo marks --sheet FILE writes a table to fill in, and --from FILE reads it; "
    "or: dojo override STUDENT ITEM --points …"
)


def _print_line(text: str) -> None:
    """Print a text, in which names and comments can do nothing to the terminal."""
    click.echo(printable_text(text))


# What was given


def write_and_print(book: Gradebook, entries: Sequence[LogEntry], command: str) -> None:
    """Write the log and the results, and print whose points changed.

    The history has the name of the command: "marks".

    Raises BadClass where a file cannot be written or a row not be made, BadDay where the day cannot
    be imported, BadFile where the course names an exercise that is not there, and OSError.
    """
    _EntryWriter(book, entries, command).write_and_print()


class _EntryWriter:
    """Writes entries of one command, which all give or all take back points."""

    def __init__(self, book: Gradebook, entries: Sequence[LogEntry], command: str) -> None:
        """Find the participants whom the entries concern. Nothing is written yet."""
        self.book = book
        self.command = command
        self.entries = entries
        self.gives = entries[0].action == SET
        self.keys = {entry.key for entry in entries}
        self.concerned: list[Participant] = []
        for participant in book.list_class().participants:
            if EVERYONE in self.keys or self._are_for(participant):
                self.concerned.append(participant)

    def _are_for(self, participant: Participant) -> bool:
        """True if a participant is named in one of the entries."""
        return not self.keys.isdisjoint(participant.keys)

    def write_and_print(self) -> None:
        """Write the log and the results, and print whose points changed.

        Raises BadClass where a file cannot be written or a row not be made, BadDay where the day
        cannot be imported, BadFile where the course names an exercise that is not there, and
        OSError.
        """
        book = self.book
        before = {each.name: book.row_of(each) for each in self.concerned}
        written = write_decisions(book, self.entries, self.command)
        self._print_items()
        self._print_what_is_worth_nothing()
        self._print_changes(before)
        self._print_what_is_less()
        self._print_what_comes_before()
        self._print_what_stays_blocked()
        self._print_rest_of_group()
        # By other rules than at the last time, and not by what was given.
        first_changes = written.tally.changed_by_rules[:MOST_LINES]
        if first_changes:
            click.echo(RULES_CHANGED)
        for change in first_changes:
            _print_line(f"  {change}")
        sentence = f"{written.path} and {book.overrides.path} written."
        if self.gives:
            sentence += f" To undo it: dojo override --undo --out {book.out}"
        click.echo(sentence)
        for stale in written.stale:
            print_note(stale)

    def _print_items(self) -> None:
        """Print the full names of the items that were decided, or taken back."""
        items = list(dict.fromkeys(entry.item for entry in self.entries))
        what = "Decided" if self.gives else "Taken back"
        names = ", ".join(items[:MOST_LINES])
        if len(items) > MOST_LINES:
            names += f", and {len(items) - MOST_LINES} more"
        _print_line(f"{what}: {names}")

    def _print_changes(self, before: dict[str, SubmissionRow]) -> None:
        """Print how the points of the first students changed, and of how many they did.

        `before` are the rows from before, by name. Raises BadClass, BadDay or OSError where a row
        cannot be made.
        """
        changed = 0
        for participant in self.concerned:
            old = before[participant.name]
            new = self.book.row_of(participant)
            if new.final == old.final:
                continue
            changed += 1
            if changed <= MOST_LINES:
                change = _describe_change_of_row(old, new)
                _print_line(f"{participant.full_name}: {change}")
        if len(self.concerned) != 1:
            self._print_count_of_changes(changed)
        elif not changed:
            click.echo("The points are the same as before.")

    def _print_count_of_changes(self, changed: int) -> None:
        """Print of how many students points changed, and how many got nothing."""
        sentence = f"{changed} of {len(self.concerned)} students' points changed."
        absent = self._count_absent()
        if absent and self.gives:
            sentence += (
                f" {absent} handed in nothing and got nothing: to give them points, name them."
            )
        click.echo(sentence)

    def _print_what_is_worth_nothing(self) -> None:
        """Print which checks that were given points are worth none, whatever is given.

        Raises BadClass, BadDay or OSError where a row cannot be made.
        """
        given = {entry.item for entry in self.entries if entry.gives_points}
        worthless: dict[str, None] = {}
        for participant in self.concerned:
            for exercise in self.book.row_of(participant).exercises:
                for check in exercise.checks:
                    if check.id in given and not check.max_points:
                        worthless[check.id] = None
        for item in worthless:
            _print_line(f"{item} is worth 0 points.")

    def _print_what_is_less(self) -> None:
        """Print the first students who were given fewer points now than they had earned.

        Raises BadClass, BadDay or OSError where a row cannot be made.
        """
        given = {entry.item for entry in self.entries if entry.gives_points}
        lines = []
        for participant in self.concerned:
            for item, override in self.book.row_of(participant).overrides:
                if item not in given or override.graded is None:
                    continue
                if override.at == self.entries[0].at and override.points < override.graded:
                    points = format_points(override.points)
                    lines.append(
                        f"{participant.full_name}: {points} points by hand for {item} are fewer "
                        f"than the {format_points(override.graded)} that were earned."
                    )
        for line in lines[:MOST_LINES]:
            _print_line(line)
        if len(lines) > MOST_LINES:
            click.echo(f"… and {len(lines) - MOST_LINES} more have fewer points than they earned.")

    def _print_what_comes_before(self) -> None:
        """Print the first students whose points for a whole exercise come before those of now.

        Raises BadClass, BadDay or OSError where a row cannot be made.
        """
        parts = {entry.item for entry in self.entries if entry.gives_points}
        wholes = {item.partition("::")[0] for item in parts} - parts
        lines = []
        for participant in self.concerned:
            for exercise in self.book.row_of(participant).exercises:
                if exercise.override is None or exercise.exercise not in wholes:
                    continue
                points = format_points(exercise.override.points)
                undo = shlex.join((participant.name, exercise.exercise))
                lines.append(
                    f"{participant.full_name}: {exercise.exercise} as a whole has {points} points "
                    "by hand, which come before those of its parts; to take them back: "
                    f"dojo override --undo {undo} --out {self.book.out}"
                )
        for line in lines[:MOST_LINES]:
            _print_line(line)

    def _print_what_stays_blocked(self) -> None:
        """Print which checks still count nothing, because they waited for one that was given.

        They were not judged. Of several students, how many checks there are is printed. Raises
        BadClass, BadDay or OSError where a row cannot be made.
        """
        given = {entry.item for entry in self.entries if entry.gives_points}
        blocked_of: dict[str, list[CheckRow]] = {}
        for participant in self.concerned:
            row = self.book.row_of(participant)
            for exercise in row.exercises:
                if exercise.override is None:
                    for item in given:
                        blocked_of.setdefault(item, []).extend(exercise.blocked_by(item))
        for item, blocked in blocked_of.items():
            if not blocked:
                continue
            checks = count_and_noun(len(blocked), "check")
            points = format_points(sum_points(check.max_points for check in blocked))
            names = ", ".join(dict.fromkeys(check.id.rpartition("::")[2] for check in blocked))
            _print_line(
                f"{checks} waited for {item}, not judged, and still 0 of {points} points: {names}. "
                "Give points for them, too, or for the whole exercise."
            )

    def _print_rest_of_group(self) -> None:
        """Print who else is in the group of the only student who was named."""
        if len(self.concerned) != 1 or not self.concerned[0].group:
            return
        named = self.concerned[0]
        others = []
        for participant in self.book.list_class().participants:
            if participant.group == named.group and participant.name != named.name:
                others.append(participant.full_name)
        if others:
            group = f"'{named.group}'" if " " in named.group else named.group
            _print_line(
                f"This is not for the others of {named.group}: {', '.join(others)}. For all of "
                f"them, write {group} instead of the name."
            )

    def _count_absent(self) -> int:
        """How many handed in nothing, and are not named themselves."""
        absent = 0
        for participant in self.concerned:
            if not participant.submissions and not self._are_for(participant):
                absent += 1
        return absent


def _describe_change_of_row(old: SubmissionRow, new: SubmissionRow) -> str:
    """How the published points changed; those of the exercises, too, where they are others."""
    text = _describe_change(old.final, new.final)
    grade_before = Grade(old.score, old.max_score)
    grade_now = Grade(new.score, new.max_score)
    change = _describe_change(grade_before, grade_now)
    if change != text and grade_before != grade_now:
        text += f" ({change} in the exercises)"
    return text


def _describe_change(old: Grade, new: Grade) -> str:
    """Points before and after, and what they are out of: "3 → 5 of 8"."""
    before = format_points(old.points)
    after = format_points(new.points)
    maximum = format_points(new.max_points)
    return f"{before} → {after} of {maximum}"


def write_sheet_of(book: Gradebook, path: Path) -> None:
    """Write the sheet of what is marked by hand, and print how it is read back.

    Verdicts that are missing are made and written. Raises ClickException where nothing is marked by
    hand, or the file is there; BadClass, BadFile, BadDay or OSError where rows cannot be made or
    the file not written.
    """
    if not book.course.by_hand:
        raise click.ClickException(
            "the course file has nothing to mark by hand; write [[by_hand]] there, and "
            "run `dojo grade` again"
        )
    rows = book.rows_of(book.list_class().participants)
    try:
        left = write_sheet(path, rows)
    except FileExistsError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
    lines = count_and_noun(left, "line")
    click.echo(f"{path} written; {lines} without points. Fill in points and comments, and read it:")
    click.echo(f"dojo marks --from {path} --out {book.out}")


# What there is


def print_overrides(book: Gradebook) -> None:
    """Print what holds: of several keys of one student, the last; and what nobody has any more.

    Of what holds for nobody, or for an item that is not graded, it says that it is not used. Raises
    BadClass or BadFile where the class cannot be listed, BadDay and OSError.
    """
    entries = _entries_to_show(book)
    if not entries:
        click.echo("There are no overrides.")
    entries.sort(key=lambda entry: (entry.student, entry.item))
    reason_unused = UnusedOverrides(book, book.list_class()).reason_unused
    for entry in entries:
        words = [entry.student, entry.item, _describe_decision(entry)]
        if entry.comment:
            words.append(entry.comment)
        date = entry.at[:10]
        words.append(f"({entry.by}, {date})")
        unused = reason_unused(entry)
        if unused:
            words.append(f"not used now: {unused}")
        _print_line("  ".join(words))


def _describe_decision(entry: LogEntry) -> str:
    """What an entry says: points, "2.0 days late", "in time" or "reviewed"."""
    if entry.item == REVIEW:
        return "reviewed"
    if entry.item == REMOVED:
        return "not in the class"
    if entry.about == COMMENT:
        return "the points stay"
    if entry.item != LATE:
        return FULL if entry.points == ALL_POINTS else format_points(entry.points)
    delay = describe_seconds(entry.late_seconds)
    if not delay:
        return "in time"
    return f"{delay} late"


def _entries_to_show(book: Gradebook) -> list[LogEntry]:
    """The entries that a participant has, or nobody; without those that another one replaces.

    A student may have several keys: an entry of one may replace that of another.
    """
    keys: set[str] = set()
    in_use: set[LogEntry] = set()
    for participant in book.list_class().participants:
        keys.update(participant.keys)
        own = book.overrides.entries_for(participant.keys, everyone=False)
        in_use.update(own.values())
    entries = []
    in_force = book.overrides.entries_in_force()
    for entry in in_force.values():
        if entry.item != REVIEW and (entry in in_use or entry.key not in keys):
            entries.append(entry)
    return entries


def print_items_to_grade(book: Gradebook) -> None:
    """Print whose items a person still has to grade.

    Verdicts that are missing are made and written. Raises BadClass, BadFile, BadDay or OSError
    where rows cannot be made.
    """
    # Names of students, by item.
    handed_in: defaultdict[str, list[str]] = defaultdict(list)
    absent: defaultdict[str, list[str]] = defaultdict(list)
    participants = book.list_class().participants
    for row in book.rows_of(participants):
        for exercise in row.exercises:
            if exercise.to_grade:
                names_by_item = handed_in if exercise.title in row.to_grade else absent
                names_by_item[exercise.exercise].append(row.called)
    if not handed_in:
        click.echo("Nothing is left to mark by hand.")
        return
    click.echo(TO_GRADE)
    for item in book.course.by_hand:
        name = item.name
        if name in handed_in:
            _print_item_to_grade(item, handed_in[name], absent[name])


def _print_item_to_grade(item: HandItem, handed_in: Sequence[str], absent: Sequence[str]) -> None:
    """Print one item, and the names of those whose points for it are missing."""
    about = f"{item.title}; {format_points(item.points)} points"
    for line in item.rubric_rows:
        about += f"; {line.text}"
        if line.max_points:
            about += f" ({format_points(line.max_points)})"
    students = count_and_noun(len(handed_in), "student")
    _print_line(f"  {item.name} ({about}): {students}")
    _print_names("", handed_in)
    if absent:
        _print_names(f"{len(absent)} more handed in nothing: ", absent)


def _print_names(introduction: str, names: Sequence[str]) -> None:
    """Print names after an introduction, on as many lines as they need."""
    text = introduction + ", ".join(names)
    lines = textwrap.wrap(printable_text(text), WIDTH)
    for line in lines:
        click.echo(f"    {line}")


def print_log(book: Gradebook) -> None:
    """Print every command that gave or took back points, the first one first."""
    if not book.overrides.log:
        click.echo("Nothing was overridden yet.")
    for entry in book.overrides.log:
        what = "undone"
        if entry.action == SET:
            what = f"{_describe_decision(entry)}  {entry.comment}".rstrip()
        time = entry.at[:19]
        words = [time, entry.by, entry.student, entry.item, what]
        _print_line("  ".join(words))


def print_items(book: Gradebook) -> None:
    """Print the names of all exercises and checks, lines of rubrics, too, and their points.

    They are those of the student who has the most checks. Verdicts that are missing are made and
    written. Raises BadClass, BadFile, BadDay or OSError where rows cannot be made.
    """
    for exercise in largest_row(book).exercises:
        points = format_points(exercise.max_score)
        click.echo(f"{points:>8}  {exercise.exercise}")
        for check in exercise.checks:
            points = format_points(check.max_points)
            name = check.id.partition("::")[2]
            click.echo(f"{points:>8}    {name}")
        for number, name in exercise.rubric_numbers.items():
            line = exercise.rubric_lines[name]
            points = format_points(line.max_points)
            _print_line(f"{points:>8}    {number}  {line.text}")
