"""`dojo new`, `dojo lint` and `dojo sample`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gpudojo.authoring import new as sampling
from gpudojo.authoring.new import (
    Plan,
    Surroundings,
    day_files,
    exercise_files,
    surroundings,
    write_new,
)
from gpudojo.cli.options import (
    FOLDER,
    day_and_root,
    processors,
    references,
    repository,
    which_root,
    writing,
)
from gpudojo.model.catalogue import exercises_of


@click.group()
def new() -> None:
    """Make the files of a new exercise or day, with a TODO wherever you have to write something."""


@new.command()
@click.argument("day")
@click.argument("name")
@click.option(
    "--functions", help="The functions that students write: first,second (default: NAME)."
)
@click.option(
    "--points", default=5, show_default=True, type=click.IntRange(min=1), help="Its points."
)
@click.option("--title", help="Its title (default: from NAME).")
@which_root
def exercise(
    day: str, name: str, functions: str | None, points: int, title: str | None, root: Path | None
) -> None:
    """Make the exercise NAME, such as brightest_sprite, as the next one of DAY."""
    words = () if functions is None else tuple(word.strip() for word in functions.split(","))
    _write(root, lambda known: exercise_files(Plan(day, name, words, points, title), known))
    click.echo(f"To see what to do next, run: dojo lint --day {day}")


@new.command("day")
@click.argument("name")
@click.option("--title", help="Its title.")
@click.option(
    "--exercises",
    default=12,
    show_default=True,
    type=click.IntRange(1, 99),
    help="The number of exercises.",
)
@click.option(
    "--points", default=100, show_default=True, type=click.IntRange(min=1), help="The day's points."
)
@which_root
def day_(name: str, title: str | None, exercises: int, points: int, root: Path | None) -> None:
    """Make the day NAME, such as day9, without exercises."""
    _write(root, lambda known: day_files(name, known, title, exercises, points))
    click.echo(f"Make its first exercise with: dojo new exercise {name} NAME")


def _write(root: Path | None, files: Callable[[Surroundings], dict[str, str | None]]) -> None:
    root = (root or repository()).resolve()
    inside = Path.cwd().is_relative_to(root)
    for path in write_new(root, files(surroundings(root))):
        click.echo(f"written: {path if inside else root / path}")


@click.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--students",
    default=60,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of submissions.",
)
@click.option("--seed", default=8, show_default=True, help="The same seed makes the same class.")
@day_and_root
def sample(folder: Path, students: int, seed: int, day: str, root: Path | None) -> None:
    """Make a sample class in FOLDER from the right and wrong solutions of this repository."""
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is not empty")
    with writing(folder):
        known = sampling.corpus(root or repository(), day)
        folder.mkdir(parents=True, exist_ok=True)
        for made in sampling.sample(known, students, seed):
            sampling.hand_in(made, folder)
    click.echo(f"{students} submissions in {folder}")


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="Trust the first lines of wrong solutions instead of grading them.",
)
@click.option(
    "--mutants",
    is_flag=True,
    help="Grade variants of the right solutions: mutants fail, rewrites pass.",
)
@click.option(
    "--exercise",
    "only",
    multiple=True,
    metavar="NAME",
    help="With --mutants: only exercises that begin so.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="With --mutants: at most so many of each exercise, and a third as many rewrites.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="With --mutants: how many at once.")
@click.option(
    "--out", type=FOLDER, help="With --mutants: where results are kept (default: build/mutants)."
)
@day_and_root
def lint(
    quick: bool,
    mutants: bool,
    only: tuple[str, ...],
    limit: int | None,
    jobs: int | None,
    out: Path | None,
    day: str,
    root: Path | None,
) -> None:
    """Check that a day is ready for students: points, hints, references, right and wrong solutions."""
    from gpudojo.authoring.lint import (
        lint as examine,
    )  # only here: `dojo new` does not need the grading engine

    if (only or limit or jobs or out) and not mutants:
        raise click.UsageError("--exercise, --limit, --jobs and --out go with --mutants")
    root = references(root, day)[0] if exercises_of(day) else root or repository()
    if mutants:
        _mutants(day, root, only, limit, jobs or processors(), out or root / "build" / "mutants")
        return
    report = examine(day, root, quick)
    console, headings = Console(highlight=False), ("points", "functions", "checks", "wrong")
    table = _table(f"dojo lint: {day}", console, headings, 13)
    table.add_column("result", no_wrap=True, min_width=10)
    for row in report.rows:
        problems = sum(not finding.warning for finding in row.findings)
        fine = "[yellow]unfinished[/]" if row.notes else "[green]ok[/]"
        verdict = f"[red]{problems} problem{'s' * (problems > 1)}[/]" if problems else fine
        numbers = (row.points, row.functions, row.checks, row.wrong)
        table.add_row(row.stem, *(f"{number:g}" for number in numbers), verdict)
    sums = [sum(getattr(row, name) for row in report.rows) for name in headings]
    for column, text in zip(
        table.columns, ["total", *(f"{number:g}" for number in sums)], strict=False
    ):
        column.footer = text
    console.print(table)
    for finding in sorted(report.findings, key=lambda finding: finding.warning):
        kind = "warning" if finding.warning else "problem"
        console.print(f"{kind}: {finding.exercise}: {finding.text}", markup=False, soft_wrap=True)
    if report.problems:
        raise SystemExit(1)


def _table(title: str, console: Console, headings: tuple[str, ...], more: int = 0) -> Table:
    """A table with a row for each exercise, whose name is shortened where the terminal is narrow.

    `more`: how wide columns are that are added later.
    """
    table = Table(title=title, title_justify="left", show_footer=True)
    room = console.width - more - sum(len(heading) + 3 for heading in headings) - 4
    table.add_column("exercise", no_wrap=True, max_width=max(room, len("exercise")))
    for heading in headings:
        table.add_column(heading, justify="right", min_width=len(heading))
    return table


def _mutants(
    day: str, root: Path, only: tuple[str, ...], limit: int | None, jobs: int, out: Path
) -> None:
    if not hasattr(os, "fork"):
        raise click.ClickException(
            "--mutants grades a class, which needs Linux or macOS; on Windows, use WSL"
        )
    from gpudojo.authoring import fairness
    from gpudojo.classes.display import Display

    console = Console(highlight=False)
    headings = ("mutants", "dead", "equivalent", "alive", "rewrites", "failing")
    table = _table(f"dojo lint --mutants: {day}", console, headings)
    sums = [0] * len(headings)
    problems = []
    survivors = ""
    exercises = [
        exercise for exercise in exercises_of(day) if not only or exercise.stem.startswith(only)
    ]
    if not exercises:
        raise click.UsageError(f"{day} has no exercise that begins with {' or '.join(only)}")
    for exercise in exercises:
        console.print(exercise.stem, style="bold")
        display = Display(console)
        try:
            with display:
                row = fairness.examine(day, exercise, root, out, display, jobs, limit)
        except KeyboardInterrupt:
            click.echo("\nStopped. Run the same command again to resume.", err=True)
            raise SystemExit(130) from None
        dead = row.mutants - len(row.equivalent) - len(row.alive)
        numbers = (
            row.mutants,
            dead,
            len(row.equivalent),
            len(row.alive),
            row.rewrites,
            len(row.failing),
        )
        sums = [one + other for one, other in zip(sums, numbers, strict=True)]
        table.add_row(row.stem, *map(str, numbers))
        problems += [f"{found.exercise}: {found.text}" for found in row.findings]
        problems += [
            f"{row.stem}: a mutant of {one.solution} is alive ({one.kind}, {', '.join(one.functions)}):\n{one.diff}"
            for one in row.alive
        ]
        problems += [
            f"{row.stem}: a rewrite of {one.solution} fails ({one.kind}): {check.id}: {check.message}\n{one.diff}"
            for one, check in row.failing
        ]
        survivors += fairness.as_entries(row)
    for column, text in zip(table.columns, ["total", *map(str, sums)], strict=True):
        column.footer = text
    console.print(table)
    for text in problems:
        console.print(f"problem: {text}", markup=False, soft_wrap=True)
    with writing(out):
        (out / "alive.toml").write_text(survivors, encoding="utf-8")
    if problems:
        raise SystemExit(1)
