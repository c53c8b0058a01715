"""`dojo export` and `dojo report`."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click

from gpudojo.model.results import total
from gpudojo.model.results_file import stored
from gpudojo.platforms import Options, Part, Results, describe, exporter, formats, parts_of


class _Described(click.Command):
    """A command whose help tells what each format is, in the words of the format's own module."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Formats"):
            formatter.write_dl([(name, describe(name)) for name in formats()])


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(cls=_Described)
@click.argument("results", type=_FILE)
@click.option("--to", "format_", required=True, type=click.Choice(formats()), help="The format.")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder to write to.")
@click.option("--worksheet", type=_FILE, help="A grading worksheet downloaded from Moodle, to be filled in.")
@click.option("--gradebook", type=_FILE, help="A gradebook downloaded from Canvas, to be filled in.")
@click.option("--title", help="What the assignment is called there.")
@click.option("--submission", help="Only this submission; its files go into the folder itself.")
def export(
    results: Path,
    format_: str,
    out: Path,
    worksheet: Path | None,
    gradebook: Path | None,
    title: str | None,
    submission: str | None,
) -> None:
    """Write RESULTS, a results.json of `dojo grade`, for another program."""
    from gpudojo.model.errors import DojoError

    def say(sentence: str) -> None:
        click.echo(f"note: {sentence}", err=True)

    try:
        found = stored(results)
        # All of them, before a line is written: a file may be cut off.
        names = {row.submission: bool(row.needs_human) for row in found.submissions}
        if submission is not None and submission not in names:
            near = difflib.get_close_matches(submission, names, 3)
            meant = f"; is it {' or '.join(map(repr, near))}?" if near else ""
            raise click.ClickException(f"{results} has no submission {submission!r}{meant}")
        options = Options(
            worksheet=worksheet,
            gradebook=gradebook,
            title=title,
            submission=submission,
            exercises=parts(found),
            environment=dict(os.environ),
            say=say,
        )
        out.mkdir(parents=True, exist_ok=True)
        written = exporter(format_)(found, out, options)
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename or out}: {error.strerror}") from error
    if human := sum(names.values()):
        say(f"{human} of {len(names)} submissions need a person to look at them; {results} says why.")
    click.echo(f"{len(written)} file{'s' * (len(written) != 1)} written to {out}.")


def parts(results: Results) -> tuple[Part, ...]:
    """The exercises of the day, for submissions that could not be graded: from the others, or from the curriculum."""
    rows: dict[str, Part] = {}
    for submission in results.submissions:
        rows |= {row.exercise: Part(row.exercise, row.title, row.max_score) for row in submission.exercises}
    seen = tuple(part for _, part in sorted(rows.items()))
    if total(part.max_score for part in seen) == results.max_score:
        return seen
    from gpudojo.model import catalogue

    if results.day not in catalogue.days():
        return seen
    return parts_of(results.day)


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
    from gpudojo.model.errors import DojoError
    from gpudojo.report.writing import ReportOptions, write_report

    if only is not None and class_only:
        raise click.UsageError("--only asks for a student's page and --no-students for none: choose one")
    folder = results if results.is_dir() else results.parent
    target = out or folder / "report"
    wanted = ReportOptions(results, target, anonymous, not class_only, only)
    try:
        written = write_report(wanted, lambda sentence: click.echo(f"note: {sentence}", err=True))
    except DojoError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename or target}: {error.strerror}") from error
    click.echo(f"{len(written)} page{'s' * (len(written) != 1)} written; open {written[0]}.")
