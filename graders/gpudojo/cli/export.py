"""`dojo export` and `dojo report`."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click

from gpudojo.cli.options import writing
from gpudojo.model import catalogue
from gpudojo.model.results import total
from gpudojo.model.results_file import stored
from gpudojo.platforms import Options, Part, Results, describe, exporter, formats, parts_of


class _Described(click.Command):
    """A command whose help describes each format by the first sentence of its module."""

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
@click.option("--title", help="The name of the assignment on the platform.")
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

    def say(sentence: str) -> None:
        click.echo(f"note: {sentence}", err=True)

    with writing(out):
        found = stored(results)
        # All of them, before a line is written: the file may be truncated.
        names = {row.submission: bool(row.needs_human) for row in found.submissions}
        if submission is not None and submission not in names:
            near = difflib.get_close_matches(submission, names, 3)
            meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
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
    if review := sum(names.values()):
        say(f"{review} of {len(names)} submissions need review; the reasons are in {results}.")
    click.echo(f"{len(written)} file{'s' * (len(written) != 1)} written to {out}.")


def parts(results: Results) -> tuple[Part, ...]:
    """The exercises of the day, for submissions that could not be graded: from other rows or the catalogue."""
    rows: dict[str, Part] = {}
    for submission in results.submissions:
        rows |= {row.exercise: Part(row.exercise, row.title, row.max_score) for row in submission.exercises}
    seen = tuple(part for _, part in sorted(rows.items()))
    if total(part.max_score for part in seen) == results.max_score:
        return seen
    return parts_of(results.day) if results.day in catalogue.days() else seen


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the pages (default: `report` beside the results).",
)
@click.option("--anonymous", is_flag=True, help="Use pseudonyms, the same each time.")
@click.option("--only", metavar="NAME", help="Only this submission's page.")
@click.option("--no-students", "class_only", is_flag=True, help="Only the class page.")
def report(results: Path, out: Path | None, anonymous: bool, only: str | None, class_only: bool) -> None:
    """Make HTML pages of RESULTS, a results.json or its folder: one for the class, and one for each student.

    Each page is one file that loads nothing else. With --anonymous, pages and file names contain no names.
    """
    from gpudojo.report.writing import ReportOptions, write_report  # only here: `dojo export` needs no templates

    if only is not None and class_only:
        raise click.UsageError("--only writes one student's page and --no-students none: choose one")
    target = out or (results if results.is_dir() else results.parent) / "report"
    options = ReportOptions(results, target, anonymous, not class_only, only)
    with writing(target):
        written = write_report(options, lambda sentence: click.echo(f"note: {sentence}", err=True))
    click.echo(f"{len(written)} page{'s' * (len(written) != 1)} written; open {written[0]}.")
