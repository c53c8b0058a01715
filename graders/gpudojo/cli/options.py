"""What several commands share: options, the repository's folder, and messages for files that cannot be written."""

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
from gpudojo.model.errors import suggest_name

Command = TypeVar("Command", bound=Callable[..., Any])
# The default day must not change because another day is begun.
USUAL: Final = "day8" if "day8" in day_names() else next(iter(day_names()), None)


class _Existing(click.Path):
    """A path that is there; where it is not, the message says which one may be meant."""

    def __init__(self, **kind: bool) -> None:
        super().__init__(exists=True, path_type=Path, **kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            path = Path(value)
            if not path.exists() and path.parent.is_dir():
                near = suggest_name(path.name, [each.name for each in path.parent.iterdir()], "")
                raise click.BadParameter(
                    error.message.rstrip(".") + (near or "."), ctx, param
                ) from None
            raise


FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)
THAT: Final = _Existing()
THAT_FILE: Final = _Existing(dir_okay=False)
THAT_FOLDER: Final = _Existing(file_okay=False)

FOUND: Final = "The repository (default: the folder with `reference`, here or above)."
which_root = click.option("--root", type=THAT_FOLDER, help=FOUND)
which_day = click.option(
    "--day", default=USUAL, show_default=True, type=click.Choice(day_names()), help="The day."
)
secret_seed = partial(click.option, "--seed", "secret", envvar="DOJO_SEED", metavar="SECRET")


def day_and_root(command: Command) -> Command:
    """Adds `--day` and `--root`."""
    return which_day(which_root(command))


def _bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    from virtual_cuda.errors import BadSize
    from virtual_cuda.hooks import parse_size  # only for commands that grade

    try:
        return parse_size(value)
    except BadSize as error:
        raise click.BadParameter(str(error)) from None


# Options for sizes, such as 2 GiB, of which a command gets the bytes.
bytes_option = partial(click.option, default="2 GiB", show_default=True, callback=_bytes)


def limits(command: Command) -> Command:
    """Adds `--time-limit`, `--memory-limit` and `--require-isolation`."""
    refuse = "Refuse to grade where a layer of isolation is missing."
    command = click.option("--require-isolation", is_flag=True, help=refuse)(command)
    command = bytes_option("--memory-limit", help="Memory each submission may take.")(command)
    seconds = click.FloatRange(min=0.1)
    told = "Seconds each function may take."
    limit = click.option(
        "--time-limit",
        default=DEFAULT_SECONDS,
        show_default=True,
        type=seconds,
        metavar="S",
        help=told,
    )
    return limit(command)


def given(context: click.Context, option: str) -> bool:
    """Whether the user gave an option, on the command line or in the environment."""
    return context.get_parameter_source(option) is not ParameterSource.DEFAULT


def repository() -> Path:
    """The folder with `reference`: here, in a folder above, or where this package is."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "reference").is_dir():
            return folder
    raise click.ClickException(f"no folder `reference` in {here} or above it; use --root")


def references(root: Path | None, day: str) -> tuple[Path, Path]:
    """The repository, and its folder of reference solutions."""
    root = root or repository()
    if not (root / "reference" / day).is_dir():
        raise click.ClickException(f"there is no folder {root / 'reference' / day}")
    return root, root / "reference" / day


def results_file(given: Path) -> Path:
    """The file of results: given itself, or in the folder that is given; ends the command where there is none."""
    path = given / "results.json" if given.is_dir() else given
    if not path.exists():
        said = f"{given} has no results.json; give the folder that `dojo grade --out` made"
        raise click.ClickException(
            said
            + suggest_name("", sorted(str(each.parent) for each in given.glob("*/results.json")))
        )
    if path.suffix == ".csv":
        raise click.ClickException(
            f"{path} is not a file of results: it is not JSON; give results.json or its folder"
        )
    return path


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Reports files that cannot be written with one sentence."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"cannot write {error.filename or target}: {error.strerror}"
        ) from error


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
