"""Writes the pages of a report: the class, each student, similar submissions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpudojo.model.errors import BadResults, CannotReport
from gpudojo.model.results import GroupFilter, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import StoredRows, header, iterate
from gpudojo.platforms._files import save_text
from gpudojo.platforms._rows import find_submissions
from gpudojo.report.class_page import Tally, class_page
from gpudojo.report.people import Person, Roll, secret_of_pseudonyms
from gpudojo.report.records import RecordStore
from gpudojo.report.rendering import render_page
from gpudojo.report.similarity import ComparedWork, similarity_page
from gpudojo.report.student_page import Neighbours, student_page

NEVER_RAN: Final = (SubmissionStatus.UNREADABLE, SubmissionStatus.ABSENT)

Say = Callable[[str], None]


@dataclass(frozen=True)
class ReportOptions:
    """Which pages to write, from which results, to which folder."""

    results: Path  # results.json, or the folder it is in
    out: Path
    anonymous: bool = False
    students: bool = True
    only: tuple[str, ...] = ()  # the pages of these submissions, and no class page
    similarity: bool = False  # a page of similar submissions too

    @property
    def file(self) -> Path:
        """The results file: the path itself, or results.json in the folder that it is."""
        if self.results.is_dir():
            return self.results / "results.json"
        return self.results


def write_report(options: ReportOptions, say: Say) -> list[Path]:
    """Write the pages and return them, the one to open first.

    `say` is called with remarks for the user. Raises DojoError, and OSError where a page cannot be
    written. The text of BadResults is then on a page too: otherwise an older class's page would
    stay in the folder.
    """
    try:
        return _ReportWriter(options, say).write_pages()
    except BadResults as error:
        # A mistyped name must not replace the page of a class.
        is_of_class = options.file.name == "results.json" and options.file.exists()
        if is_of_class and not options.only:
            text = render_page("problem.html", "", sentence=str(error))
            save_text(options.out / "index.html", text)
        raise


class _ReportWriter:
    """Goes through the results twice: for the names of all, then for their pages."""

    def __init__(self, options: ReportOptions, say: Say) -> None:
        """Read the header and the names of all. Raises BadResults.

        For pseudonyms a secret may be written beside the results; `say` is told if that fails.
        """
        self.options = options
        self.say = say
        self.header = header(options.file)
        self.records = RecordStore(options.file, self.header.reference)
        secret = None
        if options.anonymous:
            secret, warning = secret_of_pseudonyms(options.file)
            if warning:
                say(warning)
        roll = Roll(secret)
        self.tally = Tally(self.header, roll.replace_names)
        rows = iterate(options.file)
        self.people = [roll.add_person(row) for row in rows]
        self.works: dict[int, ComparedWork] = {}  # by place in the class
        self.attempts: list[tuple[int, ComparedWork]] = []  # others of these, with the place
        self.groups = GroupFilter()
        # By group and its work, the places of its members.
        self.members: dict[tuple[str, str], list[int]] = {}
        self.without_records = 0

    def write_pages(self) -> list[Path]:
        """Write the pages, and return them, that of the class first.

        With `only`, they are the pages of these students alone. Raises DojoError, such as
        BadResults or CannotReport, and OSError where a page cannot be written.
        """
        options = self.options
        only = find_submissions(options.only, StoredRows(options.file), options.file)
        neighbours = self._neighbours_by_place()
        written = []
        for place, row in enumerate(iterate(options.file)):
            self.tally.add(row, self.people[place])
            if options.similarity:
                self._add_work(place, row)
            if not only and options.students:
                page = self._write_student(place, row, neighbours[place])
                written.append(page)
            elif row.submission in only:
                page = self._write_student(place, row, None)
                written.append(page)
        if only:
            return written
        if self.without_records:
            count = f"{self.without_records} of {len(self.tally.lines)}"
            self.say(
                f"{count} pages have no timelines: "
                f"the records of these runs are not in {options.file.parent}"
            )
        if options.similarity:
            written.append(self._write_similarity())
        return [self._write_class(), *written]

    def _neighbours_by_place(self) -> list[Neighbours]:
        """Return the people before and after each, in the order in which pages are read.

        That of pseudonyms is another one than the order of results, which is by names and would
        tell who is who.
        """
        order = list(range(len(self.people)))
        if self.options.anonymous:
            order.sort(key=lambda place: self.people[place].shown)
        before: dict[int, Person] = {}  # by place; nobody is before the first
        after: dict[int, Person] = {}
        for place, next_place in itertools.pairwise(order):
            before[next_place] = self.people[place]
            after[place] = self.people[next_place]
        neighbours = []
        for place in range(len(order)):
            either_side = Neighbours(before.get(place), after.get(place))
            neighbours.append(either_side)
        return neighbours

    def _add_work(self, place: int, row: SubmissionRow) -> None:
        """Note a submission and its attempts for the page of similar ones, as far as kept.

        The members of a group have one, which is the group's.
        """
        if row.group:
            self.members.setdefault((row.group, row.digest), []).append(place)
        if not self.groups.is_new_work(row):
            return
        sources = self.records.sources_of(row)
        if sources:
            self.works[place] = ComparedWork(sources)
        for attempt in row.attempts:
            if not attempt.counts and attempt.digest != row.digest:
                sources = self.records.sources_of_attempt(attempt)
                if sources:
                    self.attempts.append((place, ComparedWork(sources)))

    def _authors(self) -> list[Person]:
        """The people by place; the first member of a group is shown with the others."""
        authors = list(self.people)
        for (group, _), places in self.members.items():
            names = ", ".join(self.people[place].shown for place in places)
            first = self.people[places[0]]
            authors[places[0]] = replace(first, shown=f"{group} ({names})")
        return authors

    def _write_student(self, place: int, row: SubmissionRow, neighbours: Neighbours | None) -> Path:
        """Write a student's page, and return its path. Counts those without records.

        `place` is that in the class. Without neighbours it has no links to other pages. Raises
        OSError where it cannot be written.
        """
        person = self.people[place]
        records = self.records.of_submission(row)
        has_run = row.status not in NEVER_RAN
        if has_run and records.record is None:
            self.without_records += 1
        text = student_page(row, person, self.header, records, neighbours)
        target = self.options.out / person.file
        return save_text(target, text)

    def _write_similarity(self) -> Path:
        """Write the page of similar submissions, and return its path.

        Raises CannotReport where there are not two submissions with sources, and OSError where it
        cannot be written.
        """
        if len(self.works) == 1:
            raise CannotReport(
                "--similarity compares submissions, and there is only one with sources"
            )
        if not self.works:
            folder = self.options.file.parent
            raise CannotReport(
                f"there are no sources to compare in {folder}; grade the class again"
            )
        title = self.header.title or self.header.day
        authors = self._authors()
        author_of = {}
        works = dict(self.works)
        for author, work in self.attempts:
            place = len(authors)
            author_of[place] = author
            works[place] = work
            shown = f"another attempt of {authors[author].shown}"
            authors.append(replace(authors[author], shown=shown))
        text = similarity_page(
            authors, works, author_of, self.records.given, self.options.students, title
        )
        return save_text(self.options.out / "similarity.html", text)

    def _write_class(self) -> Path:
        """Write the page of the class, and return its path. Sorts the lines of an anonymous table.

        Raises BadDay where the misconceptions of a day cannot be read, and OSError where it cannot
        be written.
        """
        options = self.options
        if options.anonymous:
            # The places of their rows are not on anonymous pages.
            self.tally.lines.sort(key=lambda line: line.person.shown)
        text = class_page(
            self.tally, self.records, options.students, options.anonymous, options.similarity
        )
        return save_text(options.out / "index.html", text)
