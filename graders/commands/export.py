"""How is `dojo export` spoken to? The command that writes class results for another program."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click

from graders.export import Options, Part, Results, describe, exporter, formats
from graders.results import stored, total


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
    from graders.errors import DojoError

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
    from graders.curriculum import catalogue

    if results.day not in catalogue.DAYS:
        return seen
    return tuple(Part(each.stem, each.title, float(each.points)) for each in catalogue.day(results.day))
