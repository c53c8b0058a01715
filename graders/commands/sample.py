"""How is `dojo sample` spoken to? The command that makes up a class to try the grader on."""

from __future__ import annotations

from pathlib import Path

import click

from graders.commands.options import which_day, which_root


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--students", default=60, show_default=True, type=click.IntRange(min=1), help="How many submissions.")
@click.option("--seed", default=8, show_default=True, help="The same seed makes the same class.")
@which_day
@which_root
def sample(folder: Path, students: int, seed: int, day: str, root: Path | None) -> None:
    """Make a class of submissions in FOLDER, from this repository's own solutions, right and wrong."""
    from graders.batch import sampling
    from graders.commands.options import repository
    from graders.errors import DojoError

    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is not empty")
    try:
        known = sampling.corpus(root or repository(), day)
        folder.mkdir(parents=True, exist_ok=True)
        for made in sampling.sample(known, students, seed):
            sampling.hand_in(made, folder)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write to {folder}: {error.strerror}") from error
    click.echo(f"{students} submissions in {folder}")
