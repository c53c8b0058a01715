"""Writes results.json and results.csv of a class, and says which points changed by new rules."""

from __future__ import annotations

import contextlib
import csv
import hashlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.classes.class_notices import notices_about_class
from gpudojo.classes.class_tally import ClassTally
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.score_changes import HistoryLine, append_to_history
from gpudojo.classes.store import FOLDER, write_file
from gpudojo.model.errors import BadClass, printable_text
from gpudojo.model.results import ClassResults, SubmissionRow, SubmissionStatus
from gpudojo.model.results_csv import open_table, spreadsheet_safe
from gpudojo.model.results_file import encode_json, format_points, open_results, without_surrogates
from gpudojo.submissions.names import natural_key

RULES: Final = f"{FOLDER}/rules"  # the digest of the rules by which results were written
RULES_CHANGED: Final = "Changed by the course file, the roster or the choice of attempts"


class WrittenResults(NamedTuple):
    """The file of results, counts of what is in it, and what a teacher should know of it."""

    path: Path
    tally: ClassTally
    notices: list[str]  # about settings and files
    unmatched: list[str]  # names of those who handed in and are not on the roster


class PublishedPoints(NamedTuple):
    """Points and their maximum, as results.csv has them."""

    points: str
    out_of: str


def write_results(
    book: Gradebook, few: Collection[str] = (), changed: Collection[str] = ()
) -> WrittenResults:
    """Write results.json and results.csv, and return what they hold in short.

    `few` are names of submissions whose points are to be shown. `changed` are those whose changes
    are known: of others, points that changed are added to history.csv and to the tally. Raises
    BadClass where a file cannot be written.
    """
    class_list = book.list_class()
    notices = class_list.notices + notices_about_class(book, class_list.participants)
    header = _make_header(book, class_list.unmatched)
    # Points may have changed because the rules did, and not what was handed in.
    rules = _digest_of_rules(book)
    published = _points_by_other_rules(book.out, rules)
    history = []
    exercises = list(book.row_maker.graded_exercises)
    exercises += [item.name for item in book.course.by_hand]
    tally = ClassTally()
    path = book.out / "results.json"
    try:
        with (
            open_table(book.out / "results.csv", exercises) as write_line,
            open_results(path, header) as write_row,
        ):
            for row in book.rows_of(class_list.participants):
                write_row(row)
                write_line(row)
                tally.count_row(row, show_points=row.submission in few)
                old = _find_old_points(published, row)
                new = _published_points(row)
                if old is not None and old != new and row.submission not in changed:
                    tally.changed_by_rules.append(_describe_change(row, old, new))
                    history.append(_history_line(row, old, new))
        if history:
            append_to_history(book.out, history)
        if published or not (book.out / RULES).exists():
            write_file(book.out / RULES, rules.encode(), lasting=False)
    except OSError as error:
        raise BadClass(
            f"cannot write {path}: {error.strerror}; what has been run is kept"
        ) from None
    return WrittenResults(path, tally, notices, class_list.unmatched)


def _make_header(book: Gradebook, unmatched: list[str]) -> ClassResults:
    """What the file says of the class as a whole. `unmatched` are names off the roster.

    It has no submissions: they are written line by line.
    """
    state = book.state
    course = book.course
    # When a submission last ran, and what the course says.
    times = []
    for student in state.students.values():
        for submission in student.sent:
            times.append(submission.at)
    deadline = ""
    if course.deadline:
        deadline = course.deadline.isoformat()
    sections = set()
    if book.roster is not None:
        sections = {row.section for row in book.roster.rows if row.section}
    return ClassResults(
        day=state.day,
        bench=state.bench,
        torch=state.torch,
        gpudojo=state.gpudojo,
        max_score=book.row_maker.max_score,
        layers=state.layers,
        reference=state.reference,
        title=course.title,
        graded_at=max(times, default=""),
        python=state.python,
        seed=state.seed,
        limits=state.limits,
        only=state.only,
        scale=course.points,
        deadline=deadline,
        attempt=book.attempt,
        visibility=course.visibility,
        by_hand=list(course.by_hand),
        sections=sorted(sections, key=natural_key),
        unmatched=unmatched,
    )


def _digest_of_rules(book: Gradebook) -> str:
    """A digest of the rules. It changes if points may change of submissions that do not."""
    roster: tuple[object, ...] = ()
    if book.roster is not None:
        times = list(book.roster.submitted.items())
        roster = (book.roster.rows, times)
    rules = encode_json((book.course.text, book.attempt, roster))
    return hashlib.sha256(rules).hexdigest()


def _points_by_other_rules(out: Path, rules: str) -> dict[str, PublishedPoints]:
    """The points in results.csv, by names, if it was written by other rules than these.

    Students who handed in under several names are found by their own, unless others have it, too.
    """
    # Without files that can be read, nothing was published that could have changed.
    with contextlib.suppress(OSError, UnicodeDecodeError, csv.Error, KeyError):
        if (out / RULES).read_text(encoding="utf-8") == rules:
            return {}
        by_student = {}
        by_submission = {}
        namesakes: Counter[str] = Counter()
        with (out / "results.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                if line["status"] == SubmissionStatus.ABSENT:
                    continue
                points = PublishedPoints(line["points"], line["out_of"])
                by_student[line["student"]] = points
                by_submission[line["submission"]] = points
                namesakes[line["student"]] += 1
        for student, count in namesakes.items():
            if count > 1:
                del by_student[student]
        return by_student | by_submission
    return {}


def _find_old_points(
    published: dict[str, PublishedPoints], row: SubmissionRow
) -> PublishedPoints | None:
    """The points that were published for a row. Returns None where there were none.

    They are looked for by the name of the submission, then by that of the student.
    """
    for name in (row.submission, row.student or ""):
        # As results.csv writes it.
        printable = printable_text(without_surrogates(name))
        cell = spreadsheet_safe(printable)
        if cell in published:
            return published[cell]
    return None


def _published_points(row: SubmissionRow) -> PublishedPoints:
    """The points of a row, as results.csv has them."""
    points = format_points(row.final.points)
    out_of = format_points(row.final.max_points)
    return PublishedPoints(points, out_of)


def _describe_change(row: SubmissionRow, old: PublishedPoints, new: PublishedPoints) -> str:
    """How published points changed, for the summary."""
    before = old.points
    if old.out_of != new.out_of:
        before += f" of {old.out_of}"
    return f"{row.called}: {before} → {new.points} of {new.out_of}"


def _history_line(row: SubmissionRow, old: PublishedPoints, new: PublishedPoints) -> HistoryLine:
    """The line of history.csv for points that changed by new rules."""
    return HistoryLine(
        submission=row.submission,
        student=row.student or "",
        before=old.points,
        after=new.points,
        why="settings",
        checks="",
    )
