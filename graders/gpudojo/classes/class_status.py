"""Where a class stands: who is late, absent, to review, to mark, changed since an export."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from gpudojo.classes.lateness import is_undated
from gpudojo.classes.outputs import OutputComparison
from gpudojo.classes.reviews import ReviewFilter
from gpudojo.model.results import Grade, Reviewed, SubmissionRow, SubmissionStatus, Timing
from gpudojo.model.results_file import header, iterate


class Named(msgspec.Struct, frozen=True, omit_defaults=True):
    """A student, and what there is to say in one of the lists."""

    name: str  # on the roster, with that of the submission
    submission: str
    id: str = ""
    group: str = ""  # all of its members are meant where something is to review
    reasons: list[str] = []  # to review
    reviewed: Reviewed | None = None
    items: list[str] = []  # to mark
    timing: Timing | None = None  # of who is late


class ChangedPoints(msgspec.Struct, frozen=True):
    """A student whose results are others than those that were written."""

    name: str
    before: Grade | None  # None where nothing was written
    after: Grade | None  # None for who is not in the class any more


class Written(msgspec.Struct, frozen=True):
    """An export, report or feedback, and whose results have changed since."""

    command: str
    folder: str
    at: str
    is_whole: bool  # of the class, and not of single students
    changed: list[ChangedPoints]
    again: str  # the command that writes it anew
    # False where all of its students were written again later, to another folder.
    in_use: bool = True


class ClassStatus(msgspec.Struct):
    """Where a class stands, as `dojo status --json` prints it."""

    title: str
    results: str
    graded_at: str
    unusual_rules: list[str] = []  # what counts, where that is not the usual; sentences
    students: int = 0
    statuses: dict[str, int] = {}
    graded: list[Named] = []
    late: list[Named] = []
    undated: list[Named] = []  # nobody knows whether they were late
    # How late these were, a person had decided of another hand-in, which does not count.
    to_decide_again: list[Named] = []
    absent: list[Named] = []
    to_review: list[Named] = []
    reviewed: list[Named] = []
    to_mark: list[Named] = []
    written: list[Written] = []  # exports and pages, the latest first


def status_of_class(file: Path) -> ClassStatus:
    """Where the class of a file of results stands. Raises BadResults where it cannot be read."""
    head = header(file)
    title = head.title or head.day
    status = ClassStatus(title, str(file), head.graded_at, head.unusual_rules)
    comparison = OutputComparison(file.parent)
    statuses: Counter[str] = Counter()
    to_review: list[tuple[int, Named]] = []  # with the ranks of their reasons
    reviews = ReviewFilter()
    for row in iterate(file):
        status.students += 1
        statuses[row.status.value] += 1
        comparison.add_row(row)
        _sort_into_lists(status, row)
        if row.reasons_to_review and reviews.is_first(row):
            _add_review(status, to_review, row)
    to_review.sort(key=lambda ranked: ranked[0])
    status.to_review = [named for _, named in to_review]
    status.statuses = dict(statuses)
    status.written = _written_outputs(comparison)
    return status


def _sort_into_lists(status: ClassStatus, row: SubmissionRow) -> None:
    """Add a row to the lists that it belongs to, but for those to review."""
    if row.status is SubmissionStatus.ABSENT:
        status.absent.append(_name_student(row))
    else:
        if row.status is SubmissionStatus.GRADED:
            status.graded.append(_name_student(row))
    if row.to_grade:
        status.to_mark.append(_name_student(row, items=row.to_grade))
    if row.late:
        status.late.append(_name_student(row, timing=row.timing))
    if row.timing is not None and row.timing.decide_again:
        status.to_decide_again.append(_name_student(row, timing=row.timing))
    if is_undated(row):
        status.undated.append(_name_student(row))


def _add_review(
    status: ClassStatus, to_review: list[tuple[int, Named]], row: SubmissionRow
) -> None:
    """Add a row that had to be reviewed to those to review, or to those who were."""
    named = _name_student(row, reasons=row.reasons_to_review, reviewed=row.reviewed)
    if row.reviewed is None:
        to_review.append((row.review_rank, named))
    else:
        status.reviewed.append(named)


def _name_student(
    row: SubmissionRow,
    reasons: list[str] = [],  # noqa: B006 - not changed
    reviewed: Reviewed | None = None,
    items: list[str] = [],  # noqa: B006 - not changed
    timing: Timing | None = None,
) -> Named:
    """The student of a row, for one of the lists."""
    return Named(row.called, row.submission, row.id, row.group, reasons, reviewed, items, timing)


def _written_outputs(comparison: OutputComparison) -> list[Written]:
    """What was made of the results, the latest first, with those who have changed since."""
    outputs = []
    written_later: defaultdict[str, set[str]] = defaultdict(set)  # submissions, by command
    compared = sorted(comparison.comparisons(), key=lambda each: each.output.at, reverse=True)
    for output, rows, _, again in compared:
        later = written_later[output.command]
        in_use = not later.issuperset(output.rows) or not later
        later.update(output.rows)
        changed = [ChangedPoints(row.called, row.before, row.after) for row in rows]
        outputs.append(
            Written(
                output.command,
                output.folder,
                output.at,
                output.is_whole,
                changed,
                again,
                in_use,
            )
        )
    return outputs
