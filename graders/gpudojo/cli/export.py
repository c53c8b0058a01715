"""`dojo export`, `dojo report` and `dojo feedback`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpudojo.classes.outputs import GivenOptions, note_output
from gpudojo.classes.reviews import ReviewFilter
from gpudojo.cli.options import (
    EXISTING_FILE,
    EXISTING_PATH,
    FOLDER,
    explain_write_errors,
    find_results_file,
    print_note,
)
from gpudojo.cli.single_options import StrictCommand
from gpudojo.model import catalogue
from gpudojo.model.results import (
    ClassResults,
    ExerciseRow,
    GroupFilter,
    SubmissionRow,
    SubmissionStatus,
    sum_points,
)
from gpudojo.model.results_file import StoredRows, count_and_noun, first_names, header
from gpudojo.platforms import (
    Options,
    describe_format,
    exercises_of_day,
    exporter_of,
    format_names,
    is_about_the_class,
    options_used_by,
)
from gpudojo.platforms._rows import VisibleRows, chosen_rows, find_submission, find_submissions
from gpudojo.submissions.own_output import marking_output

if TYPE_CHECKING:
    from gpudojo.report.pdf_printing import Paper

MOST_NAMES: Final = 20  # of those who are still to be marked, in a note
PAPER: Final = "a4"  # where none is asked for


class _CommandWithFormats(StrictCommand):
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
    multiple=True,
    help="A grading worksheet downloaded from Moodle, to be filled in; may be repeated.",
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
    worksheet: tuple[Path, ...],
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
        asked = () if submission is None else (submission,)
        left = _describe_what_is_left(_rows_of(file, asked), file)
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
        with marking_output(out, "dojo export"):
            written = exporter_of(format_)(head, rows, out, options)
        if not is_about_the_class(format_):
            is_whole = submission is None
            chosen = []
            for row in chosen_rows(rows.rows, options):
                if row.submission not in options.left_out:
                    chosen.append(row)
            given: GivenOptions = {
                "--worksheet": worksheet,
                "--gradebook": gradebook,
                "--title": title,
            }
            command = f"export --to {format_}"
            left_out = options.left_out
            _note_files(file, command, out, chosen, is_whole, given, written, left_out)
    for sentence in left:
        print_note(sentence)
    click.echo(f"{count_and_noun(len(written), 'file')} written to {out}.")


def _refuse_unused_options(format_: str, options: Mapping[str, object]) -> None:
    """Raise UsageError for an option that is given and that the format would not use."""
    for name, value in options.items():
        if value and name not in options_used_by(format_):
            raise click.UsageError(f"--{name} does not go with --to {format_}")


def _describe_what_is_left(rows: Iterable[SubmissionRow], results: Path) -> list[str]:
    """Sentences about what counts and what people still have to review and to mark, if anything.

    `results` is the file of results. Raises BadResults where it cannot be read.
    """
    count = 0
    reviews = 0
    reviewed = 0
    to_mark: dict[str, list[str]] = {}  # names of students, by what is missing
    work = ReviewFilter()
    groups = GroupFilter()
    for row in rows:
        if row.reasons_to_review and work.is_first(row):
            if row.review:
                reviews += 1
            else:
                reviewed += 1
        if row.to_grade:
            to_mark.setdefault(", ".join(row.to_grade), []).append(row.called)
        if row.review or row.status is not SubmissionStatus.ABSENT:
            count += groups.is_new_work(row)
    sentences = header(results).unusual_rules
    if reviews:
        verb = "need"
        if reviews == 1:
            verb = "needs"
        done = f" ({reviewed} reviewed already)" if reviewed else ""
        sentences.append(
            f"{reviews} of {count} submissions {verb} review{done}; "
            f"the reasons: dojo review --out {results.parent}"
        )
    for items, students in to_mark.items():
        names = ", ".join(students[:MOST_NAMES])
        if len(students) > MOST_NAMES:
            names += f", … (all names: dojo status {results.parent} --all)"
        sentences.append(
            f"{count_and_noun(len(students), 'student')} still to mark by hand ({items}), "
            f"with 0 points for it until then: {names}"
        )
    return sentences


def exercises_of_class(
    head: ClassResults, rows: Iterable[SubmissionRow]
) -> tuple[ExerciseRow, ...]:
    """The exercises of the day without points, for submissions that could not be graded.

    They come from rows of others, or from the catalogue where these do not have all of them. Raises
    BadDay where the day cannot be imported.
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


