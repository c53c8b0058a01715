"""`dojo new`, `dojo lint` and `dojo sample`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.table import Table

from gpudojo.authoring import sample_class
from gpudojo.authoring.new import (
    Plan,
    course_files,
    day_files,
    exercise_files,
    find_surroundings,
    write_new,
)
from gpudojo.authoring.signatures import split_signatures
from gpudojo.cli.options import (
    EXISTING_FOLDER,
    FOLDER,
    WholeNumberRange,
    count_of_processors,
    explain_write_errors,
    find_reference,
    find_repository,
    is_given_by_user,
    print_note,
    with_day_and_root,
)
from gpudojo.cli.single_options import StrictCommand, StrictGroup
from gpudojo.model.catalogue import exercises_of, registered_days
from gpudojo.model.courses import PROJECT_FILE, find_course, refuse_other_course
from gpudojo.model.errors import CannotBegin, DojoError
from gpudojo.model.results_file import count_and_noun, replacing_file

if TYPE_CHECKING:
    from gpudojo.authoring.fairness import FairnessRow
    from gpudojo.authoring.lint import LintReport, LintRow


# What a new repository often has already.
KEPT_FILES: Final = ("README.md", ".gitignore")
course_option = click.option(
    "--root", type=EXISTING_FOLDER, help="The folder of the course (default: here or above)."
)


@click.group(cls=StrictGroup)
def new() -> None:
    """Make the files of a new course, day or exercise, with a TODO wherever you have to write
    something.
    """


@new.command()
@click.argument("name")
@click.option("--day", default="day1", show_default=True, help="The name of its first day.")
@click.option("--title", help="The title of that day.")
def course(name: str, day: str, title: str | None) -> None:
    """Make a course in the current folder.

    It is the package NAME with a day for exercises, and what is needed around it.
    """
    root = Path.cwd()
    if find_course(root) is not None:
        raise CannotBegin(f"{root} is a course already; add a day with: dojo new day NAME")
    files = course_files(name, registered_days(), day, title)
    for path in KEPT_FILES:
        if (root / path).exists():
            del files[path]
            click.echo(f"kept as it is: {path}")
    _print_written(write_new(root, files), root)
    click.echo("Install it, so that every command finds it: pip install -e .")
    click.echo(f"Make its first exercise with: dojo new exercise {day} NAME")


@new.command()
@click.argument("day")
@click.argument("name")
@click.option(
    "--functions",
    metavar="LIST",
    help="The functions that students write, by name or as behind `def`: "
    "'crop(batch, size: int) -> Tensor; flip(batch)' (default: NAME).",
)
@click.option(
    "--points", default=5, show_default=True, type=WholeNumberRange(min=1), help="Its points."
)
@click.option("--title", help="Its title (default: from NAME).")
@course_option
def exercise(
    day: str, name: str, functions: str | None, points: int, title: str | None, root: Path | None
) -> None:
    """Make the next exercise of a day.

    NAME is its name without the number, such as brightest_sprite. The course is that of the current
    folder, or else of --root.
    """
    texts: tuple[str, ...] = ()
    if functions is not None:
        texts = split_signatures(functions)
    if root is None:
        refuse_other_course(day, Path.cwd())
    known = find_surroundings((root or Path.cwd()).resolve())
    files = exercise_files(Plan(day, name, texts, points, title), known)
    _print_written(write_new(known.root, files), known.root)
    if known.course is not None and day not in registered_days():
        click.echo(f"{day} is not installed yet; run: {known.course.how_to_install}")
    click.echo(f"To see what to do next, run: dojo lint --day {day}")


@new.command("day")
@click.argument("name")
@click.option("--title", help="Its title.")
@click.option(
    "--exercises", type=WholeNumberRange(1, 99), help="How many exercises it will have, for `lint`."
)
@click.option("--points", type=WholeNumberRange(min=1), help="How many points they will have.")
@course_option
def day_(
    name: str, title: str | None, exercises: int | None, points: int | None, root: Path | None
) -> None:
    """Make another day in this course.

    NAME is its name, such as day2; it has no exercises yet.
    """
    known = find_surroundings((root or Path.cwd()).resolve())
    files = day_files(name, known, title, exercises, points)
    project = None
    if known.course is not None:
        project = known.course.project_with(name, known.course.package_for(name))
    _print_written(write_new(known.root, files), known.root)
    if known.course is not None and project is not None:
        path = known.root / PROJECT_FILE
        with explain_write_errors(path), replacing_file(path) as file:
            file.write(project.encode())
        click.echo(f"changed: {PROJECT_FILE}; install it again: {known.course.how_to_install}")
    click.echo(f"Make its first exercise with: dojo new exercise {name} NAME")


def _print_written(paths: Sequence[str], root: Path) -> None:
    """Print the paths of new files, as they are seen from here."""
    is_here = Path.cwd() == root
    for path in paths:
        click.echo(f"written: {path if is_here else root / path}")


@click.command(cls=StrictCommand)
@click.argument("folder", type=FOLDER)
@click.option(
    "--students",
    default=60,
    show_default=True,
    type=WholeNumberRange(min=1),
    help="Number of submissions.",
)
@click.option("--seed", default=8, show_default=True, help="The same seed makes the same class.")
@with_day_and_root
def sample(folder: Path, students: int, seed: int, day: str, root: Path | None) -> None:
    """Make a sample class in FOLDER from the right and wrong solutions of this repository."""
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is not empty")
    with explain_write_errors(folder):
        corpus = sample_class.read_corpus(find_repository(day, root), day)
        folder.mkdir(parents=True, exist_ok=True)
        for submission in sample_class.sample_submissions(corpus, students, seed):
            sample_class.hand_in(submission, folder)
    click.echo(f"{students} submissions in {folder}")


@click.command(cls=StrictCommand)
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
    type=WholeNumberRange(min=1),
    help="With --mutants: at most so many of each exercise, and a third as many rewrites.",
)
@click.option("--jobs", type=WholeNumberRange(min=1), help="With --mutants: how many at once.")
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
    is_given = root is not None
    root = find_repository(day, root)
    if not is_given and root not in (Path.cwd(), *Path.cwd().parents):
        if not is_given_by_user(click.get_current_context(), "day"):
            raise click.UsageError(
                "there is no course in this folder or above it; go to the folder of yours, or name "
                f"an installed day, such as --day {day}"
            )
        print_note(f"there is no course in this folder or above it; this is {day} in {root}")
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
    """Print what is wrong with a day; True if it is not ready for students.

    With `quick`, wrong solutions are not graded. Raises BadDay where the day cannot be imported,
    and OSError.
    """
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
    table.columns[-1].footer = _describe_total(report)
    console.print(table)
    for finding in sorted(report.findings, key=lambda finding: finding.warning):
        kind = "problem"
        if finding.warning:
            kind = "warning"
        console.print(f"{kind}: {finding}", markup=False, soft_wrap=True)
    return bool(report.problems)


def _describe_result(row: LintRow) -> str:
    """Whether an exercise is ready, with Rich's markup."""
    problems = sum(not finding.warning for finding in row.findings)
    if problems:
        return f"[red]{count_and_noun(problems, 'problem')}[/]"
    if row.notes:
        return "[yellow]unfinished[/]"
    return "[green]ok[/]"


