"""Writes feedback to send: pages or PDFs, Moodle's zip, a table for mail merge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.model.errors import CannotReport
from gpudojo.model.results import ClassResults, ExerciseRow, SubmissionRow, SubmissionStatus
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points, replacing_file, without_surrogates
from gpudojo.platforms._files import new_name, save_csv, save_text
from gpudojo.platforms._rows import VisibleRows
from gpudojo.platforms._tables import ListedPerson, PlatformIds, match_lines, read_worksheet
from gpudojo.platforms._texts import describe_lateness, lines_for_student, one_line
from gpudojo.report.people import Person, name_on_pages
from gpudojo.report.records import RecordStore
from gpudojo.report.student_page import student_page

BROWSERS: Final = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
SECONDS_FOR_PDF: Final = 120
MOST_NAMES: Final = 5  # of those without a page, in a message
TABLE: Final = "feedback.csv"
HEADINGS: Final = [
    "name",
    "email",
    "id",
    "section",
    "submission",
    "status",
    "points",
    "max_points",
    "late",
    "file",
    "feedback",
]
ZIP_DATE: Final = (2020, 1, 1, 0, 0, 0)
NOT_IN_FOLDER_NAME: Final = re.compile(r"[_/\\:*?\"<>|\x00-\x1f]+")

Say = Callable[[str], None]


@dataclass(frozen=True)
class FeedbackOptions:
    """What to write, from which results, to which folder."""

    results: Path  # results.json
    out: Path
    pdf: bool = False
    only: str | None = None
    # Moodle's, for its ids; without it they are taken from the names of files.
    worksheet: Path | None = None
    exercises: tuple[ExerciseRow, ...] = ()


def write_feedback(
    options: FeedbackOptions, header: ClassResults, rows: VisibleRows, say: Say
) -> list[Path]:
    """Write pages or PDFs, `feedback.csv`, and `moodle.zip` where there are ids of Moodle.

    Of one student alone the latter are `feedback-NAME.csv` and `moodle-NAME.zip`. Returns the
    files. Raises DojoError.
    """
    writer = _FeedbackWriter(options, header, rows)
    people = _people_on_moodle(options, rows, writer.names, say)
    lines = [HEADINGS]
    for row in rows:
        if options.only not in (None, row.submission):
            continue
        file = writer.write_page(row)
        cells = _table_cells(row, file, options)
        lines.append([spreadsheet_safe(cell) for cell in cells])
    if writer.without_page:
        _say_who_has_no_page(writer.without_page, say)

    # Files of one student have a name of their own: those of the class stay what they are.
    written = list(writer.written)
    of_one = ""
    if options.only is not None:
        of_one = f"-{without_surrogates(writer.names[options.only])}"
    if people and written:
        archive = options.out / f"moodle{of_one}.zip"
        written.append(_write_zip(archive, people, written))
    table_of_class = options.out / TABLE
    if of_one and table_of_class.exists():
        say(f"{table_of_class} is as it was; to write it again, leave out --only")
    table = save_csv(options.out / f"{Path(TABLE).stem}{of_one}.csv", lines)
    return [table, *written]


class _FeedbackWriter:
    """Writes the pages or PDFs of students."""

    def __init__(self, options: FeedbackOptions, header: ClassResults, rows: VisibleRows) -> None:
        """Begin without any page. Raises CannotReport where PDFs need a browser that is missing."""
        self.folder = options.out
        self.header = header
        self.browser = None  # which prints PDFs
        if options.pdf:
            self.browser = find_browser()
        self.names = _page_names(rows)
        self.records = RecordStore(options.results, header.reference)
        self.written: list[Path] = []
        self.without_page: list[str] = []  # students who handed in nothing

    def write_page(self, row: SubmissionRow) -> str:
        """Write a student's page; returns its path in the folder, empty where there is none.

        Adds it to `written`, or the student to `without_page`. Raises CannotReport.
        """
        if row.status is SubmissionStatus.ABSENT and not row.overrides:
            self.without_page.append(name_on_pages(row))
            return ""
        name = self.names[row.submission]
        person = Person(without_surrogates(name_on_pages(row)), f"{name}.html")
        records = self.records.of_submission(row)
        text = student_page(row, person, self.header, records)
        target = self.folder / "students" / without_surrogates(name)
        if self.browser is None:
            path = save_text(Path(f"{target}.html"), text)
        else:
            path = print_pdf(self.browser, text, Path(f"{target}.pdf"))
        self.written.append(path)
        return path.relative_to(self.folder).as_posix()


def _page_names(rows: VisibleRows) -> dict[str, str]:
    """Return the names of pages, without ending, by submission."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for row in rows:
        names[row.submission] = new_name(row.submission, taken)
    return names


