"""What `dojo override` writes and prints."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import click

from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.overrides import EVERYONE, SET, LogEntry
from gpudojo.classes.participants import Participant
from gpudojo.classes.result_writing import RULES_CHANGED, write_results
from gpudojo.cli.override_entries import largest_row
from gpudojo.model.errors import printable_text
from gpudojo.model.results import Grade, HandItem, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import count_and_noun, format_points

MOST_LINES: Final = 20  # about students whose points changed
WIDTH: Final = 100
TO_GRADE: Final = (
    "\nStill to grade by hand: STUDENT ITEM --points …, "
    "or --from a table of student,item,points,comment"
)


def _print_line(text: str) -> None:
    """Print a text, in which names and comments can do nothing to the terminal."""
    click.echo(printable_text(text))


# What was given


def write_and_print(book: Gradebook, entries: Sequence[LogEntry]) -> None:
    """Write the log and the results, and print whose points changed; raises BadClass."""
    _EntryWriter(book, entries).write_and_print()


class _EntryWriter:
    """Writes entries of one command, which all give or all take back points."""

    def __init__(self, book: Gradebook, entries: Sequence[LogEntry]) -> None:
        self.book = book
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
        """Write the log and the results, and print whose points changed; raises BadClass."""
        book = self.book
        before = {each.name: book.row_of(each) for each in self.concerned}
        book.overrides.append_entries(self.entries)
        written = write_results(book, changed=before)
        self._print_changes(before)
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

    def _print_changes(self, before: dict[str, SubmissionRow]) -> None:
        """Print how the points of the first students changed, and of how many they did."""
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
    if new.scaled or old.scaled:
        grade_before = Grade(old.score, old.max_score)
        grade_now = Grade(new.score, new.max_score)
        change = _describe_change(grade_before, grade_now)
        text += f" ({change} in the exercises)"
    return text


def _describe_change(old: Grade, new: Grade) -> str:
    """Points before and after, and what they are out of: "3 → 5 of 8"."""
    before = format_points(old.points)
    after = format_points(new.points)
    maximum = format_points(new.max_points)
    return f"{before} → {after} of {maximum}"


# What there is


def print_overrides(book: Gradebook) -> None:
    """Print what holds: of several keys of one student, the last; and what nobody has any more."""
    entries = _entries_to_show(book)
    if not entries:
        click.echo("There are no overrides.")
    entries.sort(key=lambda entry: (entry.student, entry.item))
    for entry in entries:
        words = [entry.student, entry.item, format_points(entry.points)]
        if entry.comment:
            words.append(entry.comment)
        date = entry.at[:10]
        words.append(f"({entry.by}, {date})")
        _print_line("  ".join(words))


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
        if entry in in_use or entry.key not in keys:
            entries.append(entry)
    return entries


def print_items_to_grade(book: Gradebook) -> None:
    """Print whose items a person still has to grade."""
    # Names of students, by item.
    handed_in: defaultdict[str, list[str]] = defaultdict(list)
    absent: defaultdict[str, list[str]] = defaultdict(list)
    participants = book.list_class().participants
    for row in book.rows_of(participants):
        names_by_item = handed_in
        if row.status is SubmissionStatus.ABSENT:
            names_by_item = absent
        for exercise in row.exercises:
            if exercise.to_grade:
                names = names_by_item[exercise.exercise]
                names.append(row.called)
    if handed_in:
        click.echo(TO_GRADE)
    for item in book.course.by_hand:
        name = item.name
        if name in handed_in:
            _print_item_to_grade(item, handed_in[name], absent[name])


def _print_item_to_grade(item: HandItem, handed_in: Sequence[str], absent: Sequence[str]) -> None:
    """Print one item, and the names of those whose points for it are missing."""
    about = f"{item.title}; {format_points(item.points)} points"
    if item.rubric:
        about += f"; {item.rubric}"
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
            points = format_points(entry.points)
            what = f"{points}  {entry.comment}".rstrip()
        time = entry.at[:19]
        words = [time, entry.by, entry.student, entry.item, what]
        _print_line("  ".join(words))


def print_items(book: Gradebook) -> None:
    """Print the names of all exercises and checks, and their points."""
    for exercise in largest_row(book).exercises:
        points = format_points(exercise.max_score)
        click.echo(f"{points:>8}  {exercise.exercise}")
        for check in exercise.checks:
            points = format_points(check.max_points)
            name = check.id.partition("::")[2]
            click.echo(f"{points:>8}    {name}")
