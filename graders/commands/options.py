"""Which options do several commands share? The repository, and the day, of those that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from graders.curriculum.catalogue import DAYS

# What a command means when no day is named: it must not change because another day is begun.
USUAL: Final = "day8" if "day8" in DAYS else next(iter(DAYS), None)

which_root = click.option(
    "--root", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The repository (default: found)."
)
which_day = click.option("--day", default=USUAL, show_default=True, type=click.Choice(DAYS), help="Which day.")