def _say_who_has_no_page(names: list[str], say: Say) -> None:
    """Say for how many there is no page, and the names of the first of them."""
    shown = ", ".join(names[:MOST_NAMES])
    count = len(names)
    if count > MOST_NAMES:
        shown += ", …"
    say(f"no page for {count} on the roster, of whom nothing was handed in: {shown}")


def _table_cells(row: SubmissionRow, file: str, options: FeedbackOptions) -> list[str]:
    """Return a line of the table, as its headings say; `file` is the path of the page."""
    name = row.student
    email = ""
    identifier = row.identifier
    if row.roster:
        name = row.student or row.roster.name
        email = row.roster.email
        identifier = row.roster.id
    about = [
        name or row.submission,
        email,
        identifier or "",
        row.section,
        row.submission,
        row.status.value,
        format_points(row.final.points),
        format_points(row.final.max_points),
        describe_lateness(row),
    ]
    feedback = lines_for_student(row, options.exercises)
    return [*map(one_line, about), file, "\n".join(map(one_line, feedback))]


def _people_on_moodle(
    options: FeedbackOptions, rows: VisibleRows, names: dict[str, str], say: Say
) -> dict[str, ListedPerson]:
    """Return Moodle's id and name of each chosen student whom it knows, by the name of the page.

    Says which lines of a worksheet match nobody. Raises CannotExport for one without ids.
    """
    people: dict[str, ListedPerson] = {}  # by submission
    if options.worksheet is not None:
        _, listed = read_worksheet(options.worksheet)
        for line, row in match_lines(listed, rows, "moodle", say):
            people[row.submission] = listed[line]
    else:
        ids = PlatformIds("moodle", rows)
        for row in rows:
            own_id = ids.id_of(row)
            if own_id:
                name = row.student or row.submission
                people[row.submission] = ListedPerson(own_id, name)
    by_page = {}
    for submission, person in people.items():
        if options.only in (None, submission):
            by_page[names[submission]] = person
    return by_page


def _write_zip(target: Path, people: dict[str, ListedPerson], pages: list[Path]) -> Path:
    """Write a zip of folders NAME_ID_assignfeedback_file_, by which Moodle finds whose it is.

    `people` are by the names of their pages; pages of others are left out. Returns the target.
    """
    with (
        replacing_file(target, lasting=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for page in pages:
            if page.stem not in people:
                continue
            person = people[page.stem]
            name = NOT_IN_FOLDER_NAME.sub(" ", person.name).strip() or "participant"
            folder = f"{name}_{person.id}_assignfeedback_file_"
            entry = zipfile.ZipInfo(f"{folder}/feedback{page.suffix}", ZIP_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, page.read_bytes())
    return target


def find_browser() -> str:
    """Return a browser that prints; raises CannotReport where there is none."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path:
            return path
    raise CannotReport(
        "PDF needs Chromium, Chrome or Edge, and none is installed; leave out --pdf for HTML pages"
    )


def print_pdf(browser: str, text: str, target: Path) -> Path:
    """Write a page as PDF, and return its path.

    `text` is the page's HTML. Raises CannotReport where the browser fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dojo-feedback-") as folder:
        page = Path(folder) / "page.html"
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
        pdf = Path(folder) / "page.pdf"
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={pdf}",
        ]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.append("--no-sandbox")  # which Chromium does not have for root
        command.append(page.as_uri())
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS_FOR_PDF)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotReport(f"{browser} could not print {target.name}: {error}") from None
        if not pdf.is_file():
            status = f"exit status {done.returncode}"
            raise CannotReport(f"{browser} could not print {target.name}: {status}")
        with replacing_file(target, lasting=False) as file:
            file.write(pdf.read_bytes())
    return target
