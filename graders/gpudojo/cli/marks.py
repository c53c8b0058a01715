"""`dojo marks`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpudojo.cli.class_folder import HERE, login_name, open_class
from gpudojo.cli.options import EXISTING_FILE, FILE, FOLDER
from gpudojo.cli.single_options import StrictCommand


@click.command(cls=StrictCommand)
@click.option(
    "--sheet",
    type=FILE,
    help="Write a CSV file to fill in: a line for each student, item, and line of its rubric.",
)
@click.option(
    "--from",
    "file",
    type=EXISTING_FILE,
    help="Read a sheet, or any CSV file with student, item, points, comment.",
)
@click.option("--by", default=None, help="Who gives the points (default: your login name).")
@click.option("--out", type=FOLDER, help=HERE)
def marks(sheet: Path | None, file: Path | None, by: str | None, out: Path | None) -> None:
    """Show what is still to mark by hand; write a sheet for it, and read it back.

    Without points, a line of a sheet is not marked yet. Where lines do not fit, all of them are
    listed, and nothing is changed. `dojo override --undo` takes back what the last sheet gave.
    """
    if sys.platform == "win32":
        raise click.ClickException("a class needs Linux or macOS; on Windows, use WSL")
    if sheet is not None and file is not None:
        raise click.UsageError("--sheet does not go with --from")
    with open_class(out) as book:
        from gpudojo.classes.class_state import utc_now
        from gpudojo.cli import override_output as output
        from gpudojo.cli.override_entries import EntryMaker

        if sheet is not None:
            output.write_sheet_of(book, sheet)
        elif file is not None:
            maker = EntryMaker(book, utc_now("microseconds"), by or login_name())
            entries = maker.entries_for_file(file)
            if entries:
                output.write_and_print(book, entries, "marks")
            else:
                click.echo(f"All points of {file} hold already; nothing was changed.")
        else:
            output.print_items_to_grade(book)
