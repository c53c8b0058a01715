"""`dojo release`."""

from __future__ import annotations

from pathlib import Path

import click

from gpudojo.cli.options import which_day, which_root


@click.group()
def release() -> None:
    """Make what students get."""


@release.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a stub is stale.")
@which_day
@which_root
def stubs(check: bool, day: str, root: Path | None) -> None:
    """Make exercises/ from reference/: the same files without their solutions."""
    from gpudojo.cli.options import repository
    from gpudojo.model.errors import BadMarkers
    from gpudojo.release import stubs as making

    root = root or repository()
    reference, exercises = root / "reference" / day, root / "exercises" / day
    if not reference.is_dir():
        raise click.ClickException(f"there is no folder {reference}")
    try:
        changed = making.stale(reference, exercises) if check else making.write(reference, exercises)
    except BadMarkers as error:
        raise click.ClickException(str(error)) from error
    left_over = [name for name in changed if not (reference / name).is_file()]
    for name in changed:
        state = "left over, without a reference" if name in left_over else "stale" if check else "written"
        click.echo(f"{state}: {exercises / name}")
    if not changed:
        click.echo(f"All stubs of {day} are up to date.")
    elif check:
        click.echo("run: dojo release stubs", err=True)
    if (check and changed) or left_over:
        raise SystemExit(1)


@release.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@which_day
@which_root
def student(target: Path, day: str, root: Path | None) -> None:
    """Make a student's repository in DIR: stubs, notebooks, the grader as a wheel without solutions, settings.

    The references are run and judged first, and every file is searched for their lines. It takes a quarter of a
    minute, needs no network, and gives the same bytes every time.
    """
    from gpudojo.cli.options import repository
    from gpudojo.model.errors import DojoError
    from gpudojo.platforms import seals
    from gpudojo.release.student import release as make

    try:
        files = make(root or repository(), day, target, seals())
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    (wheel,) = (path for path in files if path.startswith("vendor/"))
    size = sum(map(len, files.values()))
    click.echo(f"written: {target}, {len(files)} files, {size / 1e6:.1f} MB, with {wheel}")
    click.echo("No line of a solution is in them. Students begin with the two lines of its README.md.")


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
    from gpudojo.cli.options import repository
    from gpudojo.model.errors import DojoError
    from gpudojo.release import notebooks as making

    root = root or repository()
    reference = root / "reference" / day
    if not reference.is_dir():
        raise click.ClickException(f"there is no folder {reference}")
    try:
        made = making.of_day(root, day, package)  # all of them first: nothing is half-written
        changed = making.write(out or root, made)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
    for path in changed:
        click.echo(f"written: {path}")
    if not changed:
        click.echo(f"All {len(made)} notebooks of {day} are up to date.")
