"""`dojo init`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudojo.cli.options import FOLDER, day_option, explain_write_errors
from gpudojo.model.errors import printable_text, suggest_name
from gpudojo.model.results_file import count_and_noun

if TYPE_CHECKING:
    from gpudojo.classes.course_rules import CourseRules
    from gpudojo.classes.roster import Roster


@click.command()
@click.argument("folder", type=FOLDER, default=Path())
@day_option
def init(folder: Path, day: str) -> None:
    """Write a course file, course.toml, into FOLDER (here by default), beside the submissions.

    It shows every setting: weights, points, deadline, extensions, groups, items graded by hand.
    Where there is one, it is checked.
    """
    from gpudojo.classes.course_file import FILE_NAME, load_course, write_template
    from gpudojo.classes.roster_file import read_roster
    from gpudojo.model.catalogue import exercises_of

    path = folder / FILE_NAME
    if not path.exists():
        with explain_write_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_template(path, day, exercises_of(day))
        click.echo(
            f"{path} written. Change what you need, and run `dojo init {folder}` again to check it."
        )
        return
    rules = load_course(path)
    roster = None
    if rules.roster:
        roster = read_roster(rules.roster, rules.zone)
    description = ", ".join(_describe_rules(rules, roster, day))
    click.echo(f"{path} is valid: {description}.")
    for note in _doubts_about_rules(rules, roster):
        click.echo(f"note: {note}", err=True)


def _describe_rules(rules: CourseRules, roster: Roster | None, day: str) -> list[str]:
    """What a course file says; raises BadFile for names of exercises that there are not."""
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
        parts.append(count_and_noun(len(rules.extensions), "extension"))
    if rules.groups:
        parts.append(count_and_noun(len(rules.groups), "group"))
    if rules.by_hand:
        items = count_and_noun(len(rules.by_hand), "item")
        parts.append(f"{items} to grade by hand")
    if roster is not None:
        parts.append(f"{len(roster.rows)} students on the roster")
    return parts


def _doubts_about_rules(rules: CourseRules, roster: Roster | None) -> list[str]:
    """What is valid, and may be a mistake all the same."""
    notes = []
    if rules.late.costs_points and rules.deadline is None:
        notes.append("there is no deadline: only what a platform marks as late costs points")
    for extension in rules.useless_extensions():
        notes.append(printable_text(extension.sentence))
    if roster is not None:
        names = list(rules.extensions)
        for members in rules.groups.values():
            names += members
        for name in names:
            notes += _doubts_about_name(name, roster)
    return notes


def _doubts_about_name(name: str, roster: Roster) -> list[str]:
    """What to say of a name in a course file that nobody has, or several."""
    matching = roster.find_rows(name, name)
    shown = printable_text(name)
    if len(matching) == 1:
        return []
    if matching:
        ids = sorted(roster.rows[row].id for row in matching)
        return [f"{len(matching)} on the roster are called {shown!r}: write {', '.join(ids)}"]
    known_names = []
    for row in roster.rows:
        known_names += [row.name, row.id, row.email, row.github]
    hint = suggest_name(name, known_names, "")
    return [f"nobody on the roster is called {shown!r}{hint}"]
