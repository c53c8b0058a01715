"""`dojo classroom` and `dojo release gradescope|classroom50`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gpudojo.cli.options import which_day, which_root

if TYPE_CHECKING:
    from gpudojo.platforms.github_classroom.messages import Report
    from gpudojo.release.manifest import Manifest


WHOM = {"github": ("github",), "classroom50": ("classroom50",), "both": ("github", "classroom50")}
FAILED = "The grader could not run"


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option(
    "--out",
    default=".",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where result.json goes (default: here).",
)
@click.option("--for", "whom", default="both", show_default=True, type=click.Choice(list(WHOM)), help="Who reads it.")
@which_day
@click.option(
    "--release",
    "released",
    envvar="DOJO_RELEASE",
    metavar="RELEASE",
    help="What was released: a student's repository as it was made, or its manifest.",
)
@click.option(
    "--reference",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Reference solutions to judge by, with the secret in $DOJO_SEED (default: the release's recorded evidence).",
)
@click.option("--time-limit", default=10.0, show_default=True, type=click.FloatRange(min=0.1), metavar="S")
@click.option("--memory-limit", default="2 GiB", show_default=True, help="Memory the submission may take.")
@click.option("--require-isolation", is_flag=True, help="Refuse to grade where a layer of isolation is missing.")
def classroom(
    folder: Path,
    out: Path,
    whom: str,
    day: str,
    released: str | None,
    reference: Path | None,
    time_limit: float,
    memory_limit: str,
    require_isolation: bool,
) -> None:
    """Grade the checkout in FOLDER, and tell GitHub Classroom's Actions or Classroom 50 what came of it.

    Student code runs in a process of its own that can reach nothing. Nothing in FOLDER has a say in how it is graded.
    Exits with 0 whenever grading ran, whatever came of it.
    """
    environment = dict(os.environ)
    if not hasattr(os, "fork"):
        _stop("grading needs Linux or macOS; on Windows, use WSL", environment)
    from virtual_cuda import parse_size
    from virtual_cuda.errors import BadSize

    from gpudojo.model.errors import DojoError
    from gpudojo.platforms._checkout import Terms, measure
    from gpudojo.platforms.github_classroom import messages as reporting

    try:
        memory = parse_size(memory_limit)
    except BadSize as error:
        raise click.BadParameter(str(error), param_hint="--memory-limit") from None
    if out.exists() and not out.is_dir():
        raise click.BadParameter(f"{out} is no folder", param_hint="--out")
    try:
        terms = Terms(day, measure(day, environment, reference), time_limit, memory, require_isolation)
        report = _report(folder, terms, _manifest(released), environment)
        for line in report.log(environment.get("GITHUB_ACTIONS") == "true"):
            click.echo(line)
        reporting.write(report, WHOM[whom], out, environment)
    except (DojoError, OSError) as error:
        said = str(error) if isinstance(error, DojoError) else f"{error.filename or out}: {error.strerror}"
        _stop(said, environment)
    except Exception as error:
        from gpudojo.platforms.github_classroom.messages import quoted

        for line in quoted(traceback.format_exc()):
            click.echo(line, err=True)
        _stop(f"this is a fault of gpudojo ({type(error).__name__}); please report it", environment)


def _report(folder: Path, terms: object, released: Manifest | None, environment: Mapping[str, str]) -> Report:
    from gpudojo.platforms._checkout import Terms, graded
    from gpudojo.platforms.github_classroom import messages as action_files
    from gpudojo.platforms.github_classroom.messages import Report
    from gpudojo.release.manifest import changes

    assert isinstance(terms, Terms)
    with action_files.guarded(environment) as touched:
        found = graded(folder, terms)
    notes = [terms.measure.note] if terms.measure.note else []
    notes += [f"The submission wrote to ${name}; this was undone." for name in touched]
    if released is None:
        notes.append("There was no release to compare the repository with.")
    elif found.results.gpudojo not in (released.grader, released.grader.partition("+")[0]):  # or the clone it is from
        notes.append(f"This is gpudojo {found.results.gpudojo}, and the release was made for {released.grader}.")
    changed = None if released is None else tuple(changes(folder, released))
    return Report(found, changed, tuple(notes), _inside(folder, environment))


def _manifest(given: str | None) -> Manifest | None:
    """The manifest: its own text where a workflow gives it, which then is part of the release as well."""
    from gpudojo.model.errors import CannotRelease
    from gpudojo.platforms.github_classroom.workflow import with_workflow
    from gpudojo.release.manifest import LARGEST, loaded, of_folder

    if not given:
        return None
    if given.lstrip().startswith("{"):
        return with_workflow(loaded(given))
    path = Path(given)
    if path.is_dir():
        return of_folder(path)
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise CannotRelease(f"there is no release at {given}")
    return loaded(path.read_text(encoding="utf-8", errors="replace"))


def _inside(folder: Path, environment: Mapping[str, str]) -> str:
    """Where in the workflow's repository the checkout lies."""
    workspace = environment.get("GITHUB_WORKSPACE")
    if not workspace:
        return ""
    try:
        found = folder.resolve().relative_to(Path(workspace).resolve()).as_posix()
    except ValueError:
        return ""
    return "" if found == "." else found


def _stop(why: str, environment: Mapping[str, str]) -> NoReturn:
    """A sentence, and nothing that could be taken for a result: our fault is no grade of a student."""
    from gpudojo.platforms._entries import one_line
    from gpudojo.platforms.github_classroom.messages import Annotation

    said = one_line(why)
    if environment.get("GITHUB_ACTIONS") == "true":
        click.echo(Annotation("error", FAILED, said).command())
    click.echo(f"Error: {said}".replace("##[", "# #["), err=True)
    sys.exit(1)


@click.command()
@click.argument("released", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
def classroom50(released: Path, target: Path) -> None:
    """Make the autograder for Classroom 50 in DIR, from RELEASED, which `dojo release student` has written."""
    from gpudojo.model.errors import DojoError
    from gpudojo.platforms.classroom50.bundle import bundle
    from gpudojo.release import student as tree

    try:
        files = bundle(released)
        tree.write(files, target)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"written: {target}, {', '.join(sorted(files))}")
    click.echo("Put it into your classroom50 repository as CLASSROOM/autograders/ASSIGNMENT/.")


@click.command()
@click.option(
    "--out",
    default="gradescope.zip",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The zip to upload.",
)
@click.option("--seed", "secret", envvar="DOJO_SEED", metavar="SECRET", help="A secret the scenarios are drawn from.")
@which_day
@which_root
def gradescope(out: Path, secret: str | None, day: str, root: Path | None) -> None:
    """Make the autograder for Gradescope: a zip with the grader and recorded evidence, without solutions."""
    from gpudojo.cli.options import repository
    from gpudojo.model.errors import DojoError
    from gpudojo.platforms.gradescope.bundle import archive, write

    if out.suffix != ".zip":
        raise click.BadParameter(f"{out} does not end in .zip, which Gradescope asks for", param_hint="--out")
    try:
        data = archive(root or repository(), day, secret)
        write(out, data)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    seed = "your secret" if secret is not None else "the public seed; set DOJO_SEED for numbers that only you know"
    click.echo(f"written: {out}, {len(data) / 1e6:.1f} MB, with scenarios drawn from {seed}")
