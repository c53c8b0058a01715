"""`dojo new`, `dojo lint` and `dojo sample`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from gpudojo.authoring import sample_class
from gpudojo.authoring.new import (
    Plan,
    Surroundings,
    day_files,
    exercise_files,
    find_surroundings,
    write_new,
)
from gpudojo.cli.options import (
    FOLDER,
    count_of_processors,
    explain_write_errors,
    find_reference,
    find_repository,
    root_option,
    with_day_and_root,
)
from gpudojo.model.catalogue import exercises_of

if TYPE_CHECKING:
    from gpudojo.authoring.fairness import FairnessRow
    from gpudojo.authoring.lint import LintRow


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
@root_option
def exercise(
    day: str, name: str, functions: str | None, points: int, title: str | None, root: Path | None
) -> None:
    """Make the exercise NAME, such as brightest_sprite, as the next one of DAY."""
    names: tuple[str, ...] = ()
    if functions is not None:
        names = tuple(function.strip() for function in functions.split(","))
    plan = Plan(day, name, names, points, title)
    _write_files(root, lambda known: exercise_files(plan, known))
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
@root_option
def day_(name: str, title: str | None, exercises: int, points: int, root: Path | None) -> None:
    """Make the day NAME, such as day9, without exercises."""
    _write_files(root, lambda known: day_files(name, known, title, exercises, points))
    click.echo(f"Make its first exercise with: dojo new exercise {name} NAME")


def _write_files(
    root: Path | None, make_files: Callable[[Surroundings], dict[str, str | None]]
) -> None:
    """Write new files, and folders (None), into the repository, all or nothing; print the paths.

    Raises ClickException where there is no repository, and CannotBegin where something is there
    already or cannot be made.
    """
    root = (root or find_repository()).resolve()
    is_here = Path.cwd() == root
    for path in write_new(root, make_files(find_surroundings(root))):
        click.echo(f"written: {path if is_here else root / path}")


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
@with_day_and_root
def sample(folder: Path, students: int, seed: int, day: str, root: Path | None) -> None:
    """Make a sample class in FOLDER from the right and wrong solutions of this repository."""
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is not empty")
    with explain_write_errors(folder):
        corpus = sample_class.read_corpus(root or find_repository(), day)
        folder.mkdir(parents=True, exist_ok=True)
        for submission in sample_class.sample_submissions(corpus, students, seed):
            sample_class.hand_in(submission, folder)
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
@with_day_and_root
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
    """Check that a day is ready for students: points, hints, references, right and wrong
    solutions.
    """
    if (only or limit or jobs or out) and not mutants:
        raise click.UsageError("--exercise, --limit, --jobs and --out go with --mutants")
    root = root or find_repository()
    if exercises_of(day):
        find_reference(root, day)  # raises where there is none
    if mutants:
        out = out or root / "build" / "mutants"
        has_problems = _grade_mutants(day, root, only, limit, jobs or count_of_processors(), out)
    else:
        has_problems = _examine_day(day, root, quick)
    if has_problems:
        raise SystemExit(1)


def _examine_day(day: str, root: Path, quick: bool) -> bool:
    """Print what is wrong with a day; True if it is not ready for students."""
    # Only here: `dojo new` does not need the grading engine.
    from gpudojo.authoring.lint import lint_day

    report = lint_day(day, root, quick)
    console = Console(highlight=False)
    headings = ("points", "functions", "checks", "wrong")
    table = _make_table(f"dojo lint: {day}", console, headings, 13)
    table.add_column("result", no_wrap=True, min_width=10)
    for row in report.rows:
        numbers = (row.points, row.functions, row.checks, row.wrong)
        table.add_row(row.stem, *(f"{number:g}" for number in numbers), _describe_result(row))
    sums = [sum(getattr(row, name) for row in report.rows) for name in headings]
    _set_footer(table, ["total", *(f"{number:g}" for number in sums)])
    console.print(table)
    for finding in sorted(report.findings, key=lambda finding: finding.warning):
        kind = "problem"
        if finding.warning:
            kind = "warning"
        console.print(f"{kind}: {finding.exercise}: {finding.text}", markup=False, soft_wrap=True)
    return bool(report.problems)


def _describe_result(row: LintRow) -> str:
    """Whether an exercise is ready, with Rich's markup."""
    problems = sum(not finding.warning for finding in row.findings)
    if problems == 1:
        return "[red]1 problem[/]"
    if problems:
        return f"[red]{problems} problems[/]"
    if row.notes:
        return "[yellow]unfinished[/]"
    return "[green]ok[/]"


