"""Writes a report."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpudojo.model.errors import BadResults, CannotReport
from gpudojo.model.results import SubmissionStatus
from gpudojo.model.results_file import header, iterate, replacing
from gpudojo.report.class_page import Tally, class_page
from gpudojo.report.people import Roll, kept_secret
from gpudojo.report.student_page import Archive, student_page
from gpudojo.report.templating import page


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    results: Path  # results.json, or the folder it is in
    out: Path
    anonymous: bool = False
    students: bool = True
    only: str | None = None  # one submission's page, and no class page

    @property
    def file(self) -> Path:
        return self.results / "results.json" if self.results.is_dir() else self.results


def write_report(wanted: Wanted, say: Callable[[str], None]) -> list[Path]:
    """The files written, the page to open first; raises DojoError with a sentence, which is then on the page too."""
    try:
        return _written(wanted, say)
    except BadResults as error:
        # Whoever opens the folder later, as what a pipeline has kept, would otherwise find an older class's page.
        if wanted.only is None:
            _save(wanted.out / "index.html", page("problem.html", "", sentence=str(error)))
        raise


def _written(wanted: Wanted, say: Callable[[str], None]) -> list[Path]:
    file = wanted.file
    head = header(file)
    archive = Archive(file, head.reference)
    secret = None
    if wanted.anonymous:
        secret, told = kept_secret(file)
        if told:
            say(told)
    roll, tally, written = Roll(secret), Tally(head), []
    without_records = 0
    for row in iterate(file):
        person = roll.person(row)
        tally.add(row, person)
        if wanted.only is not None and row.submission != wanted.only:
            continue
        if wanted.students or wanted.only is not None:
            known = archive.known(row.record)
            without_records += known.record is None and row.status is not SubmissionStatus.UNREADABLE
            text = student_page(row, person, head, known, home=wanted.only is None)
            written.append(_save(wanted.out / person.file, text))
    if wanted.only is not None:
        if not written:
            raise CannotReport(_nobody(wanted.only, file))
        return written
    if without_records:
        say(
            f"{without_records} of {len(tally.lines)} pages are without pictures: "
            f"no record of these runs is in {file.parent}"
        )
    index = _save(wanted.out / "index.html", class_page(tally, archive, wanted.students, wanted.anonymous))
    return [index, *written]


def _nobody(name: str, file: Path) -> str:
    near = difflib.get_close_matches(name, [row.submission for row in iterate(file)], 3)
    return f"{file} has no submission {name!r}" + (f"; is it {' or '.join(map(repr, near))}?" if near else "")


def _save(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, lasting=False) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    return path
