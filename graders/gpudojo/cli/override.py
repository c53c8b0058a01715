"""`dojo override`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpudojo.cli.class_folder import HERE, login_name, open_class
from gpudojo.cli.options import FOLDER
from gpudojo.cli.single_options import StrictCommand

if TYPE_CHECKING:
    from gpudojo.classes.gradebook import Gradebook

DELAY: Final = re.compile(r"(\d+(?:[.,]\d+)?)\s*([mhd]?)")
SECONDS_OF: Final = {"m": 60, "h": 3600, "d": 86_400}


def _parse_delay(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> int | None:
    """The seconds of a delay such as 2h; raises BadParameter."""
    if value is None:
        return None
    match = DELAY.fullmatch(value.strip().lower())
    if match is None or (not match[2] and float(match[1].replace(",", "."))):
        raise click.BadParameter(f"{value!r} is not a time; write 30m, 2h or 3d, or 0 for in time")
    number = float(match[1].replace(",", "."))
    return round(number * SECONDS_OF.get(match[2], 0))


@click.command(cls=StrictCommand)
@click.argument("words", nargs=-1, metavar="[STUDENT] [CHECK|EXERCISE]")
@click.option("--points", metavar="POINTS", help="The points to give; `full` gives all of them.")
@click.option(
    "--late",
    metavar="TIME",
    callback=_parse_delay,
    help="How late it was handed in: 30m, 2h, 3d, or 0 for in time.",
)
@click.option(
    "--comment", default="", help="What the student reads; without --points, the points stay."
)
@click.option(
    "--all", "everyone", is_flag=True, help="For all who handed something in, instead of STUDENT."
)
@click.option("--undo", is_flag=True, help="Take one back; without words, undo the last command.")
@click.option("--log", is_flag=True, help="Show who gave and took back what, and when.")
@click.option("--items", is_flag=True, help="List what can be overridden, and what it is worth.")
@click.option("--by", default=None, help="Who gives it (default: your login name).")
@click.option("--out", type=FOLDER, help=HERE)
def override(**arguments: Any) -> None:
    """Give points in place of the grader's, for a check, a whole exercise, or an item that people
    grade.

    STUDENT is an id, a name, an e-mail address, the name of the submission, or a group, all of
    whose members get the points. A check may be named by its end, such as train_epoch::runs, and an
    exercise by its number. With --comment alone the points stay, and the student reads the comment:
    so a dispute is refused. What is given survives regrading. Without words, the overrides are
    listed. For many at once, and for what is marked by hand, there is `dojo marks`.
    """
    if sys.platform == "win32":
        raise click.ClickException("a class needs Linux or macOS; on Windows, use WSL")
    asked = OverrideArguments(**arguments)
    _refuse_contradictions(asked)
    from gpudojo.classes.overrides import parse_points_or_full

    points = None
    if asked.points is not None:
        points = parse_points_or_full(asked.points, "--points")
    with open_class(asked.out) as book:
        _carry_out(book, asked, points)


@dataclass(frozen=True)
class OverrideArguments:
    """What the user asks of `dojo override`: its arguments, by the names that click gives them."""

    words: tuple[str, ...]
    points: str | None
    late: int | None  # in seconds
    comment: str
    everyone: bool
    undo: bool
    log: bool
    items: bool
    by: str | None
    out: Path | None

    @property
    def command(self) -> str:
        """The command as the history has it."""
        if self.undo:
            return "override --undo"
        if self.late is not None:
            return "override --late"
        return "override"

    @property
    def names_nobody(self) -> bool:
        """True if neither a student nor everyone is named."""
        return not self.words and not self.everyone


def _refuse_contradictions(asked: OverrideArguments) -> None:
    """Raises UsageError where a word or option would be left out."""
    actions = {
        "--log": asked.log,
        "--items": asked.items,
        "--undo": asked.undo,
    }
    details = {
        "STUDENT": bool(asked.words),
        "--all": asked.everyone,
        "--points": asked.points is not None,
        "--late": asked.late is not None,
        "--comment": bool(asked.comment),
    }
    used = [name for name, is_given in (actions | details).items() if is_given]
    if asked.points is not None and asked.late is not None:
        raise click.UsageError("--points does not go with --late: give two commands")
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


def _carry_out(book: Gradebook, asked: OverrideArguments, points: float | None) -> None:
    """Print or write what the arguments ask for, which are consistent.

    `points` are those to give, if any. Raises UsageError, ClickException, BadClass, BadFile, BadDay
    and OSError.
    """
    from gpudojo.classes.class_state import utc_now
    from gpudojo.cli import override_output as output
    from gpudojo.cli.override_entries import EntryMaker

    at = utc_now("microseconds")  # tells commands apart
    maker = EntryMaker(book, at, asked.by or login_name())
    if asked.log:
        output.print_log(book)
    elif asked.items:
        output.print_items(book)
    elif asked.names_nobody and asked.undo:
        output.write_and_print(book, maker.entries_to_undo(), asked.command)
    elif asked.names_nobody:
        output.print_overrides(book)
    else:
        output.write_and_print(book, maker.entries_for_words(asked, points), asked.command)
