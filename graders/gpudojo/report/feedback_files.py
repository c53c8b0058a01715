"""Writes feedback to send: pages or PDFs, zips for Moodle and Canvas, a table for mail merge."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.model.results import ClassResults, ExerciseRow, SubmissionRow
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import (
    count_and_noun,
    first_names,
    format_points,
    replacing_file,
    without_surrogates,
)
from gpudojo.platforms import Options
from gpudojo.platforms._files import BYTE_ORDER_MARK, new_name, save_csv, save_text
from gpudojo.platforms._rows import VisibleRows
from gpudojo.platforms._tables import ListedPerson, PlatformIds, id_on, match_lines, read_worksheet
from gpudojo.platforms._texts import describe_lateness, lines_for_student, one_line
from gpudojo.report.pdf_printing import PdfPrinter
from gpudojo.report.people import Person, name_on_pages
from gpudojo.report.records import RecordStore
from gpudojo.report.student_page import student_page
from gpudojo.submissions.names import parse_platform_name
from gpudojo.submissions.own_output import ZIP_COMMENT

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
    printer: PdfPrinter | None = None  # makes PDFs; None for HTML pages
    only: tuple[str, ...] = ()  # these submissions; all where there are none
    # Moodle's, for its ids; without them they are taken from the names of files and the roster.
    worksheet: tuple[Path, ...] = ()
    exercises: tuple[ExerciseRow, ...] = ()


def write_feedback(
    options: FeedbackOptions, header: ClassResults, rows: VisibleRows, say: Say
) -> list[Path]:
    """Write pages or PDFs, `feedback.csv`, and zips for the platforms that know the students.

    `moodle.zip` is written where there are ids of Moodle, `canvas.zip` where Canvas named files. Of
    one student alone they are `feedback-NAME.csv`, `moodle-NAME.zip` and `canvas-NAME.zip`, of
    several `feedback-NAME-and-1-more.csv`. `say` is called with remarks for the user. Returns the
    files. Raises DojoError, and OSError where a file cannot be written.
    """
    writer = _FeedbackWriter(options, header, rows)
    people = _people_on_moodle(options, rows, writer.names, say)
    canvas_names = _names_on_canvas(rows, writer.names)
    lines = [HEADINGS]
    for row in rows:
        if options.only and row.submission not in options.only:
            continue
        file = writer.write_page(row)
        cells = _table_cells(row, file, options)
        lines.append([spreadsheet_safe(cell) for cell in cells])
    if writer.without_page:
        _say_who_has_no_page(writer.without_page, say)

    written = list(writer.written)
    of_chosen = _ending_of_names(options.only, writer.names)
    for platform, names_in_zip in (
        ("moodle", _moodle_names(people, writer.written, options.worksheet, say)),
        ("canvas", _canvas_names(canvas_names, writer.written, say)),
    ):
        if names_in_zip:
            archive = options.out / f"{platform}{of_chosen}.zip"
            written.append(_write_zip(archive, names_in_zip))
    table_of_class = options.out / TABLE
    if of_chosen and table_of_class.exists():
        say(f"{table_of_class} is as it was; to write it again, leave out --only")
    table_file = options.out / f"{Path(TABLE).stem}{of_chosen}.csv"
    table = save_csv(table_file, lines, mark=BYTE_ORDER_MARK)
    return [table, *written]


def _ending_of_names(only: Sequence[str], names: Mapping[str, str]) -> str:
    """Return what stands at the end of the names of tables and zips of chosen students.

    So those of the class stay what they are. Empty where none are chosen. `names` are those of
    pages, by submission.
    """
    if not only:
        return ""
    ending = f"-{without_surrogates(names[only[0]])}"
    if len(only) > 1:
        ending += f"-and-{len(only) - 1}-more"
    return ending


class _FeedbackWriter:
    """Writes the pages or PDFs of students."""

    def __init__(self, options: FeedbackOptions, header: ClassResults, rows: VisibleRows) -> None:
        """Begin without any page: choose their names, and load the record of the reference.

        Raises BadResults where the rows cannot be read.
        """
        self.folder = options.out
        self.header = header
        self.printer = options.printer
        self.names = _page_names(rows)
        self.records = RecordStore(options.results, header.reference)
        self.written: list[Path] = []
        self.without_page: list[str] = []  # students who handed in nothing

    def write_page(self, row: SubmissionRow) -> str:
        """Write a student's page; returns its path in the folder, empty where there is none.

        Adds it to `written`, or the student to `without_page`. Raises CannotReport where no PDF can
        be made, and OSError where it cannot be written.
        """
        if row.is_empty:
            self.without_page.append(name_on_pages(row))
            return ""
        name = self.names[row.submission]
        person = Person(without_surrogates(name_on_pages(row)), f"{name}.html")
        records = self.records.of_submission(row)
        text = student_page(row, person, self.header, records)
        target = self.folder / "students" / without_surrogates(name)
        if self.printer is None:
            path = save_text(Path(f"{target}.html"), text)
        else:
            path = self.printer.print_page(text, Path(f"{target}.pdf"))
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
    shown = first_names(names, MOST_NAMES)
    say(f"no page for {len(names)} on the roster, of whom nothing was handed in: {shown}")


def _table_cells(row: SubmissionRow, file: str, options: FeedbackOptions) -> list[str]:
    """Return a line of the table, as its headings say; `file` is the path of the page."""
    name = row.student
    if row.roster:
        name = row.student or row.roster.name
    about = [
        name or row.submission,
        row.email,
        row.id,
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

    Says who is in none of the worksheets. Raises CannotExport for one without ids.
    """
    people: dict[str, ListedPerson] = {}  # by submission
    if options.worksheet:
        listed = {}
        for number, path in enumerate(options.worksheet):
            for line, person in read_worksheet(path).people.items():
                listed[number, line] = person
        everybody = Options(say=say)
        for place, row in match_lines(listed, rows, "moodle", everybody, fills_table=False):
            people[row.submission] = listed[place]
    else:
        ids = PlatformIds("moodle", rows)
        for row in rows:
            own_id = ids.id_of(row)
            if own_id:
                name = row.student or row.submission
                people[row.submission] = ListedPerson(own_id, name)
    by_page = {}
    for submission, person in people.items():
        if not options.only or submission in options.only:
            by_page[names[submission]] = person
    return by_page


