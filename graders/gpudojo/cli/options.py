"""What several commands share: options, the repository's folder, messages about files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gpudojo.grading.limits import DEFAULT_SECONDS
from gpudojo.model.catalogue import day_names, repository_of
from gpudojo.model.courses import find_course, refuse_other_package
from gpudojo.model.errors import CannotBegin, printable_text, suggest_name

Command = TypeVar("Command", bound=Callable[..., Any])
# The default day must not change because another day is begun.
FIRST_DAY: Final = "day8"


class _Existing(click.Path):
    """A path that is there; where it is not, the message says which one may be meant."""

    def __init__(self, **kind: bool) -> None:
        super().__init__(exists=True, path_type=Path, **kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path that was given.

        Raises BadParameter, with a suggestion, where it is not there.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            path = Path(value)
            if path.exists() or not path.parent.is_dir():
                raise
            names = [each.name for each in path.parent.iterdir()]
            hint = suggest_name(path.name, names, "") or "."
            message = error.message.rstrip(".")
            raise click.BadParameter(f"{message}{hint}", ctx, param) from None


FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)
EXISTING_PATH: Final = _Existing()
EXISTING_FILE: Final = _Existing(dir_okay=False)
EXISTING_FOLDER: Final = _Existing(file_okay=False)


class _DayName(click.Choice[str]):
    """The name of an installed day; the message about another one says how to install it."""

    def __init__(self) -> None:
        super().__init__(day_names())

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name that was given.

        Raises BadParameter for one that no installed package registers.
        """
        if value in self.choices:
            return str(value)
        course = find_course(Path.cwd())
        if course is not None and value in course.packages:
            raise click.BadParameter(course.say_not_installed(str(value)), ctx, param)
        hint = suggest_name(str(value), self.choices) or "; no day is installed"
        raise click.BadParameter(f"there is no day {value!r}{hint}", ctx, param)


_FOLDERS_OF_DAYS: Final = ("exercises", "reference", "tests")


def default_day() -> str | None:
    """The day of the nearest folder, here or above, that has exercises or their references.

    In its own folder below `exercises`, `reference` or `tests` a day is meant itself. Elsewhere,
    and of several, it is day8 or else the first one. Returns None where no day is installed. The
    day of a course that is not installed is named too, as it is the one that is meant.
    """
    names = [*day_names()]
    here = Path.cwd()
    # A project file that cannot be read says nothing here; commands that need it say why.
    with contextlib.suppress(CannotBegin):
        course = find_course(here)
        if course is not None:
            names += [name for name in course.packages if name not in names]
    for folder in (here, *here.parents):
        if folder.name in names and folder.parent.name in _FOLDERS_OF_DAYS:
            return folder.name
        found = []
        for name in names:
            if any((folder / kind / name).is_dir() for kind in ("reference", "exercises")):
                found.append(name)
        if found:
            return _first_day(found)
    return _first_day(names)


def _first_day(names: Sequence[str]) -> str | None:
    """Which of several days is meant if none is named; None where there are none."""
    if FIRST_DAY in names:
        return FIRST_DAY
    return next(iter(names), None)


root_option = click.option(
    "--root",
    type=EXISTING_FOLDER,
    help="The repository (default: the folder with `reference/DAY`: here, above, or of the day's "
    "package).",
)
day_option = click.option(
    "--day",
    default=default_day,
    show_default="that of this folder",
    type=_DayName(),
    help="The day.",
)
seed_option = partial(click.option, "--seed", "secret", envvar="DOJO_SEED", metavar="SECRET")


def with_day_and_root(command: Command) -> Command:
    """Add `--day` and `--root` to a command."""
    return day_option(root_option(command))


def _parse_bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """The bytes of a size such as 2 GiB; raises BadParameter."""
    from virtual_cuda.errors import BadSize
    from virtual_cuda.hooks import parse_size  # only for commands that grade

    try:
        return parse_size(value)
    except BadSize as error:
        raise click.BadParameter(str(error)) from None


# Options for sizes, such as 2 GiB, of which a command gets the bytes.
size_option = partial(click.option, default="2 GiB", show_default=True, callback=_parse_bytes)


def with_limits(command: Command) -> Command:
    """Add `--time-limit`, `--memory-limit` and `--require-isolation` to a command."""
    isolation = click.option(
        "--require-isolation",
        is_flag=True,
        help="Refuse to grade where a layer of isolation is missing.",
    )
    memory = size_option("--memory-limit", help="Memory each submission may take.")
    time = click.option(
        "--time-limit",
        default=DEFAULT_SECONDS,
        show_default=True,
        type=NumberRange(min=0.1),
        metavar="S",
        help="Seconds each function may take.",
    )
    return time(memory(isolation(command)))


class NumberRange(click.FloatRange):
    """A number in a range; click itself says of a word that it is no "valid float range"."""

    name = "number"


class WholeNumberRange(click.IntRange):
    """A whole number in a range."""

    name = "whole number"


def is_given_by_user(context: click.Context, option: str) -> bool:
    """True if the user gave an option, on the command line or in the environment."""
    return context.get_parameter_source(option) is not ParameterSource.DEFAULT


def find_repository(day: str, root: Path | None = None) -> Path:
    """The folder with `reference/DAY`: here, in a folder above, or above the day's package.

    A `root` that is given is that folder. Raises ClickException where there is none, and
    CannotBegin where the folder has a package of the day and another copy of it is installed.
    """
    here = Path.cwd()
    if root is None:
        above = [each for each in (here, *here.parents) if (each / "reference" / day).is_dir()]
        root = above[0] if above else repository_of(day)
    if root is None:
        raise click.ClickException(
            f"there is no folder reference/{day} in {here}, above it, or above the package of "
            f"{day}; use --root"
        )
    refuse_other_package(day, root)
    return root


def find_reference(root: Path, day: str) -> Path:
    """The folder of a day's reference solutions; raises ClickException where there is none."""
    folder = root / "reference" / day
    if not folder.is_dir():
        raise click.ClickException(f"there is no folder {folder}")
    return folder


def find_results_file(path: Path) -> Path:
    """The file of results: the path itself, or the file in the folder that it is.

    Raises ClickException where there is none, or a CSV file is given.
    """
    if path.is_dir():
        file = path / "results.json"
    else:
        file = path
    if not file.exists():
        folders = sorted(str(each.parent) for each in path.glob("*/results.json"))
        raise click.ClickException(
            f"{path} has no results.json; give the folder that `dojo grade --out` made"
            + suggest_name("", folders)
        )
    if file.suffix == ".csv":
        raise click.ClickException(
            f"{file} is not a file of results: it is not JSON; give results.json or its folder"
        )
    return file


@contextlib.contextmanager
def explain_write_errors(target: Path) -> Iterator[None]:
    """Turns an OSError inside into a ClickException that names the file, or else `target`."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"cannot write {error.filename or target}: {error.strerror}"
        ) from error


def print_note(sentence: str) -> None:
    """Print something that the user should know, to the standard error."""
    click.echo(f"note: {printable_text(sentence)}", err=True)


def count_of_processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