@click.command(cls=StrictCommand)
@click.argument("results", type=EXISTING_PATH)
@click.option(
    "--out", type=FOLDER, help="The folder for the pages (default: `report` beside the results)."
)
@click.option("--anonymous", is_flag=True, help="Use pseudonyms, the same each time.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only the page of this submission or student; may be repeated.",
)
@click.option(
    "--similarity", is_flag=True, help="Also compare submissions with each other: similarity.html."
)
@click.option("--no-students", "class_only", is_flag=True, help="Only the class page.")
def report(
    results: Path,
    out: Path | None,
    anonymous: bool,
    only: tuple[str, ...],
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

    if only and class_only:
        raise click.UsageError(
            "--only writes one student's page and --no-students none: choose one"
        )
    file = find_results_file(results)
    target = out or file.parent / "report"
    if similarity and (anonymous or only):
        raise click.UsageError(
            "--similarity names pairs of students: leave out --anonymous and --only"
        )
    options = ReportOptions(file, target, anonymous, not class_only, only, similarity)
    with explain_write_errors(target), marking_output(target, "dojo report"):
        pages = write_report(options, print_note)
        if not anonymous:
            chosen = _rows_of(file, only)
            given: GivenOptions = {"--similarity": similarity, "--no-students": class_only}
            _note_files(file, "report", target, chosen, not only, given, pages)
    for sentence in _describe_what_is_left(_rows_of(file, only), file):
        print_note(sentence)
    click.echo(f"{count_and_noun(len(pages), 'page')} written; open {pages[0]}.")


@click.command(cls=StrictCommand)
@click.argument("results", type=EXISTING_PATH)
@click.option("--out", required=True, type=FOLDER, help="The folder to write to.")
@click.option(
    "--pdf", is_flag=True, help="PDF files instead of HTML pages; needs Chromium or Chrome."
)
@click.option(
    "--paper",
    default=PAPER,
    show_default=True,
    type=click.Choice(["a4", "letter"]),
    help="The paper of PDF files.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only this submission or student; may be repeated; the class's tables stay.",
)
@click.option(
    "--worksheet",
    type=EXISTING_FILE,
    multiple=True,
    help="Moodle's grading worksheet, to find each student's id for the zip; may be repeated. "
    "Those in the roster are known without it.",
)
@click.option("--early", is_flag=True, help="Also before the course shows results.")
def feedback(
    results: Path,
    out: Path,
    pdf: bool,
    paper: Paper,
    only: tuple[str, ...],
    worksheet: tuple[Path, ...],
    early: bool,
) -> None:
    """Write what students get from RESULTS, a results.json or its folder: a page each, and how to
    send it.

    A page is one file that needs nothing else. feedback.csv is for mail merge: who, points, and the
    file to attach. Where students are known by Moodle's ids, moodle.zip is for "Upload multiple
    feedback files in a zip"; where Canvas named the files, canvas.zip is for "Upload Submissions".
    """
    # Only here: the templates take a while.
    from gpudojo.report.feedback_files import FeedbackOptions, write_feedback
    from gpudojo.report.pdf_printing import started_printer

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
    chosen = find_submissions(only, rows, file)
    with contextlib.ExitStack() as stack:
        printer = None
        if pdf:
            printer = stack.enter_context(started_printer(paper))
        stack.enter_context(explain_write_errors(out))
        stack.enter_context(marking_output(out, "dojo feedback"))
        exercises = exercises_of_class(head, rows)
        options = FeedbackOptions(file, out, printer, chosen, worksheet, exercises)
        written = write_feedback(options, head, rows, print_note)
        command = "feedback --pdf" if pdf else "feedback"
        given: GivenOptions = {
            "--worksheet": worksheet,
            "--early": early,
            "--paper": paper if pdf and paper != PAPER else None,
        }
        rows_written = _rows_of(file, only)
        _note_files(file, command, out, rows_written, not only, given, written)
    for sentence in _describe_what_is_left(_rows_of(file, only), file):
        print_note(sentence)
    for number, path in enumerate(written):
        if number == 0 or path.suffix == ".zip":
            click.echo(path)
    students = [path for path in written if path.parent.name == "students"]
    documents = count_and_noun(len(students), "PDF" if pdf else "page")
    click.echo(f"{documents} in {out / 'students'}.")


def _note_files(
    file: Path,
    command: str,
    target: Path,
    rows: Iterable[SubmissionRow],
    is_whole: bool,
    options: GivenOptions,
    written: Iterable[Path],
    left_out: Iterable[str] = (),
) -> None:
    """Note what a command wrote, and say which files of an earlier time were deleted.

    `file` is the file of results, the others are those of `note_output`. Raises BadResults where
    rows cannot be read, and OSError.
    """
    deleted = note_output(file.parent, command, target, rows, is_whole, options, written, left_out)
    if deleted:
        files = count_and_noun(len(deleted), "file")
        names = first_names(deleted, MOST_NAMES)
        print_note(f"{files} of an earlier time deleted in {target}: {names}")


def _rows_of(file: Path, only: Sequence[str]) -> Iterator[SubmissionRow]:
    """Yield the rows of a file of results that have pages: those that were asked for, or all.

    `only` names submissions or students. Raises BadClass where nobody or several have a name, and
    BadResults where the file cannot be read.
    """
    chosen = find_submissions(only, StoredRows(file), file)
    for row in StoredRows(file):
        if not chosen or row.submission in chosen:
            yield row
