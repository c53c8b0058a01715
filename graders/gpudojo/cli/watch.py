"""The commands of students: `dojo watch`, `dojo lesson`, `dojo run` and `dojo doctor`.

A command imports what it alone needs when it is used.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType
from virtual_cuda.hooks import run_script

from gpudojo import __version__
from gpudojo.cli import Interrupted
from gpudojo.cli.options import FILE, processors, which_day, writing
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
    try:
        sys.exit(run_script(arguments, "dojo run"))
    except KeyboardInterrupt:
        raise Interrupted from None


DEVICES = ("auto", "virtual", "cuda", "mps", "cpu")
MORE = "The full-screen app needs two more packages: pip install 'gpudojo[watch]'"


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), default=Path())
@click.option("--plain", is_flag=True, help="Print lines instead of showing a full-screen app.")
@click.option(
    "--hints",
    default=1,
    show_default=True,
    metavar="N",
    type=click.IntRange(min=0),
    help="With --plain: show the first N hints.",
)
@click.option(
    "--bench", default="auto", type=click.Choice(DEVICES), help="The device that your code runs on."
)
def watch(path: Path, plain: bool, hints: int, bench: str) -> None:
    """Grade what you save, at once, and show the first thing to fix.

    PATH is the folder of the exercises, or one of them (default: the exercises here).
    """
    from gpudojo.watch.course import Course
    from gpudojo.watch.session import has_full_screen

    course = Course(path)
    if bench in ("cuda", "mps"):
        from virtual_cuda.errors import NoSuchDevice
        from virtual_cuda.hooks import device_count  # only here: it needs torch

        if not device_count(bench):
            raise click.ClickException(f"--bench {bench}: {NoSuchDevice(bench)}")
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if terminal and not plain and has_full_screen():
        from gpudojo.watch.app import run_app

        run_app(course, bench)
    else:
        print_lines(course, bench, hints, MORE if terminal and not plain else "")


def print_lines(course: Course, kind: str, hints: int, note: str = "") -> None:
    """Line mode: prints each verdict below the last one, until Ctrl-C."""
    from gpudojo.watch import view
    from gpudojo.watch.session import Session

    console = Console(highlight=False)

    def say(*parts: RenderableType) -> None:
        with console.capture() if not console.is_terminal else contextlib.nullcontext() as caught:
            console.print(*parts, sep="\n")
        if caught is not None:  # without the spaces that fill a line
            console.file.write("".join(f"{line.rstrip()}\n" for line in caught.get().splitlines()))
            console.file.flush()

    def show(event: Event, work: ExerciseWork) -> None:
        if session.trouble:
            console.print(f"cannot grade: {session.trouble}", style="red", markup=False)
        if event != "verdict":
            return
        took = f", graded in {session.took:.2f} s" if session.saved_at else ""
        console.rule(
            f"{work.path.name}, {time.strftime('%H:%M:%S')}{took}", characters="-", align="left"
        )
        say(
            view.panel(course, hints, f"--hints {hints + 1}", dark=True),
            view.aside(course),
            view.score_line(course),
        )

    session = Session(course, show, kind)
    console.print(f"{course.title}: {course.folder}", markup=False, soft_wrap=True)
    said = "First what is here now, then what you save. Ctrl-C ends this."
    console.print(*filter(None, [note, said]), sep="\n", markup=False)
    with contextlib.suppress(KeyboardInterrupt):
        session.loop()


@click.command()
@click.argument("number", required=False)
@click.option(
    "--html", type=FILE, help="Write a page instead; without NUMBER, one with all lessons."
)
@click.option(
    "--remake",
    is_flag=True,
    help="For authors: run the snippets, and write what they did into the lesson.",
)
@which_day
def lesson(number: str | None, html: Path | None, remake: bool, day: str) -> None:
    """Show the lesson of an exercise, such as 04; without NUMBER, list the lessons.

    The name of a file or of a function will do, too.
    """
    if remake and html is not None:
        raise click.UsageError("--remake does not go with --html")
    chosen = _chosen(day, number)
    if remake:
        _remake(day, chosen)
    elif html is not None:
        with writing(html), replacing_file(html, lasting=False) as file:
            file.write(_page(day, chosen).encode())
        click.echo(f"written: {html}")
    elif number is None:
        for exercise in chosen:
            click.echo(f"{exercise.number}  {exercise.title}")
        click.echo(f"To read one, run: dojo lesson {chosen[0].number}")
    else:
        from gpudojo.watch import view

        console = Console()
        for text in filter(None, map(lesson_of, chosen)):
            # Colours of the terminal itself, which fit a light and a dark one; in a file, the source.
            console.print(view.LessonPage(text, dark=True)) if console.is_terminal else click.echo(
                text
            )


def _chosen(day: str, number: str | None) -> list[Exercise]:
    """The exercises with a lesson, or the one that a number, a name, a file's name or a function stands for."""
    having = [
        each for each in catalogue.exercises_of(day) if lesson_path(day, each.stem) is not None
    ]
    name = None if number is None else Path(number).stem
    called = {
        each.stem: (each.number, each.number.lstrip("0"), *(f.name for f in each.functions))
        for each in having
    }
    found = [each for each in having if name in (None, each.stem, *called[each.stem])]
    if not found:
        there = ", ".join(each.number for each in having)
        names = [
            one for stem, names in called.items() for one in (stem, *names) if not one.isdigit()
        ]
        near = suggest_name(name or "", names, "") or f"; there are: {there}"
        raise click.ClickException(
            f"{day} has no lesson {number}{near}" if there else f"{day} has no lessons"
        )
    return found