def _make_table(title: str, console: Console, headings: tuple[str, ...], more: int = 0) -> Table:
    """A table with a row for each exercise, whose name is shortened where the terminal is narrow.

    `more`: how wide columns are that are added later.
    """
    table = Table(title=title, title_justify="left", show_footer=True)
    room = console.width - more - sum(len(heading) + 3 for heading in headings) - 4
    table.add_column("exercise", no_wrap=True, max_width=max(room, len("exercise")))
    for heading in headings:
        table.add_column(heading, justify="right", min_width=len(heading))
    return table


def _set_footer(table: Table, texts: Sequence[str]) -> None:
    """Set the last line of the first columns."""
    for column, text in zip(table.columns, texts, strict=False):
        column.footer = text


def _grade_mutants(
    day: str, root: Path, only: tuple[str, ...], limit: int | None, jobs: int, out: Path
) -> bool:
    """Grade mutants and rewrites, and print how many are judged wrongly; True if any is.

    Writes `alive.toml` into `out`. After Ctrl-C the command ends with 130. Raises ClickException
    on Windows, and UsageError for a name that no exercise has.
    """
    if not hasattr(os, "fork"):
        raise click.ClickException(
            "--mutants grades a class, which needs Linux or macOS; on Windows, use WSL"
        )
    from gpudojo.authoring import fairness
    from gpudojo.classes.display import Display

    exercises = [each for each in exercises_of(day) if not only or each.stem.startswith(only)]
    if not exercises:
        raise click.UsageError(f"{day} has no exercise that begins with {' or '.join(only)}")
    # A line of a table for each exercise.
    console = Console(highlight=False)
    headings = ("mutants", "dead", "equivalent", "alive", "rewrites", "failing")
    table = _make_table(f"dojo lint --mutants: {day}", console, headings)
    sums: Counter[str] = Counter()
    problems = []
    survivors = ""
    for exercise in exercises:
        console.print(exercise.stem, style="bold")
        try:
            with Display(console) as display:
                row = fairness.examine_exercise(day, exercise, root, out, display, jobs, limit)
        except KeyboardInterrupt:
            click.echo("\nStopped. Run the same command again to resume.", err=True)
            raise SystemExit(130) from None
        numbers = _numbers_of_variants(row)
        sums.update(numbers)
        table.add_row(row.stem, *(str(numbers[heading]) for heading in headings))
        problems += _problems_of_variants(row)
        survivors += fairness.entries_for_alive_mutants(row)
    _set_footer(table, ["total", *(str(sums[heading]) for heading in headings)])
    # The table, what is wrong, and a file to begin with where mutants are alive.
    console.print(table)
    for text in problems:
        console.print(f"problem: {text}", markup=False, soft_wrap=True)
    with explain_write_errors(out):
        (out / "alive.toml").write_text(survivors, encoding="utf-8")
    return bool(problems)


def _numbers_of_variants(row: FairnessRow) -> dict[str, int]:
    """The numbers of one exercise, by heading."""
    return {
        "mutants": row.mutants,
        "dead": row.mutants - len(row.equivalent) - len(row.alive),
        "equivalent": len(row.equivalent),
        "alive": len(row.alive),
        "rewrites": row.rewrites,
        "failing": len(row.failing),
    }


def _problems_of_variants(row: FairnessRow) -> list[str]:
    """Findings, mutants that are alive and rewrites that fail, in sentences with their changes."""
    problems = [f"{finding.exercise}: {finding.text}" for finding in row.findings]
    for mutant in row.alive:
        functions = ", ".join(mutant.functions)
        problems.append(
            f"{row.stem}: a mutant of {mutant.solution} is alive ({mutant.kind}, {functions}):\n"
            f"{mutant.diff}"
        )
    for rewrite, check in row.failing:
        problems.append(
            f"{row.stem}: a rewrite of {rewrite.solution} fails ({rewrite.kind}): "
            f"{check.id}: {check.message}\n{rewrite.diff}"
        )
    return problems
