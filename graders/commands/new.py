"""How is `dojo new` spoken to? The commands that begin an exercise or a day."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graders.commands.options import which_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from graders.authoring import Surroundings


@click.group()
def new() -> None:
    """Begin an exercise or a day: every file there, and a note wherever work is left."""


@new.command()
@click.argument("day")
@click.argument("name")
@click.option("--functions", help="What students write, as in first,second (default: one, called NAME).")
@click.option("--points", default=5, show_default=True, type=click.IntRange(min=1), help="What it is worth.")
@click.option("--title", help="Its title (default: made of NAME).")
@which_root
def exercise(day: str, name: str, functions: str | None, points: int, title: str | None, root: Path | None) -> None:
    """Begin the exercise NAME, such as brightest_sprite, as the next one of DAY."""
    from graders.authoring import Plan, exercise_files

    words = () if functions is None else tuple(word.strip() for word in functions.split(","))
    _plant(root, lambda known: exercise_files(Plan(day, name, words, points, title), known))
    click.echo(f"Now, and after every step, this says what comes next: dojo lint --day {day}")


@new.command("day")
@click.argument("name")
@click.option("--title", help="Its title.")
@click.option("--exercises", default=12, show_default=True, type=click.IntRange(1, 99), help="How many there will be.")
@click.option("--points", default=100, show_default=True, type=click.IntRange(min=1), help="What all are worth.")
@which_root
def day_(name: str, title: str | None, exercises: int, points: int, root: Path | None) -> None:
    """Begin the day NAME, such as day9, without exercises yet."""
    from graders.authoring import day_files

    _plant(root, lambda known: day_files(name, known, title, exercises, points))
    click.echo(f"Its first exercise begins with: dojo new exercise {name} NAME")


def _plant(root: Path | None, files: Callable[[Surroundings], dict[str, str | None]]) -> None:
    from graders.authoring import plant, surroundings
    from graders.commands.options import repository
    from graders.errors import DojoError

    root = (root or repository()).resolve()
    try:
        for path in plant(root, files(surroundings(root))):
            click.echo(f"written: {path}")
    except DojoError as error:
        raise click.ClickException(str(error)) from error
