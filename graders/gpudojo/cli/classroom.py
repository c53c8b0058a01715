"""`dojo classroom`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from gpudojo.cli.options import FOLDER, THAT_FOLDER, limits, which_day

if TYPE_CHECKING:
    from gpudojo.release.manifest import Manifest


WHOM = {"github": ("github",), "classroom50": ("classroom50",), "both": ("github", "classroom50")}
FAILED = "The grader could not run"
RELEASE: Final = "The release: a student's repository as it was made, or its manifest."
REFERENCE: Final = (
    "Reference solutions to judge by, with the secret in $DOJO_SEED (default: the release's recorded evidence)."
)


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--out", default=".", type=FOLDER, help="Where result.json goes (default: here).")
@click.option("--for", "whom", default="both", show_default=True, type=click.Choice(list(WHOM)), help="The platform.")
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
    from gpudojo.platforms._checkout import graded, judged_by
    from gpudojo.platforms.github_classroom import reporting
    from gpudojo.release.manifest import changes

    if out.exists() and not out.is_dir():
        raise click.BadParameter(f"{out} is not a folder", param_hint="--out")
    try:
        measure, manifest = judged_by(day, environment, reference), _manifest(released)
        with reporting.guarded(environment) as touched:
            found = graded(folder, day, measure, time_limit, memory_limit, require_isolation)
        notes = [measure.note] if measure.note else []
        notes += [f"The submission wrote to ${name}; this was undone." for name in touched]
        if manifest is None:
            notes.append("There was no release to compare the repository with.")
        elif found.results.gpudojo not in (manifest.grader, manifest.grader.partition("+")[0]):  # or its clone
            notes.append(f"This is gpudojo {found.results.gpudojo}, and the release was made for {manifest.grader}.")
        changed = None if manifest is None else tuple(changes(folder, manifest))
        report = reporting.Report(found, changed, tuple(notes), _inside(folder, environment))
        for line in report.log(environment.get("GITHUB_ACTIONS") == "true"):
            click.echo(line)
        reporting.write(report, WHOM[whom], out, environment)
    except (DojoError, OSError) as error:
        said = str(error) if isinstance(error, DojoError) else f"{error.filename or out}: {error.strerror}"
        _stop(said, environment)
    except Exception as error:
        for line in reporting.quoted(traceback.format_exc()):
            click.echo(line, err=True)
        _stop(f"this is a bug in gpudojo ({type(error).__name__}); please report it", environment)


def _manifest(given: str | None) -> Manifest | None:
    """The manifest: from its text, where a workflow passes that, from a file, or made of a folder."""
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
    """The checkout's path inside the workflow's repository."""
    workspace, checkout = environment.get("GITHUB_WORKSPACE"), folder.resolve()
    if not workspace or not checkout.is_relative_to(Path(workspace).resolve()):
        return ""
    return checkout.relative_to(Path(workspace).resolve()).as_posix().removeprefix(".")


def _stop(why: str, environment: Mapping[str, str]) -> NoReturn:
    """Ends with a message and without a result: an error of the grader must not become a student's grade."""
    from gpudojo.platforms._entries import one_line
    from gpudojo.platforms.github_classroom.reporting import Annotation

    said = one_line(why)
    if environment.get("GITHUB_ACTIONS") == "true":
        click.echo(Annotation("error", FAILED, said).command())
    click.echo(f"Error: {said}".replace("##[", "# #["), err=True)
    sys.exit(1)
