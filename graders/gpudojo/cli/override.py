"""`dojo override`."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from gpudojo.cli.options import EXISTING_FILE, FOLDER
from gpudojo.model.errors import BadClass, BadFile, printable_text, suggest_name
from gpudojo.model.results import Grade, HandItem, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import format_points

if TYPE_CHECKING:
    from gpudojo.classes.gradebook import Gradebook
    from gpudojo.classes.overrides import LogEntry
    from gpudojo.classes.participants import Participant

HERE: Final = "The folder that `dojo grade --out` made (default: this one, or the only one in it)."
MOST_LINES: Final = 20  # about students whose points changed
MOST_NAMES: Final = 8  # of students whose name holds what was given
WIDTH: Final = 100


@click.command()
@click.argument("words", nargs=-1, metavar="[STUDENT] [CHECK|EXERCISE]")
@click.option("--points", metavar="POINTS", help="The points to give.")
@click.option("--comment", default="", help="The reason; the student reads it.")
@click.option(
    "--all", "everyone", is_flag=True, help="For all who handed something in, instead of STUDENT."
)
@click.option(
    "--from",
    "file",
    type=EXISTING_FILE,
    help="Many at once: a CSV file with student, item, points, comment.",
)
@click.option("--undo", is_flag=True, help="Take one back; without words, undo the last command.")
@click.option("--log", is_flag=True, help="Show who gave and took back what, and when.")
@click.option("--items", is_flag=True, help="List what can be overridden, and what it is worth.")
@click.option("--by", default=None, help="Who gives it (default: your login name).")
@click.option("--out", type=FOLDER, help=HERE)
def override(**arguments: Any) -> None:
    """Give points in place of the grader's, for a check, a whole exercise, or an item that people
    grade.

    STUDENT is an id, a name, an e-mail address or the name of the submission. A check may be named
    by its end, such as train_epoch::runs, and an exercise by its number. What is given survives
    regrading. Without words, the overrides are listed, and what is still to grade by hand.
    """
    if sys.platform == "win32":
        raise click.ClickException("a class needs Linux or macOS; on Windows, use WSL")
    asked = OverrideArguments(**arguments)
    _refuse_contradictions(asked)
    from gpudojo.classes.overrides import parse_points

    points = None if asked.points is None else parse_points(asked.points, "--points")
    with _open_class(asked.out) as book:
        _carry_out(book, asked, points)


@dataclass(frozen=True)
class OverrideArguments:
    """What the user asks of `dojo override`: its arguments, by the names that click gives them."""

    words: tuple[str, ...]
    points: str | None
    comment: str
    everyone: bool
    file: Path | None
    undo: bool
    log: bool
    items: bool
    by: str | None
    out: Path | None

    @property
    def names_nobody(self) -> bool:
        """True if neither a student nor everyone is named."""
        return not self.words and not self.everyone


def _refuse_contradictions(asked: OverrideArguments) -> None:
    """Raises UsageError where a word or option would be left out."""
    actions = {
        "--log": asked.log,
        "--items": asked.items,
        "--from": asked.file is not None,
        "--undo": asked.undo,
    }
    details = {
        "STUDENT": bool(asked.words),
        "--all": asked.everyone,
        "--points": asked.points is not None,
        "--comment": bool(asked.comment),
    }
    used = [name for name, is_given in (actions | details).items() if is_given]
    if not any(actions.values()):
        if used and asked.names_nobody:
            raise click.UsageError("STUDENT and CHECK or EXERCISE are missing")
        return
    action = used[0]
    fitting = ("STUDENT", "--all") if action == "--undo" else ()
    for name in used[1:]:
        if name not in fitting:
            raise click.UsageError(f"{action} does not go with {name}")


@contextlib.contextmanager
def _open_class(out: Path | None) -> Iterator[Gradebook]:
    """The class in a folder, which nobody else can write to meanwhile.

    Raises ClickException where nothing was graded yet, BadClass where another command writes to
    it, and BadFile.
    """
    from gpudojo.classes.class_opening import load_last_course, open_gradebook
    from gpudojo.classes.class_state import load_state
    from gpudojo.classes.store import Store

    folder = _class_folder(out)
    if not load_state(folder).students:
        raise click.ClickException(f"{folder} has no results yet; run `dojo grade` first")
    store = Store(folder)
    store.open()
    try:
        state = load_state(folder)  # again: a `dojo grade` may have ended since
        yield open_gradebook(folder, state, load_last_course(folder, state))
    finally:
        store.close()


def _class_folder(out: Path | None) -> Path:
    """The folder of the class: the one given, or the only one here; raises ClickException."""
    from gpudojo.classes.class_state import STATE

    if out is not None:
        return out
    here = Path()
    folders = []
    for folder in (here, *sorted(here.iterdir())):
        if (folder / STATE).is_file():
            folders.append(folder)
    if len(folders) == 1:
        return folders[0]
    message = "--out is missing: the folder that `dojo grade --out` made"
    if folders:
        names = ", ".join(str(folder) for folder in folders)
        message += f"; there are {names}"
    raise click.ClickException(message)


def _carry_out(book: Gradebook, asked: OverrideArguments, points: float | None) -> None:
    """Print or write what the arguments ask for, which are consistent.

    Raises UsageError, ClickException, BadClass and BadFile.
    """
    from gpudojo.classes.class_state import utc_now

    at = utc_now("microseconds")  # tells commands apart
    by = asked.by or _login_name()
    if asked.log:
        _print_log(book)
    elif asked.items:
        _print_items(book)
    elif asked.file is not None:
        lines = _read_file(book, asked.file)
        if not lines:
            raise BadFile(str(asked.file), None, "no line of it has points")
        _add_to_log(book, [_log_entry(at, by, given) for given in lines])
    elif asked.names_nobody and asked.undo:
        _add_to_log(book, _entries_to_undo(book, at, by))
    elif asked.names_nobody:
        _print_overrides(book)
        _print_items_to_grade(book)
    else:
        _add_to_log(book, [_entry_for_words(book, asked, points, at, by)])


def _login_name() -> str:
    """Who runs the command; "unknown" where the system does not say."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # what getpass raises
        return getpass.getuser()
    return os.environ.get("USER", "unknown")


