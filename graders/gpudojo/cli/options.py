"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from gpudojo.model.catalogue import days

# What a command means when no day is named: it must not change because another day is begun.
USUAL: Final = "day8" if "day8" in days() else next(iter(days()), None)

which_root = click.option(
    "--root", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The repository (default: found)."
)
which_day = click.option("--day", default=USUAL, show_default=True, type=click.Choice(days()), help="Which day.")


def repository() -> Path:
    """The folder with `reference`: here, in a folder above, or where this package is."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "reference").is_dir():
            return folder
    raise click.ClickException(f"no folder `reference` in {here} or above it; use --root")


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
