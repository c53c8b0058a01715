"""`dojo release`: stubs, notebooks, students' repositories, and autograders for platforms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from gpudojo.cli.options import FILE, FOLDER, THAT_FOLDER, day_and_root, references, repository, secret_seed, writing
from gpudojo.platforms import _autograder as autograder
from gpudojo.platforms import seals
from gpudojo.platforms.classroom50.bundle import bundle
from gpudojo.release import notebooks as notebook_files
from gpudojo.release import stubs as stub_files
from gpudojo.release import student as student_files


@click.group()
def release() -> None:
    """Make what students get."""


@release.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a stub is stale.")
@day_and_root
def stubs(check: bool, day: str, root: Path | None) -> None:
    """Make exercises/ from reference/: the same files without their solutions."""
    root, reference = references(root, day)
    exercises = root / "exercises" / day
    changed = stub_files.stale(reference, exercises) if check else stub_files.write(reference, exercises)
    left_over = [name for name in changed if not (reference / name).is_file()]
    for name in changed:
        state = "no reference for it" if name in left_over else "stale" if check else "written"
        click.echo(f"{state}: {exercises / name}")
    if not changed:
        click.echo(f"All stubs of {day} are up to date.")
    elif check:
        click.echo("run: dojo release stubs", err=True)
    if (check and changed) or left_over:
        raise SystemExit(1)


@release.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@day_and_root
def student(target: Path, day: str, root: Path | None) -> None:
    """Make a student's repository in DIR: stubs, notebooks, settings, and the grader as a wheel without solutions.

    The references are run and graded first, and every file is searched for lines of a solution. This takes about 15
    seconds, needs no network, and gives the same bytes every time.
    """
    files = student_files.release(root or repository(), day, target, seals())
    (wheel,) = (path for path in files if path.startswith("vendor/"))
    size = sum(map(len, files.values()))
    click.echo(f"written: {target}, {len(files)} files, {size / 1e6:.1f} MB, with {wheel}")
    click.echo("It contains no line of a solution. Students start with the two commands in its README.md.")


@release.command()
@day_and_root
@click.option("--out", type=FOLDER, help="Write notebooks/DAY/ into this folder (default: the repository).")
@click.option("--package", metavar="ADDRESS", help="What to install where no wheel is (default: nothing).")
def notebooks(day: str, root: Path | None, out: Path | None, package: str | None) -> None:
    """Make one notebook per exercise and one for the whole day from reference/."""
    root, _ = references(root, day)
    made = notebook_files.of_day(root, day, package)  # all of them before the first is written
    with writing(out or root):
        changed = notebook_files.write(out or root, made)
    for path in changed:
        click.echo(f"written: {path}")
    if not changed:
        click.echo(f"All {len(made)} notebooks of {day} are up to date.")


@release.command()
@click.argument("released", type=THAT_FOLDER)
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
def classroom50(released: Path, target: Path) -> None:
    """Make the autograder for Classroom 50 in DIR, from RELEASED, the output of `dojo release student`."""
    files = bundle(released)
    student_files.write(files, target)
    click.echo(f"written: {target}, {', '.join(sorted(files))}")
    click.echo("Put it into your classroom50 repository as CLASSROOM/autograders/ASSIGNMENT/.")


@release.command()
@click.option("--out", default="gradescope.zip", show_default=True, type=FILE, help="The zip to upload.")
@secret_seed(help="A secret from which scenarios are made.")
@day_and_root
def gradescope(out: Path, secret: str | None, day: str, root: Path | None) -> None:
    """Make the autograder for Gradescope: a zip with the grader and recorded evidence, without solutions."""
    if out.suffix != ".zip":
        raise click.BadParameter(f"{out} does not end in .zip, which Gradescope requires", param_hint="--out")
    data = autograder.gradescope_zip(root or repository(), day, secret)
    autograder.write(out, data)
    seed = "your secret" if secret is not None else "the public seed; set DOJO_SEED for secret scenarios"
    click.echo(f"written: {out}, {len(data) / 1e6:.1f} MB, with scenarios from {seed}")


def with_image(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments of a bundle with an image: its folder, the image's name, the secret, the day and the repository."""
    for decorate in (
        day_and_root,
        secret_seed(help="A secret from which scenarios are made."),
        click.option(
            "--image", default="gpudojo-@DAY@", metavar="NAME", help="What you call the image (default: gpudojo-DAY)."
        ),
        click.argument("target", metavar="DIR", type=click.Path(path_type=Path)),
    ):
        command = decorate(command)
    return command


@release.command()
@with_image
def prairielearn(target: Path, image: str, secret: str | None, day: str, root: Path | None) -> None:
    """Make a question for PrairieLearn's external grader in DIR, and the folder of its image."""
    image = image.replace("@DAY@", day)
    student_files.write(autograder.prairielearn_files(root or repository(), day, image, secret), target)
    click.echo(f"written: {target}")
    click.echo(f"Build and push the image: docker build -t {image} {target / 'image'}")
    click.echo(f"Copy {target / 'questions' / day} into the folder `questions` of your course.")


@release.command()
@with_image
def autolab(target: Path, image: str, secret: str | None, day: str, root: Path | None) -> None:
    """Make an assessment for Autolab in DIR, and the folder of its image, which is built on Tango's."""
    image = image.replace("@DAY@", day)
    student_files.write(autograder.autolab_files(root or repository(), day, image, secret), target)
    click.echo(f"written: {target}")
    click.echo(f"Build the image where Tango runs: docker build -t {image} {target / 'image'}")
    click.echo(
        f"Install Assessment → import {target / f'{day}.tar'}. Students hand in a zip, a .py file or a notebook."
    )
