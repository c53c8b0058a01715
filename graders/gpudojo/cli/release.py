"""`dojo release`: what students and platforms get; and `dojo classroom`."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from gpudojo.classes.course_file import load_course
from gpudojo.cli.options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    day_option,
    explain_write_errors,
    find_reference,
    find_repository,
    seed_option,
    with_day_and_root,
    with_limits,
)
from gpudojo.cli.single_options import StrictCommand, StrictGroup
from gpudojo.platforms import _bundles as bundles
from gpudojo.platforms import find_seals
from gpudojo.release import stubs as stub_files
from gpudojo.release import student as student_files
from gpudojo.release.notebooks import notebooks_of_day, write_notebooks

if TYPE_CHECKING:
    from gpudojo.release.manifest import Manifest


@click.group(cls=StrictGroup)
def release() -> None:
    """Make what students get."""


@release.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a stub is stale.")
@with_day_and_root
def stubs(check: bool, day: str, root: Path | None) -> None:
    """Make exercises/ from reference/: the same files without their solutions."""
    root = find_repository(day, root)
    reference = find_reference(root, day)
    exercises = root / "exercises" / day
    with explain_write_errors(exercises):
        if check:
            changed = stub_files.stale_stubs(reference, exercises)
        else:
            changed = stub_files.write_stubs(reference, exercises)
    has_left_over = False
    for name in changed:
        state = "written"
        if check:
            state = "stale"
        if not (reference / name).is_file():
            state = "no reference for it"
            has_left_over = True
        click.echo(f"{state}: {exercises / name}")
    if not changed:
        click.echo(f"All stubs of {day} are up to date.")
    elif check:
        click.echo("run: dojo release stubs", err=True)
    if (check and changed) or has_left_over:
        raise SystemExit(1)


@release.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@with_day_and_root
@click.option(
    "--course",
    type=EXISTING_FILE,
    help="A course file: students get what counts, and the README tells the rules.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="EXERCISE",
    help="Students get this exercise (04, or its name) only; may be repeated.",
)
def student(
    target: Path, day: str, root: Path | None, course: Path | None, only: tuple[str, ...]
) -> None:
    """Make a student's repository in DIR: stubs, notebooks, settings, and the grader as a wheel
    without solutions.

    The references are run and graded first, and every file is searched for lines of a solution.
    This takes about 15 seconds, needs no network, and gives the same bytes every time.
    """
    rules = None
    if course is not None:
        rules = load_course(course)
        if rules.day not in (None, day):
            raise click.UsageError(f"{course} is about {rules.day}; give --day {rules.day}")
    # Before the minutes that the rest may take.
    left_out = student_files.exercises_left_out(day, only, rules)
    files = student_files.write_release(
        find_repository(day, root), day, target, find_seals(), course=rules, left_out=left_out
    )
    [wheel] = [path for path in files if path.startswith("vendor/")]
    size = sum(len(data) for data in files.values())
    megabytes = size / 1e6
    click.echo(f"written: {target}, {len(files)} files, {megabytes:.1f} MB, with {wheel}")
    click.echo(
        "It contains no line of a solution. Students start with the two commands in its README.md."
    )


@release.command()
@with_day_and_root
@click.option(
    "--out", type=FOLDER, help="Write notebooks/DAY/ into this folder (default: the repository)."
)
@click.option(
    "--package", metavar="ADDRESS", help="What to install where no wheel is (default: nothing)."
)
def notebooks(day: str, root: Path | None, out: Path | None, package: str | None) -> None:
    """Make one notebook per exercise and one for the whole day from reference/."""
    root = find_repository(day, root)
    find_reference(root, day)  # raises where there is none
    # All of them are made before the first is written.
    notebooks = notebooks_of_day(root, day, package)
    with explain_write_errors(out or root):
        changed = write_notebooks(out or root, notebooks)
    for path in changed:
        click.echo(f"written: {path}")
    if not changed:
        click.echo(f"All {len(notebooks)} notebooks of {day} are up to date.")


@release.command()
@click.argument("released", type=EXISTING_FOLDER)
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
def classroom50(released: Path, target: Path) -> None:
    """Make the autograder for Classroom 50 in DIR, from RELEASED, the output of `dojo release
    student`.
    """
    files = bundles.classroom50_bundle(released)
    student_files.write_new_folder(files, target)
    click.echo(f"written: {target}, {', '.join(sorted(files))}")
    click.echo("Put it into your classroom50 repository as CLASSROOM/autograders/ASSIGNMENT/.")


def with_choice(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--only` to a command that makes a bundle."""
    return click.option(
        "--only",
        multiple=True,
        metavar="EXERCISE",
        help="Grade this exercise (04, or its name) only; may be repeated.",
    )(command)


