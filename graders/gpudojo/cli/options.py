"""What several commands share: options, the repository's folder, messages about files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gpudojo.grading.limits import DEFAULT_SECONDS
from gpudojo.model.catalogue import day_names
from gpudojo.model.errors import printable_text, suggest_name

Command = TypeVar("Command", bound=Callable[..., Any])
# The default day must not change because another day is begun.
DEFAULT_DAY: Final = "day8" if "day8" in day_names() else next(iter(day_names()), None)


class _Existing(click.Path):
    """A path that is there; where it is not, the message says which one may be meant."""

    def __init__(self, **kind: bool) -> None:
        super().__init__(exists=True, path_type=Path, **kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; raises BadParameter."""
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

root_option = click.option(
    "--root",
    type=EXISTING_FOLDER,
    help="The repository (default: the folder with `reference`, here or above).",
)
day_option = click.option(
    "--day", default=DEFAULT_DAY, show_default=True, type=click.Choice(day_names()), help="The day."
)
seed_option = partial(click.option, "--seed", "secret", envvar="DOJO_SEED", metavar="SECRET")


def with_day_and_root(command: Command) -> Command:
    """Adds `--day` and `--root`."""
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
    """Adds `--time-limit`, `--memory-limit` and `--require-isolation`."""
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
        type=click.FloatRange(min=0.1),
        metavar="S",
        help="Seconds each function may take.",
    )
    return time(memory(isolation(command)))


def is_given_by_user(context: click.Context, option: str) -> bool:
    """True if the user gave an option, on the command line or in the environment."""
    return context.get_parameter_source(option) is not ParameterSource.DEFAULT


def find_repository() -> Path:
    """The folder with `reference`: here, in a folder above, or where this package is.

    Raises ClickException where there is none.
    """
    here = Path.cwd()
    of_package = Path(__file__).resolve().parents[3]
    for folder in (here, *here.parents, of_package):
        if (folder / "reference").is_dir():
            return folder
    raise click.ClickException(f"no folder `reference` in {here} or above it; use --root")


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
