"""`dojo release`: stubs, notebooks, students' repositories, autograders for platforms; and `dojo classroom`."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from gpudojo.cli.options import (
    FILE,
    FOLDER,
    THAT_FOLDER,
    day_and_root,
    limits,
    references,
    repository,
    secret_seed,
    which_day,
    writing,
)
from gpudojo.platforms import _bundles as bundles
from gpudojo.platforms import seals
from gpudojo.release import stubs as stub_files
from gpudojo.release import student as student_files
from gpudojo.release.notebooks import notebooks_of_day, write_notebooks

if TYPE_CHECKING:
    from gpudojo.release.manifest import Manifest


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
    with writing(exercises):
        changed = (
            stub_files.stale_stubs(reference, exercises)
            if check
            else stub_files.write_stubs(reference, exercises)
        )
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
    click.echo(
        "It contains no line of a solution. Students start with the two commands in its README.md."
    )


@release.command()
@day_and_root
@click.option(
    "--out", type=FOLDER, help="Write notebooks/DAY/ into this folder (default: the repository)."
)
@click.option(
    "--package", metavar="ADDRESS", help="What to install where no wheel is (default: nothing)."
)
def notebooks(day: str, root: Path | None, out: Path | None, package: str | None) -> None:
    """Make one notebook per exercise and one for the whole day from reference/."""
    root, _ = references(root, day)
    made = notebooks_of_day(root, day, package)  # all of them before the first is written
    with writing(out or root):
        changed = write_notebooks(out or root, made)
    for path in changed:
        click.echo(f"written: {path}")
    if not changed:
        click.echo(f"All {len(made)} notebooks of {day} are up to date.")


@release.command()
@click.argument("released", type=THAT_FOLDER)
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
def classroom50(released: Path, target: Path) -> None:
    """Make the autograder for Classroom 50 in DIR, from RELEASED, the output of `dojo release student`."""
    files = bundles.classroom50_bundle(released)
    student_files.write_repository(files, target)
    click.echo(f"written: {target}, {', '.join(sorted(files))}")
    click.echo("Put it into your classroom50 repository as CLASSROOM/autograders/ASSIGNMENT/.")


@release.command()
@click.option(
    "--out", default="gradescope.zip", show_default=True, type=FILE, help="The zip to upload."
)
@secret_seed(help="A secret from which scenarios are made.")
@day_and_root
def gradescope(out: Path, secret: str | None, day: str, root: Path | None) -> None:
    """Make the autograder for Gradescope: a zip with the grader and recorded evidence, without solutions."""
    if out.suffix != ".zip":
        raise click.BadParameter(
            f"{out} does not end in .zip, which Gradescope requires", param_hint="--out"
        )
    data = bundles.gradescope_zip(root or repository(), day, secret)
    bundles.write(out, data)
    seed = (
        "your secret"
        if secret is not None
        else "the public seed; set DOJO_SEED for secret scenarios"
    )
    click.echo(f"written: {out}, {len(data) / 1e6:.1f} MB, with scenarios from {seed}")


IMAGE: Final = re.compile(r"(?:[\w.-]+(?::\d+)?/)?[a-z0-9][a-z0-9._/-]*(?::[\w.-]+)?", re.ASCII)


def _image(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The name of an image for the chosen day; it goes into files and commands."""
    name = value.replace("@DAY@", "day")
    if not IMAGE.fullmatch(name):
        said = f"{name!r} cannot be the name of an image; it has lower-case letters, digits and ._-/, such as gpudojo:1"
        raise click.BadParameter(said)
    return value