def _moodle_names(
    people: dict[str, ListedPerson], pages: list[Path], worksheets: Sequence[Path], say: Say
) -> dict[Path, str]:
    """Return the names of pages in a zip for Moodle: NAME_ID_assignfeedback_file_/feedback.html.

    `people` are by the names of their pages. Pages of others are left out; says whose they are,
    unless Moodle knows nobody, and why.
    """
    names = {}
    left_out = []
    for page in pages:
        if page.stem not in people:
            left_out.append(page.stem)
            continue
        person = people[page.stem]
        name = NOT_IN_FOLDER_NAME.sub(" ", person.name).strip() or "participant"
        folder = f"{name}_{person.id}_assignfeedback_file_"
        names[page] = f"{folder}/feedback{page.suffix}"
    if names and left_out:
        reason = "which handed out no files of these students; with its grading worksheet they are"
        reason += " known: --worksheet FILE"
        if worksheets:
            files = ", ".join(map(str, worksheets))
            reason = f"because these students are not in {files}"
        count = count_and_noun(len(left_out), "page")
        say(f"{count} not in the zip for Moodle, {reason}: {first_names(left_out, MOST_NAMES)}")
    return names


def _names_on_canvas(rows: VisibleRows, names: dict[str, str]) -> dict[str, str]:
    """Return what Canvas wrote before the name of each student's file, by the name of the page.

    It is "name_USERID_FILEID_". A member of a group has none for a file that another one handed in.
    """
    prefixes = {}
    for row in rows:
        parsed = parse_platform_name(row.canvas_file, is_folder=False)
        if parsed is not None and parsed.identifier == id_on("canvas", row):
            prefixes[names[row.submission]] = row.canvas_file.removesuffix(parsed.rest)
    return prefixes


def _canvas_names(prefixes: dict[str, str], pages: list[Path], say: Say) -> dict[Path, str]:
    """Return the names of pages in a zip for Canvas: name_USERID_FILEID_feedback.html.

    `prefixes` are by the names of pages. Says whose pages are left out, unless Canvas knows nobody.
    """
    names = {}
    left_out = []
    for page in pages:
        if page.stem in prefixes:
            names[page] = f"{prefixes[page.stem]}feedback{page.suffix}"
        else:
            left_out.append(page.stem)
    if prefixes and left_out:
        count = count_and_noun(len(left_out), "page")
        say(
            f"{count} not in the zip for Canvas, which handed out no file of these students: "
            f"{first_names(left_out, MOST_NAMES)}"
        )
    return names


def _write_zip(target: Path, names: dict[Path, str]) -> Path:
    """Write a zip of pages, each under the name that is given for it. Returns the target.

    Raises OSError where a page cannot be read or the zip not written.
    """
    with (
        replacing_file(target, lasting=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for page, name in names.items():
            entry = zipfile.ZipInfo(name, ZIP_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, page.read_bytes())
        archive.comment = ZIP_COMMENT
    return target
