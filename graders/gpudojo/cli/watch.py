"""The commands of students: `dojo watch`, `lesson`, `run`, `estimate` and `doctor`.

A command imports what it alone needs when it is used.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType
from virtual_cuda.hooks import DEVICE_CHOICES, REAL_GPUS

from gpudojo import __version__
from gpudojo.cli import Interrupted
from gpudojo.cli.options import (
    FILE,
    WholeNumberRange,
    count_of_processors,
    day_option,
    explain_write_errors,
)
from gpudojo.cli.single_options import StrictCommand
from gpudojo.model import catalogue
from gpudojo.model.errors import DojoError, suggest_name
from gpudojo.model.exercise import Exercise
from gpudojo.model.lessons import lesson_of, lesson_path
from gpudojo.model.results_file import replacing_file

if TYPE_CHECKING:
    from gpudojo.watch.course import Course, ExerciseWork
    from gpudojo.watch.session import Event


@click.command(
    # The options are those of `python -m virtual_cuda`, which reads them; so is `--help`.
    add_help_option=False,
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    },
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Run a script on a virtual GPU."""
    from virtual_cuda.hooks import run_script

    try:
        sys.exit(run_script(arguments, "dojo run"))
    except KeyboardInterrupt:
        raise Interrupted from None


@click.command(
    # The options are those of `python -m virtual_cuda estimate`, which reads them.
    add_help_option=False,
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": [],
    },
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def estimate(arguments: tuple[str, ...]) -> None:
    """Say how much memory and time a script needs on a GPU, without one."""
    from virtual_cuda.hooks import run_estimate

    try:
        sys.exit(run_estimate(arguments, "dojo estimate"))
    except KeyboardInterrupt:
        raise Interrupted from None


FULL_SCREEN_NEEDS = "The full-screen app needs two more packages: pip install 'gpudojo[watch]'"


@click.command(cls=StrictCommand)
@click.argument("path", type=click.Path(exists=True, path_type=Path), default=Path())
@click.option("--plain", is_flag=True, help="Print lines instead of showing a full-screen app.")
@click.option(
    "--hints",
    default=1,
    show_default=True,
    metavar="N",
    type=WholeNumberRange(min=0),
    help="With --plain: show the first N hints.",
)
@click.option(
    "--bench",
    default="auto",
    type=click.Choice(DEVICE_CHOICES),
    help="The device that your code runs on.",
)
def watch(path: Path, plain: bool, hints: int, bench: str) -> None:
    """Grade what you save, at once, and show the first thing to fix.

    PATH is the folder of the exercises, or one of them (default: the exercises here).
    """
    from gpudojo.watch.course import Course
    from gpudojo.watch.session import has_full_screen

    course = Course(path)
    _refuse_missing_device(bench)
    is_dumb = os.environ.get("TERM") == "dumb"
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb
    note = ""
    if is_terminal and not plain:
        if has_full_screen():
            from gpudojo.watch.app import run_app

            run_app(course, bench)
            return
        note = FULL_SCREEN_NEEDS
    LinePrinter(course, bench, hints).run(note)


def _refuse_missing_device(bench: str) -> None:
    """Raises ClickException for a real device that this machine does not have."""
    if bench not in REAL_GPUS:
        return
    from virtual_cuda.errors import NoSuchDevice
    from virtual_cuda.hooks import device_count  # only here: it needs torch

    if not device_count(bench):
        raise click.ClickException(f"--bench {bench}: {NoSuchDevice(bench)}")