def with_image(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments of a bundle with an image: its folder, the image's name, the secret, the day and the repository."""
    for decorate in (
        day_and_root,
        secret_seed(help="A secret from which scenarios are made."),
        click.option(
            "--image",
            default="gpudojo-@DAY@",
            metavar="NAME",
            callback=_image,
            help="What you call the image (default: gpudojo-DAY).",
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
    student_files.write_repository(
        bundles.prairielearn_files(root or repository(), day, image, secret), target
    )
    click.echo(f"written: {target}")
    click.echo(f"Build and push the image: docker build -t {image} {target / 'image'}")
    click.echo(f"Copy {target / 'questions' / day} into the folder `questions` of your course.")


@release.command()
@with_image
def autolab(target: Path, image: str, secret: str | None, day: str, root: Path | None) -> None:
    """Make an assessment for Autolab in DIR, and the folder of its image, which is built on Tango's."""
    image = image.replace("@DAY@", day)
    student_files.write_repository(
        bundles.autolab_files(root or repository(), day, image, secret), target
    )
    click.echo(f"written: {target}")
    click.echo(f"Build the image where Tango runs: docker build -t {image} {target / 'image'}")
    click.echo(
        f"Install Assessment → import {target / f'{day}.tar'}. Students hand in a zip, a .py file or a notebook."
    )


WHOM = {"github": ("github",), "classroom50": ("classroom50",), "both": ("github", "classroom50")}
FAILED = "The grader could not run"
RELEASE: Final = "The release: a student's repository as it was made, or its manifest."
REFERENCE: Final = "Reference solutions to judge by, with the secret in $DOJO_SEED (default: the release's recorded evidence)."


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--out", default=".", type=FOLDER, help="Where result.json goes (default: here).")
@click.option(
    "--for",
    "whom",
    default="both",
    show_default=True,
    type=click.Choice(list(WHOM)),
    help="The platform.",
)
@which_day
@click.option("--release", "released", envvar="DOJO_RELEASE", metavar="RELEASE", help=RELEASE)
@click.option("--reference", type=THAT_FOLDER, help=REFERENCE)
@limits
def classroom(
    folder: Path,
    out: Path,
    whom: str,
    day: str,
    released: str | None,
    reference: Path | None,
    time_limit: float,
    memory_limit: int,
    require_isolation: bool,
) -> None:
    """Grade the checkout in FOLDER, and report to GitHub Classroom's Actions or Classroom 50.

    Student code runs in an isolated process, and nothing in FOLDER can change how it is graded. The exit status is 0
    whenever grading ran, whatever the result.
    """
    environment = dict(os.environ)
    if not hasattr(os, "fork"):
        _stop("grading needs Linux or macOS; on Windows, use WSL", environment)
    from gpudojo.model.errors import DojoError
    from gpudojo.platforms._autograder import choose_what_to_judge_by, grade_checkout
    from gpudojo.platforms.github_classroom import reporting
    from gpudojo.release.manifest import find_changes

    if out.exists() and not out.is_dir():
        raise click.BadParameter(f"{out} is not a folder", param_hint="--out")
    try:
        judged_by = choose_what_to_judge_by(day, environment, reference)
        manifest = _manifest(released)
        with reporting.guard_workflow_files(environment) as touched:
            found = grade_checkout(
                folder, day, judged_by, time_limit, memory_limit, require_isolation
            )
        notes = [judged_by.note] if judged_by.note else []
        notes += [f"The submission wrote to ${name}; this was undone." for name in touched]
        if manifest is None:
            notes.append("There was no release to compare the repository with.")
        elif found.results.gpudojo not in (
            manifest.grader,
            manifest.grader.partition("+")[0],
        ):  # or its clone
            notes.append(
                f"This is gpudojo {found.results.gpudojo}, and the release was made for {manifest.grader}."
            )
        changed = None if manifest is None else tuple(find_changes(folder, manifest))
        report = reporting.Report(found, changed, tuple(notes), _inside(folder, environment))
        for line in report.log(environment.get("GITHUB_ACTIONS") == "true"):
            click.echo(line)
        reporting.write_report(report, WHOM[whom], out, environment)
    except (DojoError, OSError) as error:
        said = (
            str(error)
            if isinstance(error, DojoError)
            else f"cannot use {error.filename or out}: {error.strerror}"
        )
        _stop(said, environment)
    except Exception as error:
        for line in reporting.log_of_output(traceback.format_exc()):
            click.echo(line, err=True)
        _stop(f"this is a bug in gpudojo ({type(error).__name__}); please report it", environment)


def _manifest(given: str | None) -> Manifest | None:
    """The manifest: from its text, where a workflow passes that, from a file, or made of a folder."""
    from gpudojo.model.errors import CannotRelease
    from gpudojo.platforms.github_classroom.workflow import add_workflow
    from gpudojo.release.manifest import LARGEST_FILE, decode_manifest, manifest_of_folder

    if not given:
        return None
    if given.lstrip().startswith("{"):
        return add_workflow(decode_manifest(given))
    path = Path(given)
    if path.is_dir():
        return manifest_of_folder(path)
    if not path.is_file() or path.stat().st_size > LARGEST_FILE:
        raise CannotRelease(f"there is no release at {given}")
    return decode_manifest(path.read_text(encoding="utf-8", errors="replace"))


def _inside(folder: Path, environment: Mapping[str, str]) -> str:
    """The checkout's path inside the workflow's repository."""
    workspace = environment.get("GITHUB_WORKSPACE")
    checkout = folder.resolve()
    if not workspace or not checkout.is_relative_to(Path(workspace).resolve()):
        return ""
    return checkout.relative_to(Path(workspace).resolve()).as_posix().removeprefix(".")


def _stop(why: str, environment: Mapping[str, str]) -> NoReturn:
    """Ends with a message and without a result: an error of the grader must not become a student's grade."""
    from gpudojo.platforms._texts import one_line
    from gpudojo.platforms.github_classroom.reporting import Annotation

    said = one_line(why)
    if environment.get("GITHUB_ACTIONS") == "true":
        click.echo(Annotation("error", FAILED, said).command())
    click.echo(f"Error: {said}".replace("##[", "# #["), err=True)
    sys.exit(1)
