"""`dojo export`, `dojo report` and `dojo feedback`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click

from gpudojo.cli.options import FOLDER, THAT, THAT_FILE, results_file, writing
from gpudojo.model import catalogue
from gpudojo.model.errors import printable_text
from gpudojo.model.results import (
    ClassResults,
    ExerciseRow,
    SubmissionRow,
    SubmissionStatus,
    sum_points,
)
from gpudojo.model.results_file import StoredRows, header
from gpudojo.platforms import (
    Options,
    describe,
    exercises_of_day,
    exporter,
    formats,
    is_about_the_class,
    options_used_by,
)
from gpudojo.platforms._rows import VisibleRows, submission_named


class _Described(click.Command):
    """A command whose help describes each format by the first sentence of its module."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Formats"):
            formatter.write_dl([(name, describe(name)) for name in formats()])


@click.command(cls=_Described)
@click.argument("results", type=THAT)
@click.option(
    "--to",
    "format_",
    required=True,
    type=click.Choice(formats(), case_sensitive=False),
    help="The format.",
)
@click.option("--out", required=True, type=FOLDER, help="The folder to write to.")
@click.option(
    "--worksheet",
    type=THAT_FILE,
    help="A grading worksheet downloaded from Moodle, to be filled in.",
)
@click.option(
    "--gradebook", type=THAT_FILE, help="A gradebook downloaded from Canvas, to be filled in."
)
@click.option("--title", help="The name of the assignment on Canvas or in nbgrader.")
@click.option(
    "--submission", help="Only this submission or student; the files go into the folder itself."
)
def export(
    results: Path,
    format_: str,
    out: Path,
    worksheet: Path | None,
    gradebook: Path | None,
    title: str | None,
    submission: str | None,
) -> None:
    """Write RESULTS, a results.json of `dojo grade` or its folder, for another program."""

    def say(sentence: str) -> None:
        click.echo(f"note: {printable_text(sentence)}", err=True)

    for name, given in {"worksheet": worksheet, "gradebook": gradebook, "title": title}.items():
        if given is not None and name not in options_used_by(format_):
            raise click.UsageError(f"--{name} does not go with --to {format_}")
    if submission is not None and is_about_the_class(format_):
        raise click.UsageError(
            f"--submission does not go with --to {format_}, which is about the whole class"
        )
    results = results_file(results)
    with writing(out):
        head = header(results)
        rows = VisibleRows(head, StoredRows(results), datetime.now(UTC))
        # All of them, before a line is written: the file may be truncated.
        reviews = [
            bool(row.review)
            for row in rows
            if row.review or row.status is not SubmissionStatus.ABSENT
        ]
        if submission is not None:
            submission = submission_named(submission, rows, results)
        if withheld := rows.describe_withheld():
            say(f"{withheld}; this export does not hide them, unless the platform does.")
        known = parts(head, rows)
        environment = dict(os.environ)
        options = Options(
            worksheet, gradebook, title, submission, known, results.parent, environment, say=say
        )
        out.mkdir(parents=True, exist_ok=True)
        written = exporter(format_)(head, rows, out, options)
    if review := sum(reviews):
        verb = "needs" if review == 1 else "need"
        say(
            f"{review} of {len(reviews)} submissions {verb} review; the reasons are in {results.with_suffix('.csv')}."
        )
    click.echo(f"{len(written)} file{'s' * (len(written) != 1)} written to {out}.")


def parts(header: ClassResults, rows: Iterable[SubmissionRow]) -> tuple[ExerciseRow, ...]:
    """The exercises of the day, for submissions that could not be graded: from other rows or the catalogue."""
    every = (each for row in rows for each in row.exercises)
    known = {
        each.exercise: ExerciseRow(each.exercise, each.title, 0.0, each.max_score) for each in every
    }
    seen = tuple(part for _, part in sorted(known.items()))
    if (
        sum_points(part.max_score for part in seen) == header.max_score
        or header.day not in catalogue.day_names()
    ):
        return seen
    return exercises_of_day(header.day)