class LinePrinter:
    """`dojo watch` in line mode: prints each verdict below the last one, until Ctrl-C."""

    def __init__(self, course: Course, kind: str, hints: int) -> None:
        """Prepare the session; nothing is graded yet.

        `kind` is that of the device, `hints` how many hints of a failure are shown.
        """
        from gpudojo.watch.session import Session

        self.course = course
        self.hints = hints
        self.console = Console(highlight=False)
        self.session = Session(course, self._show_verdict, kind)

    def run(self, note: str) -> None:
        """Grade what is there, and then what is saved; a note, if there is one, comes first.

        Returns after Ctrl-C. Raises BadDay or OSError where the day's own files cannot be read.
        """
        title = f"{self.course.title}: {self.course.folder}"
        self.console.print(title, markup=False, soft_wrap=True)
        if note:
            self.console.print(note, markup=False)
        self.console.print(
            "First what is here now, then what you save. Ctrl-C ends this.", markup=False
        )
        with contextlib.suppress(KeyboardInterrupt):
            self.session.handle_events()
        from gpudojo.watch import view

        self.console.print(view.last_line(self.course), markup=False, soft_wrap=True)

    def _show_verdict(self, event: Event, work: ExerciseWork) -> None:
        """Print what keeps the session from grading; for a verdict, what to fix and the score."""
        from gpudojo.watch import view

        session = self.session
        if session.trouble:
            self.console.print(f"cannot grade: {session.trouble}", style="red", markup=False)
        if event != "verdict":
            return
        title = f"{work.path.name}, {time.strftime('%H:%M:%S')}"
        if session.saved_at:
            title += f", graded in {session.took:.2f} s"
        self.console.rule(title, characters="-", align="left")
        self._print_parts(
            view.fix_panel(self.course, self.hints, f"--hints {self.hints + 1}", dark=True),
            view.aside_panel(self.course),
            view.score_line(self.course),
        )

    def _print_parts(self, *parts: RenderableType) -> None:
        """Print parts below each other; to a file, without the spaces that fill a line."""
        if self.console.is_terminal:
            self.console.print(*parts, sep="\n")
            return
        with self.console.capture() as captured:
            self.console.print(*parts, sep="\n")
        for line in captured.get().splitlines():
            self.console.file.write(f"{line.rstrip()}\n")
        self.console.file.flush()


@click.command(cls=StrictCommand)
@click.argument("number", required=False)
@click.option(
    "--html", type=FILE, help="Write a page instead; without NUMBER, one with all lessons."
)
@click.option(
    "--remake",
    is_flag=True,
    help="For authors: run the snippets, and write what they did into the lesson.",
)
@day_option
def lesson(number: str | None, html: Path | None, remake: bool, day: str) -> None:
    """Show the lesson of an exercise, such as 04; without NUMBER, list the lessons.

    The name of a file or of a function will do, too.
    """
    if remake and html is not None:
        raise click.UsageError("--remake does not go with --html")
    exercises = _exercises_with_lesson(day, number)
    if remake:
        _remake_lessons(day, exercises)
    elif html is not None:
        with explain_write_errors(html), replacing_file(html, lasting=False) as file:
            file.write(_page_of_lessons(day, exercises).encode())
        click.echo(f"written: {html}")
    elif number is None:
        for exercise in exercises:
            click.echo(f"{exercise.number}  {exercise.title}")
        click.echo(f"To read one, run: dojo lesson {exercises[0].number}")
    else:
        _print_lessons(exercises)


def _exercises_with_lesson(day: str, name: str | None) -> list[Exercise]:
    """The exercises with a lesson, or the one that is meant by a name.

    A name is a number, a stem, the name of a file or of a function. Raises ClickException where no
    lesson has it, and BadDay where the day cannot be imported.
    """
    exercises = []
    for exercise in catalogue.exercises_of(day):
        if lesson_path(day, exercise.stem) is not None:
            exercises.append(exercise)
    if not exercises:
        raise click.ClickException(f"{day} has no lessons")
    if name is None:
        return exercises
    stem = Path(name).stem
    names = []
    for exercise in exercises:
        functions = [function.name for function in exercise.functions]
        number = exercise.number
        if stem in (number, number.lstrip("0"), exercise.stem, *functions):
            return [exercise]
        names += [exercise.stem, *functions]
    hint = suggest_name(stem, names, "")
    if not hint:
        hint = f"; there are: {', '.join(exercise.number for exercise in exercises)}"
    raise click.ClickException(f"{day} has no lesson {name}{hint}")


