"""`dojo review`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpudojo.cli.class_folder import HERE, login_name, open_class
from gpudojo.cli.options import FOLDER, print_note
from gpudojo.cli.single_options import StrictCommand
from gpudojo.model.errors import printable_text
from gpudojo.model.results_file import count_and_noun, format_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudojo.classes.gradebook import Gradebook
    from gpudojo.classes.overrides import LogEntry
    from gpudojo.model.results import SubmissionRow

INDENT: Final = "    "


@click.command(cls=StrictCommand)
@click.argument("students", nargs=-1, metavar="[STUDENT]...")
@click.option("--done", is_flag=True, help="Tick them off.")
@click.option("--comment", default="", help="What you found; only you and your colleagues see it.")
@click.option("--undo", is_flag=True, help="They need review again.")
@click.option("--by", default=None, help="Who reviewed it (default: your login name).")
@click.option("--out", type=FOLDER, help=HERE)
def review(
    students: tuple[str, ...],
    done: bool,
    comment: str,
    undo: bool,
    by: str | None,
    out: Path | None,
) -> None:
    """Show what needs review and why, and tick off what you have looked at.

    What was ticked off leaves the lists in the terminal, on pages and in exports. It comes back
    when the submission or a reason changes. Without STUDENT, all are listed.
    """
    if sys.platform == "win32":
        raise click.ClickException("a class needs Linux or macOS; on Windows, use WSL")
    if done and undo:
        raise click.UsageError("--done does not go with --undo")
    if comment and not done:
        raise click.UsageError("--comment goes with --done")
    if (done or undo) and not students:
        raise click.UsageError("STUDENT is missing")
    with open_class(out) as book:
        if not students:
            _print_all(book)
        elif done or undo:
            entries = _entries_for(book, students, comment, by or login_name(), done)
            _write_and_print(book, entries)
        else:
            for row in _rows_of_students(book, students):
                _print_row(row)


def _print_all(book: Gradebook) -> None:
    """Print who needs review, the most serious reasons first, and who was reviewed.

    Of a group, one member stands for all with the same reasons. Verdicts that are missing are made
    and written. Raises BadClass, BadFile, BadDay or OSError where rows cannot be made.
    """
    from gpudojo.classes.reviews import ReviewFilter

    to_do = []
    reviewed = []
    reviews = ReviewFilter()
    for row in book.rows_of(book.list_class().participants):
        if not row.reasons_to_review or not reviews.is_first(row):
            continue
        if row.review:
            to_do.append(row)
        else:
            reviewed.append(row)
    to_do.sort(key=lambda row: row.review_rank)
    if not to_do:
        click.echo("Nothing needs review.")
    for row in to_do:
        _print_row(row)
    if to_do:
        click.echo(f"\nTo tick one off: dojo review STUDENT --done --out {book.out}")
    if reviewed:
        click.echo(f"\nReviewed: {len(reviewed)}")
    for row in reviewed:
        _print_row(row)


def _print_row(row: SubmissionRow) -> None:
    """Print a student's name, points and reasons to review, and who reviewed them, if anybody."""
    points = f"{format_points(row.final.points)} of {format_points(row.final.max_points)}"
    lines = [f"{row.called_with_group}: {points}, {row.status.value}"]
    reasons = row.reasons_to_review or ["nothing needs review"]
    lines += [f"{INDENT}{reason}" for reason in reasons]
    if row.reviewed is not None:
        text = f"reviewed by {row.reviewed.by}, {row.reviewed.at[:10]}"
        if row.reviewed.comment:
            text += f": {row.reviewed.comment}"
        lines.append(f"{INDENT}{text}")
    for line in lines:
        click.echo(printable_text(line))


def _rows_of_students(book: Gradebook, students: Sequence[str]) -> list[SubmissionRow]:
    """The rows of the students with these names, each once, in the order of the class.

    A name may be that of a group; and members of a student's group with the same to review are
    there, too. The rows say who handed in the same files. Verdicts that are missing are made and
    written. Raises BadClass for an unknown name, and BadClass, BadFile, BadDay or OSError where
    rows cannot be made.
    """
    from gpudojo.classes.reviews import digest_of_reasons
    from gpudojo.cli.override_entries import participants_of_name

    class_list = book.list_class()
    wanted: set[str] = set()
    for name in students:
        wanted.update(each.name for each in participants_of_name(class_list, name))
    rows = list(book.rows_of(class_list.participants))
    same = set()  # what groups have to review, and whether it was reviewed
    for row in rows:
        if row.submission in wanted and row.group:
            same.add((row.group, digest_of_reasons(row), row.reviewed is None))
    chosen = []
    for row in rows:
        work = (row.group, digest_of_reasons(row), row.reviewed is None)
        if row.submission in wanted or work in same:
            chosen.append(row)
    return chosen


def _entries_for(
    book: Gradebook, students: Sequence[str], comment: str, by: str, done: bool
) -> list[LogEntry]:
    """The entries that tick students off, or take that back where not `done`.

    Of a group, there are entries for all members with the same to review. Raises ClickException
    where there is nothing to tick off or to take back, BadClass for an unknown name, and BadClass,
    BadDay or OSError where rows cannot be made.
    """
    from gpudojo.classes.class_state import utc_now
    from gpudojo.classes.overrides import REVIEW, SET, LogEntry
    from gpudojo.classes.reviews import digest_of_reasons
    from gpudojo.cli.override_entries import EntryMaker, student_of_name

    maker = EntryMaker(book, utc_now("microseconds"), by)
    entries = []
    for row in _rows_of_students(book, students):
        recipient = student_of_name(book, row.submission)
        if not done:
            entries.append(maker.entry_that_takes_back(recipient, REVIEW, comment))
            continue
        if not row.reasons_to_review:
            raise click.ClickException(
                f"{recipient.name} does not need review; to answer a dispute: "
                "dojo override STUDENT CHECK --comment TEXT"
            )
        key = recipient.keys[0]
        digest = digest_of_reasons(row)
        kept = comment
        if not comment and row.reviewed is not None:
            kept = row.reviewed.comment
        entry = LogEntry(maker.at, maker.by, SET, recipient.name, REVIEW, 0.0, kept, key, digest)
        entries.append(entry)
    return entries


def _write_and_print(book: Gradebook, entries: Sequence[LogEntry]) -> None:
    """Write the log and the results, and print how much is left to review.

    Raises BadClass, BadFile, BadDay or OSError where that is not possible.
    """
    from gpudojo.classes.overrides import SET
    from gpudojo.classes.result_writing import write_decisions

    written = write_decisions(book, entries, "review")
    for entry in entries:
        what = "reviewed" if entry.action == SET else "needs review again"
        click.echo(printable_text(f"{entry.student}: {what}"))
    left = count_and_noun(written.tally.review_count, "submission")
    click.echo(f"{left} left to review, {written.tally.reviewed} reviewed.")
    for stale in written.stale:
        print_note(stale)
