"""How is `dojo report` spoken to? The command that makes pages of results."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Where pages go (default: report, there)."
)
@click.option("--anonymous", is_flag=True, help="Show made-up names, the same ones each time.")
@click.option("--only", metavar="NAME", help="Only this submission's page.")
@click.option("--no-students", "class_only", is_flag=True, help="Only the page of the class.")
def report(results: Path, out: Path | None, anonymous: bool, only: str | None, class_only: bool) -> None:
    """Make pages of RESULTS, a results.json of `dojo grade` or its folder: one of the class, one for each student.

    Each page is one file that loads nothing. With --anonymous no name is on a page or in the name of a file.
    """
    from graders.errors import DojoError
    from graders.report import Wanted, write_report

    if only is not None and class_only:
        raise click.UsageError("--only asks for a student's page and --no-students for none: choose one")
    folder = results if results.is_dir() else results.parent
    target = out or folder / "report"
    wanted = Wanted(results, target, anonymous, not class_only, only)
    try:
        written = write_report(wanted, lambda sentence: click.echo(f"note: {sentence}", err=True))
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename or target}: {error.strerror}") from error
    click.echo(f"{len(written)} page{'s' * (len(written) != 1)} written; open {written[0]}.")