def _describe_total(report: LintReport) -> str:
    """Whether a day is ready, with Rich's markup. What concerns no single exercise counts, too."""
    if report.problems:
        return f"[red]{count_and_noun(len(report.problems), 'problem')}[/]"
    if report.unfinished:
        return "[yellow]unfinished[/]"
    if report.findings:
        return f"[yellow]{count_and_noun(len(report.findings), 'warning')}[/]"
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
    """Set the last line of the first columns; columns without a text keep theirs."""
    for column, text in zip(table.columns, texts, strict=False):
        column.footer = text


def _grade_mutants(
    day: str, root: Path, only: tuple[str, ...], limit: int | None, jobs: int, out: Path
) -> bool:
    """Grade mutants and rewrites, and print how many are judged wrongly; True if any is.

    `only` are beginnings of exercises' names, `limit` is how many of each. Writes `alive.toml` into
    `out`. An exercise that is unfinished is left out, and one that cannot be graded is a problem.
    After Ctrl-C the command ends with 130. Raises ClickException on Windows and where a file cannot
    be written, UsageError for a name that no exercise has, BadDay, and OSError.
    """
    if not hasattr(os, "fork"):
        raise click.ClickException(
            "--mutants grades a class, which needs Linux or macOS; on Windows, use WSL"
        )
    from gpudojo.authoring import fairness
    from gpudojo.authoring.lint import unfinished_notes
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
    unfinished = []
    survivors = ""
    for exercise in exercises:
        if unfinished_notes(day, exercise, root):
            unfinished.append(exercise.stem)
            continue
        console.print(exercise.stem, style="bold")
        try:
            with Display(console) as display:
                row = fairness.examine_exercise(day, exercise, root, out, display, jobs, limit)
        except KeyboardInterrupt:
            click.echo("\nStopped. Run the same command again to resume.", err=True)
            raise SystemExit(130) from None
        except DojoError as error:  # what was graded of the others is told all the same
            problems.append(f"{exercise.stem}: it cannot be graded: {error}")
            continue
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
    for stem in unfinished:
        text = f"{stem}: it is unfinished, and was left out; see: dojo lint"
        console.print(f"warning: {text}", markup=False, soft_wrap=True)
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
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
