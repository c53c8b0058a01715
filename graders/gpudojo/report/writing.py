"""Writes a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpudojo.model.errors import BadResults, CannotReport
from gpudojo.model.results import SubmissionStatus
from gpudojo.model.results_file import header, iterate
from gpudojo.platforms._entries import no_submission, save
from gpudojo.report.class_page import Tally, class_page
from gpudojo.report.rendering import Roll, kept_secret, page
from gpudojo.report.similarity import Work, similarity_page
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
        # Otherwise an older class's page would stay in the folder.
        if options.only is None:
            save(options.out / "index.html", page("problem.html", "", sentence=str(error)))
        raise


def _written(options: ReportOptions, say: Callable[[str], None]) -> list[Path]:
    file = options.file
    head = header(file)
    archive = RecordStore(file, head.reference)
    secret = None
    if options.anonymous:
        secret, told = kept_secret(file)
        if told:
            say(told)
    roll, tally, written = Roll(secret), Tally(head), []
    works: dict[int, Work] = {}
    people = [roll.person(row) for row in iterate(file)]
    without_records = 0
    for place, row in enumerate(iterate(file)):
        person = people[place]
        tally.add(row, person)
        if options.similarity and (sources := archive.sources(row)):
            works[place] = Work(sources)
        if options.only is not None and row.submission != options.only:
            continue
        if options.students or options.only is not None:
            known = archive.known(row)
            without_records += known.record is None and row.status not in NEVER_RAN
            before, after = people[place - 1] if place else None, people[place + 1] if people[place + 1 :] else None
            neighbours = Neighbours(before, after) if options.only is None else None
            written.append(save(options.out / person.file, student_page(row, person, head, known, neighbours)))
    if options.only is not None:
        if not written:
            raise CannotReport(no_submission(options.only, [row.submission for row in iterate(file)], file))
        return written
    if without_records:
        count = f"{without_records} of {len(tally.lines)}"
        say(f"{count} pages have no timelines: the records of these runs are not in {file.parent}")
    if options.similarity:
        if len(works) < 2:
            raise CannotReport(f"there are no sources to compare in {file.parent}; grade the class again")
        given = Work(archive.given) if archive.given else None
        text = similarity_page(people, works, given, options.students, head.day)
        written.append(save(options.out / "similarity.html", text))
    text = class_page(tally, archive, options.students, options.anonymous, options.similarity)
    return [save(options.out / "index.html", text), *written]
