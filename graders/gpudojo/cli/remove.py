"""`dojo remove`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudojo.cli.class_folder import HERE, login_name, open_class
from gpudojo.cli.options import FOLDER, print_note
from gpudojo.cli.single_options import StrictCommand
from gpudojo.model.errors import printable_text
from gpudojo.model.results_file import count_and_noun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudojo.classes.gradebook import Gradebook
    from gpudojo.classes.overrides import LogEntry


@click.command(cls=StrictCommand)
@click.argument("students", nargs=-1, metavar="[STUDENT]...")
@click.option("--comment", default="", help="The reason; only you and your colleagues see it.")
@click.option("--undo", is_flag=True, help="Take them back into the class.")
@click.option("--by", default=None, help="Who removes them (default: your login name).")
@click.option("--out", type=FOLDER, help=HERE)
def remove(
    students: tuple[str, ...], comment: str, undo: bool, by: str | None, out: Path | None
) -> None:
    """Take rows out of a class: who dropped the course, or a folder that is nobody's work.

    They are in no results, statistics and exports any more, however often the class is graded.
    Nothing is deleted: --undo brings a row back, with its attempts and points given by hand.
    Without STUDENT, those who were removed are listed.
    """
    if sys.platform == "win32":
        raise click.ClickException("a class needs Linux or macOS; on Windows, use WSL")
    if (undo or comment) and not students:
        raise click.UsageError("STUDENT is missing")
    with open_class(out) as book:
        if students:
            entries = _entries_for(book, students, comment, by or login_name(), undo)
            _write_and_print(book, entries)
        else:
            _print_removed(book)


def _print_removed(book: Gradebook) -> None:
    """Print who was removed, by whom and when."""
    from gpudojo.classes.overrides import REMOVED

    removed = book.list_class().removed
    if not removed:
        click.echo("Nobody was removed.")
    for participant in removed:
        entry = book.overrides.entries_for(participant.keys, everyone=False)[REMOVED]
        text = f"{participant.full_name}: removed by {entry.by}, {entry.at[:10]}"
        if entry.comment:
            text += f": {entry.comment}"
        click.echo(printable_text(text))


def _entries_for(
    book: Gradebook, students: Sequence[str], comment: str, by: str, undo: bool
) -> list[LogEntry]:
    """The entries that remove students from the class, or take them back with `undo`.

    Raises BadClass for a name that nobody or several have, and ClickException where nobody would be
    left, or nobody was removed.
    """
    from gpudojo.classes.class_state import utc_now
    from gpudojo.classes.overrides import REMOVED, SET, UNDO, LogEntry
    from gpudojo.cli.override_entries import find_participant

    at = utc_now("microseconds")
    class_list = book.list_class()
    people = class_list.participants
    removed = class_list.removed
    if undo:
        people = class_list.removed
        removed = []
        if not people:
            raise click.ClickException("nobody was removed")
    entries: dict[str, LogEntry] = {}
    for name in students:
        participant = find_participant(people, name, removed)
        if undo:
            held = book.overrides.entries_for(participant.keys, everyone=False)[REMOVED]
            entry = held._replace(at=at, by=by, action=UNDO, comment=comment)
        else:
            key = participant.keys[0]
            entry = LogEntry(at, by, SET, participant.full_name, REMOVED, 0.0, comment, key)
        entries[entry.key] = entry
    if not undo and len(entries) == len(class_list.participants):
        raise click.ClickException("nobody would be left; to begin anew, use another --out")
    return list(entries.values())


def _write_and_print(book: Gradebook, entries: Sequence[LogEntry]) -> None:
    """Write the log and the results, and print how many students are left.

    Raises BadClass, BadFile, BadDay or OSError where that is not possible.
    """
    from gpudojo.classes.overrides import SET
    from gpudojo.classes.result_writing import write_decisions

    written = write_decisions(
        book, entries, "remove" if entries[0].action == SET else "remove --undo"
    )
    names = []
    for entry in entries:
        what = "removed" if entry.action == SET else "in the class again"
        click.echo(printable_text(f"{entry.student}: {what}"))
        names.append(f"'{entry.student}'" if " " in entry.student else entry.student)
    rows = len(book.list_class().participants)
    click.echo(f"{count_and_noun(rows, 'row')} in {written.path}.")
    if entries[0].action == SET:
        click.echo(f"To undo it: dojo remove --undo {' '.join(names)} --out {book.out}")
    for stale in written.stale:
        print_note(stale)
