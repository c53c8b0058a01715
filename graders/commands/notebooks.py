"""How is `dojo release notebooks` spoken to? The command that makes a day's notebooks."""

from __future__ import annotations

from pathlib import Path

import click

from graders.commands.options import which_day, which_root


@click.command()
@which_day
@which_root
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write notebooks/DAY/ into this folder (default: the repository).",
)
@click.option("--package", default="gpudojo", show_default=True, help="What pip installs where there is no wheel.")
def notebooks(day: str, root: Path | None, out: Path | None, package: str) -> None:
    """Make one notebook for each exercise, and one for the whole day, from reference/."""
    from graders.commands.options import repository
    from graders.errors import DojoError
    from graders.release import notebooks as making

    root = root or repository()
    reference = root / "reference" / day
    if not reference.is_dir():
        raise click.ClickException(f"there is no folder {reference}")
    try:
        made = making.parts(root, day, package)  # all of them first: nothing is half-written
        changed = making.write(out or root, made)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
    for path in changed:
        click.echo(f"written: {path}")
    if not changed:
        click.echo(f"All {len(made)} notebooks of {day} are up to date.")
