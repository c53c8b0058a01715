"""`dojo init`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpudojo.cli.options import FOLDER, day_option, explain_write_errors
from gpudojo.cli.single_options import StrictCommand
from gpudojo.model.errors import printable_text
from gpudojo.model.results_file import count_and_noun, first_names

if TYPE_CHECKING:
    from gpudojo.classes.course_rules import CourseRules
    from gpudojo.classes.names import NamesOfPerson
    from gpudojo.classes.roster import Roster

MOST_EXERCISES: Final = 4  # that are named in a note


@click.command(cls=StrictCommand)
@click.argument("folder", type=FOLDER, default=Path())
@day_option
def init(folder: Path, day: str) -> None:
    """Write a course file, course.toml, into FOLDER (here by default), beside the submissions.

    It shows every setting: weights, points, deadline, extensions, groups, items graded by hand.
    Where there is one, it is checked.
    """
    from gpudojo.classes.class_state import STATE
    from gpudojo.classes.course_file import FILE_NAME, load_course, write_template
    from gpudojo.classes.roster_file import read_roster
    from gpudojo.model.catalogue import exercises_of

    path = folder / FILE_NAME
    if not path.exists():
        if (folder / STATE).is_file():
            raise click.ClickException(
                f"{folder} holds results of `dojo grade`; the course file lies beside the "
                "submissions: dojo init SUBMISSIONS"
            )
        is_new = not folder.exists()
        with explain_write_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_template(path, day, exercises_of(day))
        if is_new:
            click.echo(f"There was no folder {folder}: it was made.")
        click.echo(
            f"{path} written. Change what you need, and run `dojo init {folder}` again to check it."
        )
        return
    rules = load_course(path)
    roster = None
    if rules.rosters:
        roster = read_roster(rules.rosters, rules.zone)
    description = ", ".join(_describe_rules(rules, roster, day))
    click.echo(f"{path} is valid: {description}.")
    for note in _doubts_about_rules(rules, roster, day):
        click.echo(f"note: {note}", err=True)


def _describe_rules(rules: CourseRules, roster: Roster | None, day: str) -> list[str]:
    """What a course file says, as parts of a sentence.

    Raises BadFile for names of exercises that there are not, and BadDay where the day cannot be
    imported.
    """
    from gpudojo.model.catalogue import exercises_of

    exercises = exercises_of(rules.day or day)
    counted = rules.worth_by_exercise(exercises)
    parts = [f"{len(counted)} of {len(exercises)} exercises"]
    if rules.points:
        parts.append(f"out of {rules.points:g} points")
    if rules.deadline:
        parts.append(f"due {rules.deadline:%Y-%m-%d %H:%M %Z}")
    if rules.late.costs_points:
        parts.append(rules.late.describe())
    if rules.extensions:
        parts.append(_count_extensions(rules, roster))
    if rules.groups:
        parts.append(count_and_noun(len(rules.groups), "group"))
    if rules.by_hand:
        items = count_and_noun(len(rules.by_hand), "item")
        parts.append(f"{items} to grade by hand")
    if roster is not None:
        students = count_and_noun(len(roster.rows), "student")
        parts.append(f"{students} on the roster")
    return parts


def _count_extensions(rules: CourseRules, roster: Roster | None) -> str:
    """How many extensions there are, and how many of them are of one student on the roster."""
    from gpudojo.classes.names import find_people

    text = count_and_noun(len(rules.extensions), "extension")
    if roster is None:
        return text
    people = roster.names_of_all()
    clear = [name for name in rules.extensions if len(find_people(name, people)) == 1]
    if len(clear) < len(rules.extensions):
        text += f", {len(clear)} of them for one student on the roster"
    return text


def _exercises_left_out(rules: CourseRules, day: str) -> list[str]:
    """The exercises of the day that do not count. Raises BadDay where it cannot be imported.

    Raises BadFile for names of exercises that there are not.
    """
    from gpudojo.model.catalogue import exercises_of

    exercises = exercises_of(rules.day or day)
    counted = rules.worth_by_exercise(exercises)
    return [exercise.stem for exercise in exercises if exercise.stem not in counted]


def _doubts_about_rules(rules: CourseRules, roster: Roster | None, day: str) -> list[str]:
    """What is valid, and may be a mistake all the same.

    Raises BadDay where the day cannot be imported, and BadFile for names of exercises that there
    are not.
    """
    notes = []
    if rules.late.costs_points and rules.deadline is None:
        notes.append("there is no deadline: only what a platform marks as late costs points")
    left_out = _exercises_left_out(rules, day)
    if left_out:
        names = first_names(left_out, MOST_EXERCISES)
        doubt = f"what is not listed does not count: {names}"
        notes.append(str(rules.bad_setting(doubt, "exercises")))
    for extension in rules.useless_extensions():
        doubt = printable_text(extension.sentence)
        notes.append(str(rules.bad_setting(doubt, "extensions", extension.who)))
    if roster is not None:
        notes += roster.notes
        if rules.deadline is not None and not roster.files_with_dates:
            notes += roster.unused_dates
        settings = [("extensions", name, name) for name in rules.extensions]
        for group, members in rules.groups.items():
            settings += [("groups", group, member) for member in members]
        people = roster.names_of_all()
        for table, setting, name in settings:
            doubt = _doubt_about_name(name, roster, people)
            if doubt:
                notes.append(str(rules.bad_setting(doubt, table, setting)))
    return notes


def _doubt_about_name(name: str, roster: Roster, people: Mapping[int, NamesOfPerson]) -> str:
    """What to say of a name in a course file that nobody has, or several; empty if one has it.

    `people` has everybody's names, by the number of the row.
    """
    from gpudojo.classes.names import find_people, suggest_people

    matching = find_people(name, people)
    shown = printable_text(name)
    if len(matching) == 1:
        return ""
    if matching:
        ids = sorted(roster.rows[row].id_and_details for row in matching)
        listed = printable_text(" or ".join(ids))
        return f"{len(matching)} on the roster are called {shown!r}: write {listed}"
    hint = suggest_people(name, people.values(), "")
    return f"nobody on the roster is called {shown!r}{hint}"