def _remake(day: str, chosen: list[Exercise]) -> None:
    from gpudojo.authoring.lint import remake  # only here: it needs torch

    changed = [path for each in chosen if (path := remake(day, each.stem)) is not None]
    for path in changed:
        click.echo(f"written: {path}")
    if not changed:
        click.echo("Everything that was recorded is up to date.")


def _page(day: str, chosen: list[Exercise]) -> str:
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    from gpudojo.report.rendering import page

    made = (
        MarkdownIt("commonmark").render(text)
        for each in chosen
        if (text := lesson_of(each, folded=True))
    )
    texts = [
        text.replace("<pre>", '<pre tabindex="0">') for text in made
    ]  # wide ones are scrolled, by keyboard too
    title = (
        f"{chosen[0].number} {chosen[0].title}" if len(chosen) == 1 else catalogue.day_title(day)
    )
    return page("lesson.html", "", title=title, lessons=[Markup(text) for text in texts])


@click.command()
def doctor() -> None:
    """Show what this machine has, torch, device and isolation, and what to do about what is missing."""
    from gpudojo.sandbox.layers import ADVICE, PURPOSE, examine_layers

    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    click.echo(f"gpudojo {__version__}, {system}, {processors()} processors")
    problems = _torch()
    click.echo("isolation:")
    layers = examine_layers()
    for name, why in layers.items():
        mark = click.style("ok", fg="green") if not why else click.style("--", fg="yellow")
        click.echo(f"  {mark}  {name}: {PURPOSE.get(name, '')}")
        if why:
            click.echo(f"      missing: {why}")
            if name in ADVICE:
                click.echo(f"      {ADVICE[name]}")
    lacking = ", ".join(name for name, why in layers.items() if why)
    click.echo(
        f"  --require-isolation would refuse to grade here: {lacking}"
        if lacking
        else "  every layer holds"
    )
    if problems:
        sys.exit(1)


def _torch() -> bool:
    """Prints two lines about torch and the device; True if exercises cannot run at all."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        click.echo("torch: not installed\n  pip install torch")
        return True
    from virtual_cuda.hooks import choose_device

    try:
        import torch

        kind, why = choose_device("auto")
        built = "with CUDA" if torch.version.cuda else "without CUDA"
        click.echo(f"torch: {version}, built {built}")
        click.echo(f"device: {kind} ({why})")
        from virtual_cuda import virtual_cuda

        if kind == "virtual":
            with virtual_cuda():
                torch.ones(2, device="cuda").sum().item()
            click.echo("  the virtual CUDA device opens, computes and closes")
    except (DojoError, ImportError, OSError) as error:
        click.echo(f"torch: {version}, which does not work here: {error}")
        return True
    return False