# What is given


class GivenPoints(NamedTuple):
    """Points for an item; in the order of a log entry."""

    student: str
    item: str
    points: float
    comment: str
    key: str


def _log_entry(at: str, by: str, given: GivenPoints) -> LogEntry:
    """The entry that gives these points, at a time and by a person."""
    from gpudojo.classes.overrides import SET, LogEntry

    return LogEntry(at, by, SET, *given)


def _entry_for_words(
    book: Gradebook, asked: OverrideArguments, points: float | None, at: str, by: str
) -> LogEntry:
    """The entry for a student, or everyone, and an item that are named on the command line.

    Raises UsageError where something is missing, ClickException for too many points and for what
    cannot be undone, and BadClass for unknown names.
    """
    from gpudojo.classes.overrides import UNDO, LogEntry

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
    return _log_entry(at, by, GivenPoints(student, item, points, asked.comment, key))


def _name_and_key(participant: Participant | None) -> tuple[str, str]:
    """How the log calls a participant, and its key; None is everyone."""
    from gpudojo.classes.overrides import EVERYONE

    if participant is None:
        return "everyone", EVERYONE
    return participant.name, participant.keys[0]


def _entries_to_undo(book: Gradebook, at: str, by: str) -> list[LogEntry]:
    """What undoes the last command; raises ClickException if it took something back itself.

    All that it gave is taken back, and what held before is given again.
    """
    from gpudojo.classes.overrides import UNDO

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
    from gpudojo.classes.names import name_key

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
    raise BadClass(f"no student is called {name!r}{_suggest_student(name, participants)}")


def _suggest_student(name: str, participants: Sequence[Participant]) -> str:
    """Who may have been meant by a name that nobody has; for the end of a sentence."""
    from gpudojo.classes.names import name_key

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
    from gpudojo.classes.overrides import find_item

    row = _largest_row(book) if participant is None else book.row_of(participant)
    return find_item(name, row)


def _largest_row(book: Gradebook) -> SubmissionRow:
    """The row with the most checks: of a class, any that was graded will do."""
    rows = [book.row_of(participant) for participant in book.list_class().participants]
    return max(rows, key=_count_of_checks)


def _count_of_checks(row: SubmissionRow) -> int:
    return sum(len(exercise.checks) for exercise in row.exercises)


