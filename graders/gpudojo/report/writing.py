"""Writes a report, and feedback to send: pages, PDF, Moodle's zip, a table for mail merge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.model.errors import BadResults, CannotReport
from gpudojo.model.results import ClassResults, ExerciseRow, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import (
    format_points,
    header,
    iterate,
    replacing_file,
    spreadsheet_safe,
    without_surrogates,
)
from gpudojo.platforms._files import new_name, save, save_csv
from gpudojo.platforms._rows import VisibleRows, submission_named
from gpudojo.platforms._tables import PlatformIds, match_lines, read_worksheet
from gpudojo.platforms._texts import describe_lateness, lines_for_student, one_line
from gpudojo.report.class_page import Tally, class_page
from gpudojo.report.rendering import Person, Roll, kept_secret, page, shown_name
from gpudojo.report.similarity import ComparedWork, similarity_page
from gpudojo.report.student_page import Neighbours, RecordStore, student_page

NEVER_RAN: Final = (SubmissionStatus.UNREADABLE, SubmissionStatus.ABSENT)


@dataclass(frozen=True)
class ReportOptions:
    """Which pages to write, from which results, to which folder."""

    results: Path  # results.json, or the folder it is in
    out: Path
    anonymous: bool = False
    students: bool = True
    only: str | None = None  # one submission's page, and no class page
    similarity: bool = False  # a page of similar submissions too

    @property
    def file(self) -> Path:
        return self.results / "results.json" if self.results.is_dir() else self.results


def write_report(options: ReportOptions, say: Callable[[str], None]) -> list[Path]:
    """Writes the pages and returns them, the one to open first; raises DojoError, whose text is then on a page too."""
    try:
        return _written(options, say)
    except BadResults as error:
        # Otherwise an older class's page would stay in the folder. A mistyped name must not replace one.
        if options.only is None and options.file.name == "results.json" and options.file.exists():
            save(options.out / "index.html", page("problem.html", "", sentence=str(error)))
        raise


def _written(options: ReportOptions, say: Callable[[str], None]) -> list[Path]:
    file = options.file
    head = header(file)
    archive = RecordStore(file, head.reference)
    secret = None
    if options.anonymous:
        secret, warning = kept_secret(file)
        if warning:
            say(warning)
    roll = Roll(secret)
    tally = Tally(head, roll.says)
    written = []
    works: dict[int, ComparedWork] = {}
    people = [roll.person(row) for row in iterate(file)]
    only = None if options.only is None else submission_named(options.only, iterate(file), file)
    # Results are in the order of names, which would tell who is who.
    order = sorted(
        range(len(people)), key=lambda place: people[place].shown if options.anonymous else ""
    )
    ranks = {place: rank for rank, place in enumerate(order)}
    without_records = 0
    for place, row in enumerate(iterate(file)):
        person = people[place]
        tally.add(row, person)
        if options.similarity and (sources := archive.sources(row)):
            works[place] = ComparedWork(sources)
        if only not in (None, row.submission):
            continue
        if options.students or only is not None:
            known = archive.known(row)
            without_records += known.record is None and row.status not in NEVER_RAN
            rank = ranks[place]
            before = people[order[rank - 1]] if rank else None
            after = people[order[rank + 1]] if rank + 1 < len(order) else None
            neighbours = Neighbours(before, after) if only is None else None
            written.append(
                save(options.out / person.file, student_page(row, person, head, known, neighbours))
            )
    if options.only is not None:
        return written
    if options.anonymous:
        tally.lines.sort(
            key=lambda line: line.person.shown
        )  # the places of their rows are not on anonymous pages
    if without_records:
        count = f"{without_records} of {len(tally.lines)}"
        say(f"{count} pages have no timelines: the records of these runs are not in {file.parent}")
    if options.similarity:
        if len(works) == 1:
            raise CannotReport(
                "--similarity compares submissions, and there is only one with sources"
            )
        if not works:
            raise CannotReport(
                f"there are no sources to compare in {file.parent}; grade the class again"
            )
        given = ComparedWork(archive.given) if archive.given else None
        text = similarity_page(people, works, given, options.students, head.title or head.day)
        written.append(save(options.out / "similarity.html", text))
    text = class_page(tally, archive, options.students, options.anonymous, options.similarity)
    return [save(options.out / "index.html", text), *written]


BROWSERS: Final = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
SECONDS: Final = 120  # for one PDF
TABLE: Final = "feedback.csv"
HEADINGS: Final = (
    "name,email,id,section,submission,status,points,max_points,late,file,feedback".split(",")
)


@dataclass(frozen=True)
class FeedbackOptions:
    """What to write, from which results, to which folder."""

    results: Path  # results.json
    out: Path
    pdf: bool = False
    only: str | None = None
    worksheet: Path | None = (
        None  # Moodle's, for its ids; else they are taken from the names of files
    )
    exercises: tuple[ExerciseRow, ...] = ()


def write_feedback(
    options: FeedbackOptions, header: ClassResults, rows: VisibleRows, say: Callable[[str], None]
) -> list[Path]:
    """The files that were written: pages or PDFs, `feedback.csv`, and `moodle.zip` where there are ids of Moodle.

    Of one student alone: `feedback-NAME.csv` and `moodle-NAME.zip`.

    Raises DojoError."""
    browser = found_browser() if options.pdf else None
    ids = dict(_moodle_ids(options, rows, say))
    archive = RecordStore(options.results, header.reference)
    ending = ".pdf" if options.pdf else ".html"
    taken: set[str] = set()
    written: list[Path] = []
    pages: dict[str, str] = {}  # by submission, the name of its page
    nothing: list[str] = []
    lines = [HEADINGS]
    for row in rows:
        name = pages[row.submission] = new_name(row.submission, taken)
        if options.only not in (None, row.submission):
            continue
        file = ""
        if row.status is not SubmissionStatus.ABSENT or row.overrides:
            person = Person(without_surrogates(shown_name(row)), f"{name}.html")
            text = student_page(row, person, header, archive.known(row))
            path = options.out / "students" / f"{without_surrogates(name)}{ending}"
            written.append(print_pdf(browser, text, path) if browser else save(path, text))
            file = path.relative_to(options.out).as_posix()
        else:
            nothing.append(shown_name(row))
        lines.append([spreadsheet_safe(cell) for cell in _line(row, file, options)])
    if nothing:
        shown = ", ".join(nothing[:5]) + ", …" * (len(nothing) > 5)
        say(f"no page for {len(nothing)} on the roster, of whom nothing was handed in: {shown}")
    # Those of the class stay what they are.
    own = "" if options.only is None else f"-{without_surrogates(pages[options.only])}"
    if ids and written:
        written.append(_zipped(options.out / f"moodle{own}.zip", ids, written, ending))
    if own and (options.out / TABLE).exists():
        say(f"{options.out / TABLE} is as it was; to write it again, leave out --only")
    return [save_csv(options.out / f"{Path(TABLE).stem}{own}.csv", lines), *written]


def _line(row: SubmissionRow, file: str, options: FeedbackOptions) -> list[str]:
    listed = row.roster
    grade = row.final
    name = row.student or (listed.name if listed else "") or row.submission
    who = [
        name,
        listed.email if listed else "",
        (listed.id if listed else row.identifier) or "",
        row.section,
    ]
    points = [
        row.status.value,
        format_points(grade.points),
        format_points(grade.max_points),
        describe_lateness(row),
    ]
    lines = "\n".join(one_line(line) for line in lines_for_student(row, options.exercises))
    return [*(one_line(cell) for cell in (*who, row.submission, *points)), file, lines]


def _moodle_ids(
    options: FeedbackOptions, rows: VisibleRows, say: Callable[[str], None]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Moodle's id and the name of each student it knows, by the name of the page."""
    chosen = {row.submission for row in rows if options.only in (None, row.submission)}
    taken: set[str] = set()
    pages = {row.submission: new_name(row.submission, taken) for row in rows}
    if options.worksheet is not None:
        _, listed = read_worksheet(options.worksheet)
        for place, row in match_lines(listed, rows, "moodle", say):
            if row.submission in chosen:
                yield pages[row.submission], listed[place]
        return
    ids = PlatformIds("moodle", rows)
    for row in rows:
        if row.submission in chosen and (own := ids.of(row)):
            yield pages[row.submission], (own, row.student or row.submission)


