"""What several commands share: options, the repository's folder, and messages for files that cannot be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from gpudojo.model.catalogue import days

# The default day must not change because another day is begun.
USUAL: Final = "day8" if "day8" in days() else next(iter(days()), None)

which_root = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The repository (default: the folder with `reference`, here or above).",
)
which_day = click.option("--day", default=USUAL, show_default=True, type=click.Choice(days()), help="The day.")


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


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Reports files that cannot be written with one sentence."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename or target}: {error.strerror}") from error


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