def _read_file(book: Gradebook, path: Path) -> list[GivenPoints]:
    """What the lines of a CSV file give, without those that have no points yet.

    Raises BadFile with the line, before any is given.
    """
    from gpudojo.classes.csv_tables import read_table

    first, *lines = read_table(path)
    columns = [heading.strip().casefold() for heading in first.cells]
    _refuse_missing_columns(path, first.number, columns)
    points_of_lines = []
    line_of: dict[tuple[str, str], int] = {}
    for line in lines:
        cells = {}
        for column, cell in zip(columns, line.cells, strict=False):
            cells[column] = cell.strip()
        if not cells.get("points"):
            continue  # not graded yet
        given = _read_line(book, path, line.number, cells)
        points_of_lines.append(given)
        other_line = line_of.setdefault((given.key, given.item), line.number)
        if other_line != line.number:
            reason = f"{given.item} of {given.student} is in line {other_line}, too"
            raise BadFile(str(path), line.number, reason)
    return points_of_lines


def _refuse_missing_columns(path: Path, line: int, columns: Sequence[str]) -> None:
    """Raises BadFile, with a suggestion, if one of the columns that are needed is not there."""
    missing = sorted({"student", "item", "points"} - set(columns))
    if not missing:
        return
    reason = f"there is no column {missing[0]!r}; student, item and points are needed"
    for heading in columns:
        hint = suggest_name(heading, missing, "")
        if hint:
            raise BadFile(str(path), line, reason + hint)
    raise BadFile(str(path), line, reason)


def _read_line(book: Gradebook, path: Path, number: int, cells: Mapping[str, str]) -> GivenPoints:
    """What one line gives; raises BadFile."""
    from gpudojo.classes.overrides import EVERYONE, parse_points

    for name in ("student", "item"):
        if not cells.get(name):
            raise BadFile(str(path), number, f"the {name} is missing")
    participant = None
    try:
        if cells["student"] != EVERYONE:
            participant = _find_participant(book, cells["student"])
        item, max_points = _find_item(book, participant, cells["item"])
    except BadClass as error:
        raise BadFile(str(path), number, str(error)) from None
    points = parse_points(cells["points"], str(path), number)
    if points > max_points:
        reason = f"{item} is worth {max_points:g} points, not {points:g}"
        raise BadFile(str(path), number, reason)
    student, key = _name_and_key(participant)
    return GivenPoints(student, item, points, cells.get("comment", ""), key)


# Giving


def _add_to_log(book: Gradebook, entries: Sequence[LogEntry]) -> None:
    """Write the log and the results, and print whose points changed; raises BadClass."""
    from gpudojo.classes.overrides import EVERYONE, SET
    from gpudojo.classes.result_writing import RULES_CHANGED, write_results

    keys = {entry.key for entry in entries}
    concerned = []
    for participant in book.list_class().participants:
        if EVERYONE in keys or not keys.isdisjoint(participant.keys):
            concerned.append(participant)
    before = {participant.name: book.row_of(participant) for participant in concerned}
    book.overrides.append_entries(entries)
    written = write_results(book, changed=before)

    gives = entries[0].action == SET
    changed = _print_changes(book, concerned, before)
    if len(concerned) != 1:
        absent = _count_absent(concerned, keys) if gives else 0
        _print_count_of_changes(changed, len(concerned), absent)
    elif not changed:
        click.echo("The points are the same as before.")
    if written.tally.changed_by_rules:
        click.echo(RULES_CHANGED)
        for line in written.tally.changed_by_rules[:MOST_LINES]:
            click.echo(f"  {printable_text(line)}")
    undo = f" To undo it: dojo override --undo --out {book.out}" if gives else ""
    click.echo(f"{written.path} and {book.overrides.path} written.{undo}")


def _count_absent(participants: Sequence[Participant], keys: set[str]) -> int:
    """How many of them handed in nothing, and are not named by one of the keys."""
    absent = 0
    for participant in participants:
        if not participant.submissions and keys.isdisjoint(participant.keys):
            absent += 1
    return absent


def _print_count_of_changes(changed: int, concerned: int, absent: int) -> None:
    """Print of how many students points changed, and how many got nothing."""
    sentence = f"{changed} of {concerned} students' points changed."
    if absent:
        sentence += f" {absent} handed in nothing and got nothing: to give them points, name them."
    click.echo(sentence)


def _print_changes(
    book: Gradebook, participants: Sequence[Participant], before: Mapping[str, SubmissionRow]
) -> int:
    """Print how the points of the first of them changed; returns of how many they did."""
    changed = 0
    for participant in participants:
        old = before[participant.name]
        new = book.row_of(participant)
        if new.final == old.final:
            continue
        changed += 1
        if changed <= MOST_LINES:
            name = printable_text(participant.full_name)
            click.echo(f"{name}: {_describe_change_of_row(old, new)}")
    return changed


