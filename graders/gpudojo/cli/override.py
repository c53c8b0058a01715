"""`dojo override`."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpudojo.cli.options import EXISTING_FILE, FOLDER

if TYPE_CHECKING:
    from gpudojo.classes.gradebook import Gradebook

HERE: Final = "The folder that `dojo grade --out` made (default: this one, or the only one in it)."


@click.command()
@click.argument("words", nargs=-1, metavar="[STUDENT] [CHECK|EXERCISE]")
@click.option("--points", metavar="POINTS", help="The points to give.")
@click.option("--comment", default="", help="The reason; the student reads it.")
@click.option(
    "--all", "everyone", is_flag=True, help="For all who handed something in, instead of STUDENT."
)
@click.option(
    "--from",
    "file",
    type=EXISTING_FILE,
    help="Many at once: a CSV file with student, item, points, comment.",
)
@click.option("--undo", is_flag=True, help="Take one back; without words, undo the last command.")
@click.option("--log", is_flag=True, help="Show who gave and took back what, and when.")
@click.option("--items", is_flag=True, help="List what can be overridden, and what it is worth.")
@click.option("--by", default=None, help="Who gives it (default: your login name).")
@click.option("--out", type=FOLDER, help=HERE)
def override(**arguments: Any) -> None:
    """Give points in place of the grader's, for a check, a whole exercise, or an item that people
    grade.

    STUDENT is an id, a name, an e-mail address or the name of the submission. A check may be named
    by its end, such as train_epoch::runs, and an exercise by its number. What is given survives
    regrading. Without words, the overrides are listed, and what is still to grade by hand.
    """
    if sys.platform == "win32":
        raise click.ClickException("a class needs Linux or macOS; on Windows, use WSL")
    asked = OverrideArguments(**arguments)
    _refuse_contradictions(asked)
    from gpudojo.classes.overrides import parse_points

    if asked.points is None:
        points = None
    else:
        points = parse_points(asked.points, "--points")
    with _open_class(asked.out) as book:
        _carry_out(book, asked, points)


@dataclass(frozen=True)
class OverrideArguments:
    """What the user asks of `dojo override`: its arguments, by the names that click gives them."""

    words: tuple[str, ...]
    points: str | None
    comment: str
    everyone: bool
    file: Path | None
    undo: bool
    log: bool
    items: bool
    by: str | None
    out: Path | None

    @property
    def names_nobody(self) -> bool:
        """True if neither a student nor everyone is named."""
        return not self.words and not self.everyone


def _refuse_contradictions(asked: OverrideArguments) -> None:
    """Raises UsageError where a word or option would be left out."""
    actions = {
        "--log": asked.log,
        "--items": asked.items,
        "--from": asked.file is not None,
        "--undo": asked.undo,
    }
    details = {
        "STUDENT": bool(asked.words),
        "--all": asked.everyone,
        "--points": asked.points is not None,
        "--comment": bool(asked.comment),
    }
    used = [name for name, is_given in (actions | details).items() if is_given]
    if not any(actions.values()):
        if used and asked.names_nobody:
            raise click.UsageError("STUDENT and CHECK or EXERCISE are missing")
        return
    action = used[0]
    fitting: tuple[str, ...] = ()
    if action == "--undo":
        fitting = ("STUDENT", "--all")
    for name in used[1:]:
        if name not in fitting:
            raise click.UsageError(f"{action} does not go with {name}")


@contextlib.contextmanager
def _open_class(out: Path | None) -> Iterator[Gradebook]:
    """The class in a folder, which nobody else can write to meanwhile.

    Raises ClickException where nothing was graded yet, BadClass where another command writes to
    it, and BadFile.
    """
    from gpudojo.classes.class_opening import load_last_course, open_gradebook
    from gpudojo.classes.class_state import load_state
    from gpudojo.classes.store import Store

    folder = _class_folder(out)
    if not load_state(folder).students:
        raise click.ClickException(f"{folder} has no results yet; run `dojo grade` first")
    store = Store(folder)
    store.open()
    try:
        state = load_state(folder)  # again: a `dojo grade` may have ended since
        yield open_gradebook(folder, state, load_last_course(folder, state))
    finally:
        store.close()


def _class_folder(out: Path | None) -> Path:
    """The folder of the class: the one given, or the only one here; raises ClickException."""
    from gpudojo.classes.class_state import STATE

    if out is not None:
        return out
    here = Path()
    folders = []
    for folder in (here, *sorted(here.iterdir())):
        if (folder / STATE).is_file():
            folders.append(folder)
    if len(folders) == 1:
        return folders[0]
    message = "--out is missing: the folder that `dojo grade --out` made"
    if folders:
        names = ", ".join(str(folder) for folder in folders)
        message += f"; there are {names}"
    raise click.ClickException(message)


def _carry_out(book: Gradebook, asked: OverrideArguments, points: float | None) -> None:
    """Print or write what the arguments ask for, which are consistent.

    Raises UsageError, ClickException, BadClass and BadFile.
    """
    from gpudojo.classes.class_state import utc_now
    from gpudojo.cli import override_output as output
    from gpudojo.cli.override_entries import EntryMaker

    at = utc_now("microseconds")  # tells commands apart
    maker = EntryMaker(book, at, asked.by or _login_name())
    if asked.log:
        output.print_log(book)
    elif asked.items:
        output.print_items(book)
    elif asked.file is not None:
        output.write_and_print(book, maker.entries_for_file(asked.file))
    elif asked.names_nobody and asked.undo:
        output.write_and_print(book, maker.entries_to_undo())
    elif asked.names_nobody:
        output.print_overrides(book)
        output.print_items_to_grade(book)
    else:
        output.write_and_print(book, [maker.entry_for_words(asked, points)])


def _login_name() -> str:
    """Who runs the command; "unknown" where the system does not say."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # what getpass raises
        return getpass.getuser()
    return os.environ.get("USER", "unknown")