@click.command()
@click.argument("results", type=THAT)
@click.option(
    "--out", type=FOLDER, help="The folder for the pages (default: `report` beside the results)."
)
@click.option("--anonymous", is_flag=True, help="Use pseudonyms, the same each time.")
@click.option("--only", metavar="NAME", help="Only the page of this submission or student.")
@click.option(
    "--similarity", is_flag=True, help="Also compare submissions with each other: similarity.html."
)
@click.option("--no-students", "class_only", is_flag=True, help="Only the class page.")
def report(
    results: Path,
    out: Path | None,
    anonymous: bool,
    only: str | None,
    similarity: bool,
    class_only: bool,
) -> None:
    """Make HTML pages of RESULTS, a results.json or its folder: one for the class, and one for each student.

    Each page is one file that loads nothing else. With --anonymous, pages and file names contain no names.
    """
    # Only here: `dojo export` needs no templates.
    from gpudojo.report.writing import ReportOptions, write_report

    if only is not None and class_only:
        raise click.UsageError(
            "--only writes one student's page and --no-students none: choose one"
        )
    results = results_file(results)
    target = out or results.parent / "report"
    if similarity and (anonymous or only is not None):
        raise click.UsageError(
            "--similarity names pairs of students: leave out --anonymous and --only"
        )
    options = ReportOptions(results, target, anonymous, not class_only, only, similarity)
    with writing(target):
        written = write_report(
            options, lambda sentence: click.echo(f"note: {printable_text(sentence)}", err=True)
        )
    click.echo(f"{len(written)} page{'s' * (len(written) != 1)} written; open {written[0]}.")


@click.command()
@click.argument("results", type=THAT)
@click.option("--out", required=True, type=FOLDER, help="The folder to write to.")
@click.option(
    "--pdf", is_flag=True, help="PDF files instead of HTML pages; needs Chromium or Chrome."
)
@click.option(
    "--only", metavar="NAME", help="Only this submission or student; the class's tables stay."
)
@click.option(
    "--worksheet",
    type=THAT_FILE,
    help="Moodle's grading worksheet, to find each student's id for the zip.",
)
@click.option("--early", is_flag=True, help="Also before the course shows results.")
def feedback(
    results: Path, out: Path, pdf: bool, only: str | None, worksheet: Path | None, early: bool
) -> None:
    """Write what students get from RESULTS, a results.json or its folder: a page each, and how to send it.

    A page is one file that needs nothing else. feedback.csv is for mail merge: who, points, and the file to attach.
    Where students are known by Moodle's ids, moodle.zip is for "Upload multiple feedback files in a zip".
    """
    # Only here: the templates take a while.
    from gpudojo.report.feedback_files import FeedbackOptions, write_feedback

    file = results_file(results)
    head = header(file)
    now = datetime.now(UTC)
    rows = VisibleRows(head, StoredRows(file), now, early)
    withheld = "" if early else rows.describe_withheld()
    if withheld and not any(True for _ in rows):
        raise click.ClickException(f"{withheld}; use --early to write feedback all the same")
    if withheld:
        click.echo(
            f"note: {withheld} and get no feedback now; use --early to write it all the same",
            err=True,
        )
    if only is not None:
        only = submission_named(only, rows, file)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        options = FeedbackOptions(file, out, pdf, only, worksheet, parts(head, rows))
        written = write_feedback(
            options, head, rows, lambda said: click.echo(f"note: {printable_text(said)}", err=True)
        )
    for path in written[:1] + [path for path in written if path.suffix == ".zip"]:
        click.echo(path)
    count = sum(path.parent.name == "students" for path in written)
    click.echo(f"{count} {'PDF' if pdf else 'page'}{'s' * (count != 1)} in {out / 'students'}.")