def _describe_change_of_row(old: SubmissionRow, new: SubmissionRow) -> str:
    """How the published points changed; those of the exercises, too, where they are others."""
    text = _describe_change(old.final, new.final)
    if new.scaled or old.scaled:
        grade_before = Grade(old.score, old.max_score)
        grade_now = Grade(new.score, new.max_score)
        text += f" ({_describe_change(grade_before, grade_now)} in the exercises)"
    return text


def _describe_change(old: Grade, new: Grade) -> str:
    """Points before and after, and what they are out of."""
    before = format_points(old.points)
    return f"{before} → {format_points(new.points)} of {format_points(new.max_points)}"


# Showing


def _print_overrides(book: Gradebook) -> None:
    """Print what holds: of several keys of one student, the last; and what nobody has any more."""
    entries = _entries_to_show(book)
    for entry in sorted(entries, key=lambda entry: (entry.student, entry.item)):
        words = [entry.student, entry.item, format_points(entry.points)]
        if entry.comment:
            words.append(entry.comment)
        date = entry.at[:10]
        words.append(f"({entry.by}, {date})")
        click.echo(printable_text("  ".join(words)))
    if not entries:
        click.echo("There are no overrides.")


def _entries_to_show(book: Gradebook) -> list[LogEntry]:
    """The entries that a participant has, or nobody; without those that another one replaces."""
    keys: set[str] = set()
    in_use: set[LogEntry] = set()
    for participant in book.list_class().participants:
        keys.update(participant.keys)
        in_use.update(book.overrides.entries_for(participant.keys, everyone=False).values())
    entries = []
    for entry in book.overrides.entries_in_force().values():
        if entry in in_use or entry.key not in keys:
            entries.append(entry)
    return entries


def _print_items_to_grade(book: Gradebook) -> None:
    """Print whose items a person still has to grade."""
    handed_in: defaultdict[str, list[str]] = defaultdict(list)
    absent: defaultdict[str, list[str]] = defaultdict(list)
    for row in book.rows_of(book.list_class().participants):
        names = absent if row.status is SubmissionStatus.ABSENT else handed_in
        for exercise in row.exercises:
            if exercise.to_grade:
                names[exercise.exercise].append(row.called)
    if handed_in:
        click.echo(
            "\nStill to grade by hand: STUDENT ITEM --points …, "
            "or --from a table of student,item,points,comment"
        )
    for item in book.course.by_hand:
        if item.name in handed_in:
            _print_item_to_grade(item, handed_in[item.name], absent[item.name])


def _print_item_to_grade(item: HandItem, handed_in: Sequence[str], absent: Sequence[str]) -> None:
    """Print one item, and the names of those whose points for it are missing."""
    about = f"{item.title}; {format_points(item.points)} points"
    if item.rubric:
        about += f"; {item.rubric}"
    students = "1 student" if len(handed_in) == 1 else f"{len(handed_in)} students"
    click.echo(printable_text(f"  {item.name} ({about}): {students}"))
    texts = [", ".join(handed_in)]
    if absent:
        texts.append(f"{len(absent)} more handed in nothing: {', '.join(absent)}")
    for text in texts:
        for line in textwrap.wrap(printable_text(text), WIDTH):
            click.echo(f"    {line}")


def _print_log(book: Gradebook) -> None:
    """Print every command that gave or took back points."""
    from gpudojo.classes.overrides import SET

    for entry in book.overrides.log:
        what = "undone"
        if entry.action == SET:
            what = f"{format_points(entry.points)}  {entry.comment}".rstrip()
        line = f"{entry.at[:19]}  {entry.by}  {entry.student}  {entry.item}  {what}"
        click.echo(printable_text(line))
    if not book.overrides.log:
        click.echo("Nothing was overridden yet.")


def _print_items(book: Gradebook) -> None:
    """Print the names of all exercises and checks, and their points."""
    for exercise in _largest_row(book).exercises:
        click.echo(f"{format_points(exercise.max_score):>8}  {exercise.exercise}")
        for check in exercise.checks:
            name = check.id.partition("::")[2]
            click.echo(f"{format_points(check.max_points):>8}    {name}")
