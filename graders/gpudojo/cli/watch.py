"""`dojo watch`: the student's home. Grades what is saved, and shows the first thing to fix."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import click
from rich.console import Console, RenderableType

from gpudojo.watch import view
from gpudojo.watch.course import Course, Work
from gpudojo.watch.session import Event, Session, full_screen

DEVICES = ("auto", "virtual", "cuda", "mps", "cpu")
MORE = "The full-screen app needs two more packages: pip install 'gpudojo[watch]'"


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), default=Path())
@click.option("--plain", is_flag=True, help="Print lines instead of showing a full-screen app.")
@click.option("--hints", default=1, show_default=True, metavar="N", help="With --plain: show the first N hints.")
@click.option("--bench", default="auto", type=click.Choice(DEVICES), help="The device that your code runs on.")
def watch(path: Path, plain: bool, hints: int, bench: str) -> None:
    """Grade what you save, at once, and show the first thing to fix.

    PATH is the folder of the exercises, or one of them (default: the exercises here).
    """
    course = Course(path)
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if terminal and not plain and full_screen():
        from gpudojo.watch.app import run

        run(course, bench)
    else:
        print_lines(course, bench, hints, MORE if terminal and not plain else "")


def print_lines(course: Course, kind: str, hints: int, note: str = "") -> None:
    """Line mode: prints each verdict below the last one, until Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows no “█” shows a “?”
    console = Console(highlight=False)

    def say(*parts: RenderableType) -> None:
        with console.capture() if not console.is_terminal else contextlib.nullcontext() as caught:
            console.print(*parts, sep="\n")
        if caught is not None:  # without the spaces that fill a line
            console.file.write("".join(f"{line.rstrip()}\n" for line in caught.get().splitlines()))
            console.file.flush()

    def show(event: Event, work: Work) -> None:
        if session.trouble:
            console.print(f"cannot grade: {session.trouble}", style="red", markup=False)
        if event != "verdict":
            return
        took = f", graded in {session.took:.2f} s" if session.saved_at else ""
        console.rule(f"{work.path.name}, {time.strftime('%H:%M:%S')}{took}", characters="-", align="left")
        say(view.panel(course, hints, f"--hints {hints + 1}", dark=True), view.aside(course), view.score(course))

    session = Session(course, show, kind)
    console.print(f"{course.title}: {course.folder}", markup=False, soft_wrap=True)
    console.print(*([note] if note else []), "Save a file to grade it. Ctrl-C ends this.", sep="\n", markup=False)
    with contextlib.suppress(KeyboardInterrupt):
        session.loop()