@release.command()
@click.option(
    "--out", default="gradescope.zip", show_default=True, type=FILE, help="The zip to upload."
)
@seed_option(help="A secret from which scenarios are made.")
@with_day_and_root
@with_choice
def gradescope(
    out: Path, secret: str | None, day: str, root: Path | None, only: tuple[str, ...]
) -> None:
    """Make the autograder for Gradescope: a zip with the grader and recorded evidence, without
    solutions.
    """
    if out.suffix != ".zip":
        raise click.BadParameter(
            f"{out} does not end in .zip, which Gradescope requires", param_hint="--out"
        )
    left_out = student_files.exercises_left_out(day, only)
    data = bundles.gradescope_zip(find_repository(day, root), day, secret, left_out)
    bundles.write_upload(out, data)
    seed = "your secret"
    if secret is None:
        seed = "the public seed; set DOJO_SEED for secret scenarios"
    megabytes = len(data) / 1e6
    click.echo(f"written: {out}, {megabytes:.1f} MB, with scenarios from {seed}")


IMAGE: Final = re.compile(r"(?:[\w.-]+(?::\d+)?/)?[a-z0-9][a-z0-9._/-]*(?::[\w.-]+)?", re.ASCII)


def _check_image(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The name of an image, as it is; raises BadParameter: it goes into files and commands."""
    name = value.replace("@DAY@", "day")
    if not IMAGE.fullmatch(name):
        raise click.BadParameter(
            f"{name!r} cannot be the name of an image; "
            "it has lower-case letters, digits and ._-/, such as gpudojo:1"
        )
    return value


def with_image(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments of a bundle with an image to a command.

    These are DIR, `--image`, `--seed`, `--day`, `--root` and `--only`.
    """
    target = click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
    image = click.option(
        "--image",
        default="gpudojo-@DAY@",
        metavar="NAME",
        callback=_check_image,
        help="What you call the image (default: gpudojo-DAY).",
    )
    seed = seed_option(help="A secret from which scenarios are made.")
    return target(image(seed(with_day_and_root(with_choice(command)))))


@release.command()
@with_image
def prairielearn(
    target: Path, image: str, secret: str | None, day: str, root: Path | None, only: tuple[str, ...]
) -> None:
    """Make a question for PrairieLearn's external grader in DIR, and the folder of its image."""
    image = image.replace("@DAY@", day)
    left_out = student_files.exercises_left_out(day, only)
    files = bundles.prairielearn_files(find_repository(day, root), day, image, secret, left_out)
    student_files.write_new_folder(files, target)
    click.echo(f"written: {target}")
    click.echo(f"Build and push the image: docker build -t {image} {target / 'image'}")
    click.echo(f"Copy {target / 'questions' / day} into the folder `questions` of your course.")


@release.command()
@with_image
def autolab(
    target: Path, image: str, secret: str | None, day: str, root: Path | None, only: tuple[str, ...]
) -> None:
    """Make an assessment for Autolab in DIR, and the folder of its image, which is built on
    Tango's.
    """
    image = image.replace("@DAY@", day)
    left_out = student_files.exercises_left_out(day, only)
    files = bundles.autolab_files(find_repository(day, root), day, image, secret, left_out)
    student_files.write_new_folder(files, target)
    click.echo(f"written: {target}")
    click.echo(f"Build the image where Tango runs: docker build -t {image} {target / 'image'}")
    click.echo(
        f"Install Assessment → import {target / f'{day}.tar'}. "
        "Students hand in a zip, a .py file or a notebook."
    )


WHOM = {"github": ("github",), "classroom50": ("classroom50",), "both": ("github", "classroom50")}
FAILED = "The grader could not run"
RELEASE: Final = "The release: a student's repository as it was made, or its manifest."
REFERENCE: Final = (
    "Reference solutions to judge by, with the secret in $DOJO_SEED "
    "(default: the release's recorded evidence)."
)


@click.command(cls=StrictCommand)
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
@day_option
@click.option("--release", "released", envvar="DOJO_RELEASE", metavar="RELEASE", help=RELEASE)
@click.option("--reference", type=EXISTING_FOLDER, help=REFERENCE)
@with_limits
def classroom(**arguments: Any) -> None:
    """Grade the checkout in FOLDER, and report to GitHub Classroom's Actions or Classroom 50.

    Student code runs in an isolated process, and nothing in FOLDER can change how it is graded. The
    exit status is 0 whenever grading ran, whatever the result.
    """
    asked = ClassroomArguments(**arguments)
    environment = dict(os.environ)
    if not hasattr(os, "fork"):
        _stop_with_error("grading needs Linux or macOS; on Windows, use WSL", environment)
    from gpudojo.model.errors import DojoError
    from gpudojo.platforms.github_classroom import reporting

    if asked.out.exists() and not asked.out.is_dir():
        raise click.BadParameter(f"{asked.out} is not a folder", param_hint="--out")
    try:
        _grade_checkout(asked, environment)
    except DojoError as error:
        _stop_with_error(str(error), environment)
    except OSError as error:
        path = error.filename or asked.out
        _stop_with_error(f"cannot use {path}: {error.strerror}", environment)
    except Exception as error:  # of ours: it must not become a student's grade
        for line in reporting.log_of_output(traceback.format_exc()):
            click.echo(line, err=True)
        _stop_with_error(
            f"this is a bug in gpudojo ({type(error).__name__}); please report it", environment
        )


@dataclass(frozen=True)
class ClassroomArguments:
    """What the user asks of `dojo classroom`: its arguments, by the names that click gives them."""

    folder: Path
    out: Path
    whom: str
    day: str
    released: str | None
    reference: Path | None
    time_limit: float
    memory_limit: int
    require_isolation: bool


def _grade_checkout(asked: ClassroomArguments, environment: dict[str, str]) -> None:
    """Grade a checkout, print the log, and write the report; raises DojoError and OSError.

    What student code writes to the workflow's files meanwhile is undone, and the report says so.
    """
    from gpudojo.platforms._autograder import choose_what_to_judge_by, grade_checkout
    from gpudojo.platforms.github_classroom import reporting
    from gpudojo.release.manifest import find_changes

    # Grade it; what it writes to the workflow's files meanwhile is undone.
    judged_by = choose_what_to_judge_by(asked.day, environment, asked.reference)
    manifest = _find_manifest(asked.released)
    with reporting.guard_workflow_files(environment) as touched:
        graded = grade_checkout(
            asked.folder,
            asked.day,
            judged_by,
            asked.time_limit,
            asked.memory_limit,
            asked.require_isolation,
            manifest.only if manifest else (),
        )
    # What a person should know of it.
    notes = []
    if judged_by.note:
        notes.append(judged_by.note)
    for name in touched:
        notes.append(f"The submission wrote to ${name}; this was undone.")
    changed = None
    if manifest is None:
        notes.append("There was no release to compare the repository with.")
    else:
        notes += _doubt_about_version(graded.results.gpudojo, manifest.grader)
        changed = tuple(find_changes(asked.folder, manifest))
    inside = _path_in_workspace(asked.folder, environment)
    report = reporting.Report(graded, changed, tuple(notes), inside)
    for line in report.log_lines(environment.get("GITHUB_ACTIONS") == "true"):
        click.echo(line)
    reporting.write_report(report, WHOM[asked.whom], asked.out, environment)


def _doubt_about_version(here: str, released: str) -> list[str]:
    """A note where this is neither the grader of the release nor the clone it was made from."""
    if here in (released, released.partition("+")[0]):
        return []
    return [f"This is gpudojo {here}, and the release was made for {released}."]


def _find_manifest(given: str | None) -> Manifest | None:
    """The manifest of a release; None where nothing is given.

    `given` is its text, where a workflow passes that, a file with it, or the folder of a whole
    release. A workflow cannot hold its own hash, so that is added to a text. Raises CannotRelease
    where it is none of them, BadDay where the day cannot be imported, and OSError.
    """
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


def _path_in_workspace(folder: Path, environment: Mapping[str, str]) -> str:
    """The checkout's path inside the workflow's repository; empty where it is elsewhere."""
    workspace = environment.get("GITHUB_WORKSPACE")
    checkout = folder.resolve()
    if not workspace or not checkout.is_relative_to(Path(workspace).resolve()):
        return ""
    return checkout.relative_to(Path(workspace).resolve()).as_posix().removeprefix(".")


def _stop_with_error(why: str, environment: Mapping[str, str]) -> NoReturn:
    """End the command with a message and exit status 1, and without a result.

    An error of the grader must not become a student's grade. Raises SystemExit. In a workflow of
    GitHub, by the environment, it is also an annotation.
    """
    from gpudojo.platforms._texts import one_line
    from gpudojo.platforms.github_classroom.reporting import Annotation

    reason = one_line(why)
    if environment.get("GITHUB_ACTIONS") == "true":
        click.echo(Annotation("error", FAILED, reason).as_command())
    # A line that begins with ##[ would be a command to the workflow.
    click.echo(f"Error: {reason}".replace("##[", "# #["), err=True)
    sys.exit(1)
