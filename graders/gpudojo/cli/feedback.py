"""`dojo feedback`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from gpudojo.cli.options import FOLDER, THAT_FILE, results_file, writing
from gpudojo.model.errors import printable
from gpudojo.model.results_file import StoredRows, header
from gpudojo.platforms._entries import VisibleRows, no_submission


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=FOLDER, help="The folder to write to.")
@click.option("--pdf", is_flag=True, help="PDF files instead of HTML pages; needs Chromium or Chrome.")
@click.option("--only", metavar="NAME", help="Only this submission.")
@click.option("--worksheet", type=THAT_FILE, help="Moodle's grading worksheet, to find each student's id for the zip.")
@click.option("--early", is_flag=True, help="Also before the course shows results.")
def feedback(results: Path, out: Path, pdf: bool, only: str | None, worksheet: Path | None, early: bool) -> None:
    """Write what students get from RESULTS, a results.json or its folder: a page each, and how to send it.

    A page is one file that needs nothing else. feedback.csv is for mail merge: who, points, and the file to attach.
    Where students are known by Moodle's ids, moodle.zip is for "Upload multiple feedback files in a zip".
    """
    from gpudojo.cli.export import parts
    from gpudojo.report.student_feedback import FeedbackOptions, write_feedback  # only here: the templates take a while

    file = results_file(results)
    head, now = header(file), datetime.now(UTC)
    if not early and not head.visibility.shows(head.visibility.results, head.deadline, now):
        when = f"after {head.deadline}" if head.visibility.results == "after deadline" else "never"
        raise click.ClickException(f"the course shows results {when}; use --early to write feedback all the same")
    rows = VisibleRows(head, StoredRows(file), now)
    names = [row.submission for row in rows]
    if only is not None and only not in names:
        raise click.ClickException(no_submission(only, names, file))
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        options = FeedbackOptions(file, out, pdf, only, worksheet, parts(head, rows))
        written = write_feedback(options, head, rows, lambda said: click.echo(f"note: {printable(said)}", err=True))
    for path in written[:1] + [path for path in written if path.suffix == ".zip"]:
        click.echo(path)
    count = sum(path.parent.name == "students" for path in written)
    click.echo(f"{count} {'PDF' if pdf else 'page'}{'s' * (count != 1)} in {out / 'students'}.")