def _zipped(target: Path, ids: dict[str, tuple[str, str]], pages: list[Path], ending: str) -> Path:
    """Folders named NAME_ID_assignfeedback_file_, by which Moodle finds whose feedback it is."""
    with (
        replacing_file(target, lasting=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for page in pages:
            if page.stem in ids:
                id_, name = ids[page.stem]
                clear = re.sub(r"[_/\\:*?\"<>|\x00-\x1f]+", " ", name).strip() or "participant"
                entry = zipfile.ZipInfo(
                    f"{clear}_{id_}_assignfeedback_file_/feedback{ending}", (2020, 1, 1, 0, 0, 0)
                )
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o100644 << 16
                made.writestr(entry, page.read_bytes())
    return target


def found_browser() -> str:
    """A browser that prints; raises CannotReport where there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise CannotReport(
            "PDF needs Chromium, Chrome or Edge, and none is installed; leave out --pdf for HTML pages"
        )
    return found


def print_pdf(browser: str, text: str, target: Path) -> Path:
    """The page as PDF. Raises CannotReport where the browser fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dojo-feedback-") as folder:
        page = Path(folder) / "page.html"
        made = Path(folder) / "page.pdf"
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            *(["--no-sandbox"] if root else []),
            "--no-first-run",
        ]
        command += [
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={made}",
        ]
        try:
            done = subprocess.run([*command, page.as_uri()], capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotReport(f"{browser} could not print {target.name}: {error}") from None
        if not made.is_file():
            raise CannotReport(
                f"{browser} could not print {target.name}: exit status {done.returncode}"
            )
        with replacing_file(target, lasting=False) as file:
            file.write(made.read_bytes())
    return target