def _print_lessons(exercises: Sequence[Exercise]) -> None:
    """Print lessons: in a terminal laid out, in a file as they are written.

    Raises OSError where a lesson cannot be read.
    """
    from gpudojo.watch import view

    console = Console()
    for exercise in exercises:
        text = lesson_of(exercise)
        if text and console.is_terminal:
            # Colours of the terminal itself, which fit a light and a dark one.
            console.print(view.LessonPage(text, dark=True))
        elif text:
            click.echo(text)


def _remake_lessons(day: str, exercises: Sequence[Exercise]) -> None:
    """Run the snippets of lessons, write what they did into them, and print what changed.

    Raises what `remake_lesson` raises: BadDay for a snippet that cannot be run, OSError, and errors
    of the virtual device.
    """
    from gpudojo.authoring.lesson_records import remake_lesson  # only here: it needs torch

    has_changed = False
    for exercise in exercises:
        path = remake_lesson(day, exercise.stem)
        if path is not None:
            click.echo(f"written: {path}")
            has_changed = True
    if not has_changed:
        click.echo("Everything that was recorded is up to date.")


def _page_of_lessons(day: str, exercises: Sequence[Exercise]) -> str:
    """One HTML page with these lessons.

    Raises BadDay where the day cannot be imported, and OSError where a lesson cannot be read.
    """
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    from gpudojo.report.rendering import render_page

    lessons = []
    for exercise in exercises:
        text = lesson_of(exercise, folded=True)
        if text:
            html = MarkdownIt("commonmark").render(text)
            # Wide ones are scrolled, by keyboard too.
            lessons.append(Markup(html.replace("<pre>", '<pre tabindex="0">')))
    title = catalogue.day_title(day)
    if len(exercises) == 1:
        title = f"{exercises[0].number} {exercises[0].title}"
    return render_page("lesson.html", "", title=title, lessons=lessons)


@click.command(cls=StrictCommand)
def doctor() -> None:
    """Show what this machine has, torch, device and isolation, and what to do about what is
    missing.
    """
    from gpudojo.sandbox.layers import ADVICE, PURPOSE, examine_layers

    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    click.echo(f"gpudojo {__version__}, {system}, {count_of_processors()} processors")
    can_run = _print_torch_and_device()
    click.echo("isolation:")
    layers = examine_layers()
    for name, why in layers.items():
        if why:
            mark = click.style("--", fg="yellow")
        else:
            mark = click.style("ok", fg="green")
        purpose = PURPOSE.get(name, "")
        click.echo(f"  {mark}  {name}: {purpose}")
        if why:
            click.echo(f"      missing: {why}")
            if name in ADVICE:
                click.echo(f"      {ADVICE[name]}")
    missing = [name for name, why in layers.items() if why]
    lacking = ", ".join(missing)
    if lacking:
        click.echo(f"  --require-isolation would refuse to grade here: {lacking}")
    else:
        click.echo("  every layer holds")
    if not can_run:
        sys.exit(1)


def _print_torch_and_device() -> bool:
    """Print two or three lines about torch and the device; False if exercises cannot run at all.

    A DojoError, ImportError or OSError of torch or the device is printed, too.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        click.echo("torch: not installed\n  pip install torch")
        return False
    try:
        import torch
        from virtual_cuda import virtual_cuda
        from virtual_cuda.hooks import choose_device

        kind, why = choose_device("auto")
        built = "without CUDA"
        if torch.version.cuda:
            built = "with CUDA"
        click.echo(f"torch: {version}, built {built}")
        click.echo(f"device: {kind} ({why})")
        if kind == "virtual":
            with virtual_cuda():
                torch.ones(2, device="cuda").sum().item()
            click.echo("  the virtual CUDA device opens, computes and closes")
    except (DojoError, ImportError, OSError) as error:
        click.echo(f"torch: {version}, which does not work here: {error}")
        return False
    return True
