"""`dojo init` and `dojo override`."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpudojo.cli.options import FOLDER, THAT_FILE, which_day, writing
from gpudojo.model.errors import BadClass, BadFile, printable_text, suggest_name
from gpudojo.model.results import SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import format_points

if TYPE_CHECKING:
    from gpudojo.classes.gradebook import Gradebook
    from gpudojo.classes.participants import Participant
    from gpudojo.classes.store import LogEntry


@click.command()
@click.argument("folder", type=FOLDER, default=Path())
@which_day
def init(folder: Path, day: str) -> None:
    """Write a course file, course.toml, into FOLDER (here by default), beside the submissions.

    It shows every setting: weights, points, deadline, extensions, groups, items graded by hand. Where there is one, it
    is checked.
    """
    from gpudojo.classes.course_file import FILE_NAME, load_course, write_template
    from gpudojo.classes.roster import read_roster
    from gpudojo.model import catalogue

    path = folder / FILE_NAME
    if not path.exists():
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_template(path, day, catalogue.exercises_of(day))
        click.echo(
            f"{path} written. Change what you need, and run `dojo init {folder}` again to check it."
        )
        return
    rules = load_course(path)
    exercises = catalogue.exercises_of(rules.day or day)
    chosen = rules.worth_by_exercise(exercises)
    people = read_roster(rules.roster, rules.zone) if rules.roster else None
    said = [f"{len(chosen)} of {len(exercises)} exercises"]
    said += [f"out of {rules.points:g} points"] if rules.points else []
    said += [f"due {rules.deadline:%Y-%m-%d %H:%M %Z}"] if rules.deadline else []
    said += [rules.late.describe()] if rules.late.penalty else []
    counts = {
        "extension": rules.extensions,
        "group": rules.groups,
        "item to grade by hand": rules.by_hand,
    }
    for what, some in counts.items():
        one, _, rest = what.partition(" ")
        said += [f"{len(some)} {one}{'s' * (len(some) != 1)} {rest}".strip()] * bool(some)
    said += [f"{len(people.rows)} students on the roster"] if people else []
    click.echo(f"{path} is valid: {', '.join(said)}.")
    if rules.late.penalty and rules.deadline is None:
        click.echo(
            "note: there is no deadline: only what a platform marks as late costs points", err=True
        )
    for _, early in rules.useless_extensions():
        click.echo(f"note: {printable_text(early)}", err=True)
    for name in [
        *rules.extensions,
        *(member for members in rules.groups.values() for member in members),
    ]:
        found = people.match(name, name) if people else set()
        if people and len(found) > 1:
            ids = ", ".join(sorted(people.rows[row].id for row in found))
            click.echo(
                f"note: {len(found)} on the roster are called {printable_text(name)!r}: write {ids}",
                err=True,
            )
        if people and not found:
            near = suggest_name(
                name,
                [one for row in people.rows for one in (row.name, row.id, row.email, row.github)],
                "",
            )
            click.echo(
                f"note: nobody on the roster is called {printable_text(name)!r}{near}", err=True
            )


HERE: Final = "The folder that `dojo grade --out` made (default: this one, or the only one in it)."


@click.command()
@click.argument("words", nargs=-1, metavar="[STUDENT] [CHECK|EXERCISE]")
@click.option("--points", "wanted", metavar="POINTS", help="The points to give.")
@click.option("--comment", default="", help="The reason; the student reads it.")
@click.option(
    "--all", "everyone", is_flag=True, help="For all who handed something in, instead of STUDENT."
)
@click.option(
    "--from",
    "file",
    type=THAT_FILE,
    help="Many at once: a CSV file with student, item, points, comment.",
)
@click.option("--undo", is_flag=True, help="Take one back; without words, undo the last command.")
@click.option("--log", is_flag=True, help="Show who gave and took back what, and when.")
@click.option("--items", is_flag=True, help="List what can be overridden, and what it is worth.")
@click.option("--by", default=None, help="Who gives it (default: your login name).")
@click.option("--out", type=FOLDER, help=HERE)
def override(
    words: tuple[str, ...],
    wanted: str | None,
    comment: str,
    everyone: bool,
    file: Path | None,
    undo: bool,
    log: bool,
    items: bool,
    by: str | None,
    out: Path | None,
) -> None:
    """Give points in place of the grader's, for a check, a whole exercise, or an item that people grade.

    STUDENT is an id, a name, an e-mail address or the name of the submission. A check may be named by its end, such as
    train_epoch::runs, and an exercise by its number. What is given survives regrading. Without words, the overrides are
    listed, and what is still to grade by hand.
    """
    if sys.platform == "win32":
        raise click.ClickException("a class needs Linux or macOS; on Windows, use WSL")
    from gpudojo.classes.class_opening import course_of_last_run, open_gradebook
    from gpudojo.classes.class_state import load_state, utc_now
    from gpudojo.classes.store import EVERYONE, SET, UNDO, LogEntry, Store, points_in

    _refuse_mixing(
        {"--log": log, "--items": items, "--from": file is not None, "--undo": undo},
        {
            "STUDENT": bool(words),
            "--all": everyone,
            "--points": wanted is not None,
            "--comment": bool(comment),
        },
    )
    points = None if wanted is None else points_in(wanted, "--points")
    folder = _class_folder(out)
    if not load_state(folder).students:
        raise click.ClickException(f"{folder} has no results yet; run `dojo grade` first")
    store = Store(folder)
    store.open()
    try:
        state = load_state(folder)  # a `dojo grade` may have ended since
        book = open_gradebook(folder, state, course_of_last_run(folder, state))
        who = by or _login()
        at = utc_now("microseconds")  # tells commands apart
        if log:
            _show_log(book)
        elif items:
            _show_items(book)
        elif file is not None:
            if not (given := list(_from_file(book, file))):
                raise BadFile(str(file), None, "no line of it has points")
            _give(book, [LogEntry(at, who, SET, *entry) for entry in given])
        elif undo and not words and not everyone:
            last = book.overrides.last()
            if not last:
                raise click.ClickException(
                    "the last command gave nothing; to take one back, name STUDENT and CHECK"
                )
            _give(book, _taken_back(book, last, at, who))
        elif not words and not everyone:
            _show(book)
        else:
            if len(words) != 2 - everyone:
                raise click.UsageError(
                    "give STUDENT and CHECK or EXERCISE, or --all and one of these"
                )
            if points is None and not undo:
                raise click.UsageError("--points is missing")
            unit = None if everyone else _unit(book, words[0])
            item, most = _item(book, unit, words[-1])
            if points is not None and points > most:
                raise click.ClickException(f"{item} is worth {most:g} points, not {points:g}")
            student, key = (unit.name, unit.keys[0]) if unit else ("everyone", EVERYONE)
            if undo and (held := _held(book, unit, item)) is None:
                raise click.ClickException(f"{student} has no override for {item}")
            elif undo and held is not None:
                key = held.key
            _give(
                book,
                [
                    LogEntry(
                        at, who, UNDO if undo else SET, student, item, points or 0.0, comment, key
                    )
                ],
            )
    finally:
        store.close()


def _refuse_mixing(asked: Mapping[str, bool], given: Mapping[str, bool]) -> None:
    """Raises UsageError where a word or option would be left out."""
    used = [name for name, there in (*asked.items(), *given.items()) if there]
    if not any(asked.values()):
        if used and not given["STUDENT"] and not given["--all"]:
            raise click.UsageError("STUDENT and CHECK or EXERCISE are missing")
        return
    fitting = ("STUDENT", "--all") if used[0] == "--undo" else ()
    if unused := [name for name in used[1:] if name not in fitting]:
        raise click.UsageError(f"{used[0]} does not go with {unused[0]}")


def _taken_back(book: Gradebook, last: Sequence[LogEntry], at: str, who: str) -> list[LogEntry]:
    """What undoes a command: all that it gave is taken back, and what held before is given again."""
    held = book.overrides.before(last[0].at)
    before = [held[entry.key, entry.item] for entry in last if (entry.key, entry.item) in held]
    return [
        *(entry._replace(at=at, by=who, action="undo") for entry in last),
        *(entry._replace(at=at, by=who) for entry in before),
    ]


def _held(book: Gradebook, unit: Participant | None, item: str) -> LogEntry | None:
    return book.overrides.of(unit.keys if unit else ["*"], everyone=False).get(item)


def _give(book: Gradebook, entries: Sequence[LogEntry]) -> None:
    """Write the log and the results, and say what became of the students."""
    from gpudojo.classes.result_writing import RULES_CHANGED, write_results

    keys = {entry.key for entry in entries}
    units = [unit for unit in book.participants() if keys & {*unit.keys, "*"}]
    before = {unit.name: book.row(unit) for unit in units}
    book.overrides.add(entries)
    path, tally = write_results(book, changed=before)
    changed = 0
    for unit in units:
        row = book.row(unit)
        old = before[unit.name]
        changed += row.final != old.final
        if row.final != old.final and changed <= 20:
            points = f"{format_points(old.final.points)} → {format_points(row.final.points)} of {format_points(row.final.max_points)}"
            if row.scaled or old.scaled:  # others than what was given
                points += f" ({format_points(old.score)} → {format_points(row.score)} of {format_points(row.max_score)} in the exercises)"
            click.echo(f"{printable_text(unit.full_name)}: {points}")
    several = f"{changed} of {len(units)} students' points changed." if len(units) != 1 else ""
    absent = sum(not unit.submissions and not keys & {*unit.keys} for unit in units)
    if absent and entries[0].action == "set":
        several += f" {absent} handed in nothing and got nothing: to give them points, name them."
    click.echo(
        several or ("" if changed else "The points are the same as before."),
        nl=bool(several or not changed),
    )
    if tally.settled:
        click.echo(RULES_CHANGED)
        for line in tally.settled[:20]:
            click.echo(f"  {printable_text(line)}")
    undo = (
        f" To undo it: dojo override --undo --out {book.out}" if entries[0].action == "set" else ""
    )
    click.echo(f"{path} and {book.overrides.path} written.{undo}")


def _show(book: Gradebook) -> None:
    units = book.participants()
    keys = {key for unit in units for key in unit.keys}
    held = {one for unit in units for one in book.overrides.of(unit.keys, everyone=False).values()}
    known = [one for one in book.overrides.current().values() if one in held or one.key not in keys]
    current = sorted(known, key=lambda entry: (entry.student, entry.item))
    for one in current:
        why = f"  {one.comment}" if one.comment else ""
        click.echo(
            printable_text(
                f"{one.student}  {one.item}  {format_points(one.points)}{why}  ({one.by}, {one.at[:10]})"
            )
        )
    if not current:
        click.echo("There are no overrides.")
    waiting: defaultdict[str, list[str]] = defaultdict(list)
    absent: defaultdict[str, list[str]] = defaultdict(list)
    for row in book.rows():
        for each in row.exercises:
            names = absent if row.status is SubmissionStatus.ABSENT else waiting
            names[each.exercise] += [row.called] * each.to_grade
    if any(waiting.values()):
        click.echo(
            "\nStill to grade by hand: STUDENT ITEM --points …, or --from a table of student,item,points,comment"
        )
    for item in book.course.by_hand:
        if people := waiting[item.name]:
            about = "; ".join(
                filter(None, (item.title, f"{format_points(item.points)} points", item.rubric))
            )
            click.echo(
                printable_text(
                    f"  {item.name} ({about}): {len(people)} student{'s' * (len(people) != 1)}"
                )
            )
            lines = [", ".join(people)]
            if others := absent[item.name]:
                lines.append(f"{len(others)} more handed in nothing: {', '.join(others)}")
            for line in (
                each for text in lines for each in textwrap.wrap(printable_text(text), 100)
            ):
                click.echo(f"    {line}")


def _show_log(book: Gradebook) -> None:
    for one in book.overrides.log:
        what = (
            f"{format_points(one.points)}  {one.comment}".rstrip()
            if one.action == "set"
            else "undone"
        )
        click.echo(printable_text(f"{one.at[:19]}  {one.by}  {one.student}  {one.item}  {what}"))
    if not book.overrides.log:
        click.echo("Nothing was overridden yet.")


def _show_items(book: Gradebook) -> None:
    for exercise in _whole_row(book).exercises:
        click.echo(f"{format_points(exercise.max_score):>8}  {exercise.exercise}")
        for check in exercise.checks:
            click.echo(f"{format_points(check.max_points):>8}    {check.id.partition('::')[2]}")


def _whole_row(book: Gradebook) -> SubmissionRow:
    """The row with the most checks: of a class, any that was graded will do."""
    rows = (book.row(unit) for unit in book.participants())
    return max(rows, key=lambda row: sum(len(exercise.checks) for exercise in row.exercises))


def _unit(book: Gradebook, name: str) -> Participant:
    """The student of a name; raises BadClass where nobody or several have it."""
    from gpudojo.classes.names import name_key

    units = book.participants()
    found = [unit for unit in units if unit.name == name] or [
        unit for unit in units if name_key(name) in unit.all_names
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadClass(
            f"{len(found)} students are called {name!r}: {', '.join(unit.name for unit in found)}"
        )
    partly = [unit.name for unit in units if any(name_key(name) in each for each in unit.all_names)]
    if partly:
        raise BadClass(
            f"no student is called {name!r}; names with it: {', '.join(partly[:8])}{', …' * (len(partly) > 8)}"
        )
    names = [one for unit in units for one in (unit.name, unit.display_name, *unit.all_names)]
    raise BadClass(f"no student is called {name!r}{suggest_name(name, names)}")


def _item(book: Gradebook, unit: Participant | None, name: str) -> tuple[str, float]:
    from gpudojo.classes.store import item_named

    return item_named(name, _whole_row(book) if unit is None else book.row(unit))


def _from_file(book: Gradebook, path: Path) -> Iterator[tuple[str, str, float, str, str]]:
    """Student, item, points, comment and key of each line; all are checked before one is given."""
    from gpudojo.classes.csv_tables import read_table
    from gpudojo.classes.store import EVERYONE, points_in

    (first, headings), *lines = read_table(path)
    columns = [heading.strip().casefold() for heading in headings]
    missing = {"student", "item", "points"} - set(columns)
    if missing:
        hint = next((suggest_name(heading, sorted(missing), "") for heading in columns), "")
        said = f"there is no column {min(missing)!r}; student, item and points are needed{hint}"
        raise BadFile(str(path), first, said)
    seen: dict[tuple[str, str], int] = {}
    for line, cells in lines:
        row = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
        if not row.get("points"):
            continue  # not graded yet
        if missing_cell := next((name for name in ("student", "item") if not row.get(name)), ""):
            raise BadFile(str(path), line, f"the {missing_cell} is missing")
        try:
            unit = None if row["student"] == EVERYONE else _unit(book, row["student"])
            item, most = _item(book, unit, row["item"])
        except BadClass as error:
            raise BadFile(str(path), line, str(error)) from None
        points = points_in(row["points"], str(path), line)
        if points > most:
            raise BadFile(str(path), line, f"{item} is worth {most:g} points, not {points:g}")
        student, key = (unit.name, unit.keys[0]) if unit else ("everyone", EVERYONE)
        if seen.setdefault((key, item), line) != line:
            raise BadFile(str(path), line, f"{item} of {student} is in line {seen[key, item]}, too")
        yield student, item, points, row.get("comment", ""), key


def _class_folder(out: Path | None) -> Path:
    from gpudojo.classes.class_state import STATE

    if out is not None:
        return out
    here = Path()
    found = [each for each in (here, *sorted(here.iterdir())) if (each / STATE).is_file()]
    if len(found) == 1:
        return found[0]
    which = f"; there are {', '.join(map(str, found))}" if found else ""
    raise click.ClickException(f"--out is missing: the folder that `dojo grade --out` made{which}")


def _login() -> str:
    with contextlib.suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return os.environ.get("USER", "unknown")
