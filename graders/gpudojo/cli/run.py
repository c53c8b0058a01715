"""`dojo run`: a script on the virtual device, and what each of its lines did there."""

from __future__ import annotations

import sys

import click
from virtual_cuda import run_script

from gpudojo.cli import Interrupted


@click.command(
    # The options are those of `python -m virtual_cuda`, which reads them; so is `--help`.
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Run a script on a virtual GPU."""
    try:
        sys.exit(run_script(arguments, "dojo run"))
    except KeyboardInterrupt:
        raise Interrupted from None
