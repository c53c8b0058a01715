"""`dojo new` and `dojo sample`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudojo.cli.options import which_day, which_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudojo.authoring.new import Surroundings


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
    from gpudojo.authoring.new import Plan, exercise_files

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
    from gpudojo.authoring.new import day_files

    _plant(root, lambda known: day_files(name, known, title, exercises, points))
    click.echo(f"Its first exercise begins with: dojo new exercise {name} NAME")


def _plant(root: Path | None, files: Callable[[Surroundings], dict[str, str | None]]) -> None:
    from gpudojo.authoring.new import plant, surroundings
    from gpudojo.cli.options import repository
    from gpudojo.model.errors import DojoError

    root = (root or repository()).resolve()
    try:
        for path in plant(root, files(surroundings(root))):
            click.echo(f"written: {path}")
    except DojoError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--students", default=60, show_default=True, type=click.IntRange(min=1), help="How many submissions.")
@click.option("--seed", default=8, show_default=True, help="The same seed makes the same class.")
@which_day
@which_root
def sample(folder: Path, students: int, seed: int, day: str, root: Path | None) -> None:
    """Make a class of submissions in FOLDER, from this repository's own solutions, right and wrong."""
    from gpudojo.authoring import sample as sampling
    from gpudojo.cli.options import repository
    from gpudojo.model.errors import DojoError

    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is not empty")
    try:
        known = sampling.corpus(root or repository(), day)
        folder.mkdir(parents=True, exist_ok=True)
        for made in sampling.sample(known, students, seed):
            sampling.hand_in(made, folder)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error.strerror}") from error
    click.echo(f"{students} submissions in {folder}")
