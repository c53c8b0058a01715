"""The commands `dojo reset` and `dojo solution`: an exercise's file from the beginning, and at the
end.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpudojo.cli.single_options import StrictCommand
from gpudojo.grading.references import reference_of
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS, read_shipped_evidence
from gpudojo.model.errors import NoReference, suggest_name
from gpudojo.model.results import sum_points
from gpudojo.model.results_file import format_points, replacing_file

if TYPE_CHECKING:
    from gpudojo.watch.course import Course, ExerciseWork

KEPT_SUFFIX: Final = ".bak"

FOLDER = click.argument("folder", type=click.Path(exists=True, path_type=Path), default=Path())


@click.command(cls=StrictCommand)
@click.argument("number")
@FOLDER
def reset(number: str, folder: Path) -> None:
    """Give an exercise's file back as it was handed out; your file is kept beside it.

    NUMBER is that of the exercise, such as 04, or the name of a file or function. FOLDER is where
    the exercises are (default: here).
    """
    course, work = _find_work(number, folder)
    stub = _stub_of(course, work)
    if _text_of(work.path) == stub:
        click.echo(f"{work.path.name} is as it was handed out already.")
        return
    kept = None
    if work.path.exists():
        kept = _free_name_beside(work.path)
        work.path.rename(kept)
    with replacing_file(work.path) as file:
        file.write(stub.encode())
    click.echo(f"{work.path} is as it was handed out.")
    if kept is not None:
        click.echo(f"What you had is in {kept}.")


@click.command(cls=StrictCommand)
@click.argument("number")
@FOLDER
def solution(number: str, folder: Path) -> None:
    """Show a model solution of an exercise, once your file has all of its points.

    NUMBER is that of the exercise, such as 04, or the name of a file or function. FOLDER is where
    the exercises are (default: here).
    """
    _, work = _find_work(number, folder)
    try:
        reference = reference_of(work.path)
    except NoReference:
        raise click.ClickException(
            "there are no model solutions here: exercises are handed out without them. "
            f"Your teacher has them. What {work.exercise.number} is about: "
            f"dojo lesson {work.exercise.number}"
        ) from None
    points, most = _grade(work)
    if points < most:
        reached = f"{format_points(points)} of {format_points(most)} points"
        raise click.ClickException(
            f"{work.path.name} has {reached}. The model solution is shown when it has all of "
            f"them; what is missing: pytest {work.path}"
        )
    _print_code(_without_markers(reference.read_text(encoding="utf-8")))


def _find_work(name: str, folder: Path) -> tuple[Course, ExerciseWork]:
    """The exercises in a folder, and the one that is meant by a name.

    A name is a number, a stem, the name or path of a file, or a function. Raises NoExercises where
    there are none, ClickException where none has that name, and BadDay.
    """
    from gpudojo.watch.course import Course

    if Path(name).is_file() and folder == Path():
        folder = Path(name).parent
    course = Course(folder)
    stem = Path(name).stem
    names = []
    for work in course.works:
        number = work.exercise.number
        if stem in (number, number.lstrip("0"), work.stem, *work.names):
            return course, work
        names += [work.stem, *work.names]
    hint = suggest_name(stem, names, "")
    if not hint:
        hint = f"; there are: {', '.join(work.exercise.number for work in course.works)}"
    raise click.ClickException(f"there is no exercise {name}{hint}")


def _stub_of(course: Course, work: ExerciseWork) -> str:
    """The text of an exercise's file as it was handed out.

    It is made from the reference, or is in the release. Raises ClickException where neither is
    here, BadMarkers, and BadEvidence for a release that cannot be read.
    """
    from gpudojo.release.stubs import stub_of

    try:
        reference = reference_of(work.path)
    except NoReference:
        shipped = read_shipped_evidence(course.day)
        stub = None
        if shipped is not None:
            stub = shipped.stub_of(work.stem)
        if stub is None:
            raise click.ClickException(
                f"{work.path.name} as it was handed out is not here: "
                "get it from where you got the exercises"
            ) from None
        return stub
    return stub_of(reference.read_text(encoding="utf-8"), str(reference))


def _text_of(path: Path) -> str | None:
    """The text of a file. Returns None where it is missing or is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _free_name_beside(path: Path) -> Path:
    """A path beside a file that does not exist: its name with ".bak", or ".bak2" and so on."""
    number = 1
    kept = path.with_name(f"{path.name}{KEPT_SUFFIX}")
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}{KEPT_SUFFIX}{number}")
    return kept


def _grade(work: ExerciseWork) -> tuple[float, float]:
    """The points of an exercise's file, graded now, and how many there are.

    Student code runs in this process; what it prints is dropped, and breakpoints do not stop.
    Raises DojoError and KeyboardInterrupt.
    """
    from gpudojo.grading.engine import FileGrader
    from gpudojo.grading.limits import DEFAULT_SECONDS, Limits

    grader = FileGrader(work.path, "auto", PUBLIC_SEEDS[0])
    limits = Limits(seconds=DEFAULT_SECONDS, shared=True)
    points = []
    most = []
    for function in work.exercise.functions:
        with contextlib.redirect_stdout(io.StringIO()), _without_breakpoints():
            results = grader.results_of(work.exercise, function, limits)
        points += [result.points for result in results]
        most += [result.max_points for result in results]
    return sum_points(points), sum_points(most)


@contextlib.contextmanager
def _without_breakpoints() -> Iterator[None]:
    before = sys.breakpointhook
    sys.breakpointhook = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        sys.breakpointhook = before


def _without_markers(source: str) -> str:
    """The text of a reference, up to what runs only as a script, without what makes it a stub."""
    from gpudojo.grading.bindings import is_demo
    from gpudojo.release.stubs import BEGIN, END, INSTEAD

    end = None
    for statement in ast.parse(source).body:
        if is_demo(statement):
            end = statement.lineno - 1
            break
    lines = []
    for line in source.splitlines()[:end]:
        text = line.strip()
        if text not in (BEGIN, END) and not text.startswith(INSTEAD):
            lines.append(line)
    return "\n".join(lines).rstrip()


def _print_code(code: str) -> None:
    """Print Python code: in a terminal in its colours, in a file as it is."""
    from rich.console import Console
    from rich.syntax import Syntax

    console = Console()
    if not console.is_terminal:
        click.echo(code)
        return
    console.print(Syntax(code, "python", theme="ansi_dark", background_color="default"))
