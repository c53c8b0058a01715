"""`dojo export`, `dojo report` and `dojo feedback`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from gpudojo.cli.options import (
    EXISTING_FILE,
    EXISTING_PATH,
    FOLDER,
    explain_write_errors,
    find_results_file,
    print_note,
)
from gpudojo.model import catalogue
from gpudojo.model.results import (
    ClassResults,
    ExerciseRow,
    SubmissionRow,
    SubmissionStatus,
    sum_points,
)
from gpudojo.model.results_file import StoredRows, count_and_noun, header
from gpudojo.platforms import (
    Options,
    describe_format,
    exercises_of_day,
    exporter_of,
    format_names,
    is_about_the_class,
    options_used_by,
)
from gpudojo.platforms._rows import VisibleRows, find_submission


class _CommandWithFormats(click.Command):
    """A command whose help describes each format by the first sentence of its module."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of formats at the end of the help."""
        with formatter.section("Formats"):
            formatter.write_dl([(name, describe_format(name)) for name in format_names()])


@click.command(cls=_CommandWithFormats)
@click.argument("results", type=EXISTING_PATH)
@click.option(
    "--to",
    "format_",
    required=True,
    type=click.Choice(format_names(), case_sensitive=False),
    help="The format.",
)
@click.option("--out", required=True, type=FOLDER, help="The folder to write to.")
@click.option(
    "--worksheet",
    type=EXISTING_FILE,
    help="A grading worksheet downloaded from Moodle, to be filled in.",
)
@click.option(
    "--gradebook", type=EXISTING_FILE, help="A gradebook downloaded from Canvas, to be filled in."
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
    _refuse_unused_options(
        format_, {"worksheet": worksheet, "gradebook": gradebook, "title": title}
    )
    if submission is not None and is_about_the_class(format_):
        raise click.UsageError(
            f"--submission does not go with --to {format_}, which is about the whole class"
        )
    file = find_results_file(results)
    with explain_write_errors(out):
        head = header(file)
        rows = VisibleRows(head, StoredRows(file), datetime.now(UTC))
        # All rows are read before a line is written: the file may be truncated.
        review = _describe_reviews(rows, file)
        if submission is not None:
            submission = find_submission(submission, rows, file)
        withheld = rows.describe_withheld()
        if withheld:
            print_note(f"{withheld}; this export does not hide them, unless the platform does.")
        options = Options(
            worksheet,
            gradebook,
            title,
            submission,
            exercises_of_class(head, rows),
            file.parent,
            dict(os.environ),
            say=print_note,
        )
        out.mkdir(parents=True, exist_ok=True)
        written = exporter_of(format_)(head, rows, out, options)
    if review:
        print_note(review)
    click.echo(f"{count_and_noun(len(written), 'file')} written to {out}.")


def _refuse_unused_options(format_: str, options: Mapping[str, Path | str | None]) -> None:
    """Raises UsageError for an option that the format would not use."""
    for name, value in options.items():
        if value is not None and name not in options_used_by(format_):
            raise click.UsageError(f"--{name} does not go with --to {format_}")


def _describe_reviews(rows: Iterable[SubmissionRow], results: Path) -> str:
    """How many submissions need review, in a sentence; empty if none does."""
    count = 0
    reviews = 0
    for row in rows:
        if row.review:
            reviews += 1
        if row.review or row.status is not SubmissionStatus.ABSENT:
            count += 1
    if not reviews:
        return ""
    verb = "need"
    if reviews == 1:
        verb = "needs"
    table = results.with_suffix(".csv")
    return f"{reviews} of {count} submissions {verb} review; the reasons are in {table}."


def exercises_of_class(
    head: ClassResults, rows: Iterable[SubmissionRow]
) -> tuple[ExerciseRow, ...]:
    """The exercises of the day without points, for submissions that could not be graded.

    They come from rows of others, or from the catalogue where these do not have all of them.
    """
    by_name = {}
    for row in rows:
        for each in row.exercises:
            without_points = ExerciseRow(each.exercise, each.title, 0.0, each.max_score)
            by_name[each.exercise] = without_points
    exercises = tuple(exercise for _, exercise in sorted(by_name.items()))
    is_whole = sum_points(each.max_score for each in exercises) == head.max_score
    if is_whole or head.day not in catalogue.day_names():
        return exercises
    return exercises_of_day(head.day)


@click.command()
@click.argument("results", type=EXISTING_PATH)
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
    """Make HTML pages of RESULTS, a results.json or its folder: one for the class, and one for each
    student.

    Each page is one file that loads nothing else. With --anonymous, pages and file names contain no
    names.
    """
    # Only here: `dojo export` needs no templates.
    from gpudojo.report.writing import ReportOptions, write_report

    if only is not None and class_only:
        raise click.UsageError(
            "--only writes one student's page and --no-students none: choose one"
        )
    file = find_results_file(results)
    target = out or file.parent / "report"
    if similarity and (anonymous or only is not None):
        raise click.UsageError(
            "--similarity names pairs of students: leave out --anonymous and --only"
        )
    options = ReportOptions(file, target, anonymous, not class_only, only, similarity)
    with explain_write_errors(target):
        pages = write_report(options, print_note)
    click.echo(f"{count_and_noun(len(pages), 'page')} written; open {pages[0]}.")


@click.command()
@click.argument("results", type=EXISTING_PATH)
@click.option("--out", required=True, type=FOLDER, help="The folder to write to.")
@click.option(
    "--pdf", is_flag=True, help="PDF files instead of HTML pages; needs Chromium or Chrome."
)
@click.option(
    "--only", metavar="NAME", help="Only this submission or student; the class's tables stay."
)
@click.option(
    "--worksheet",
    type=EXISTING_FILE,
    help="Moodle's grading worksheet, to find each student's id for the zip.",
)
@click.option("--early", is_flag=True, help="Also before the course shows results.")
def feedback(
    results: Path, out: Path, pdf: bool, only: str | None, worksheet: Path | None, early: bool
) -> None:
    """Write what students get from RESULTS, a results.json or its folder: a page each, and how to
    send it.

    A page is one file that needs nothing else. feedback.csv is for mail merge: who, points, and the
    file to attach. Where students are known by Moodle's ids, moodle.zip is for "Upload multiple
    feedback files in a zip".
    """
    # Only here: the templates take a while.
    from gpudojo.report.feedback_files import FeedbackOptions, write_feedback

    file = find_results_file(results)
    head = header(file)
    rows = VisibleRows(head, StoredRows(file), datetime.now(UTC), early)
    if early:
        withheld = ""
    else:
        withheld = rows.describe_withheld()
    if withheld:
        if next(iter(rows), None) is None:
            raise click.ClickException(f"{withheld}; use --early to write feedback all the same")
        print_note(f"{withheld} and get no feedback now; use --early to write it all the same")
    if only is not None:
        only = find_submission(only, rows, file)
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        exercises = exercises_of_class(head, rows)
        options = FeedbackOptions(file, out, pdf, only, worksheet, exercises)
        written = write_feedback(options, head, rows, print_note)
    for number, path in enumerate(written):
        if number == 0 or path.suffix == ".zip":
            click.echo(path)
    students = [path for path in written if path.parent.name == "students"]
    documents = count_and_noun(len(students), "PDF" if pdf else "page")
    click.echo(f"{documents} in {out / 'students'}.")
