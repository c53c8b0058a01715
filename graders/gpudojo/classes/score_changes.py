"""Adds what was graded to a class, and says whose points changed; `history.csv` keeps it."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpudojo.classes.class_state import StoredSubmission, Student, key_of_student, utc_now
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.store import write_file
from gpudojo.model.results import SubmissionRow, both_names
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points
from gpudojo.submissions.entries import SubmissionEntry

HISTORY: Final = "history.csv"
HISTORY_COLUMNS: Final = "at,submission,student,before,after,why,checks\n"
MOST_CHANGES: Final = 60  # of checks, that are kept of one grading


class GradedEntry(NamedTuple):
    """What was handed in and graded now."""

    entry: SubmissionEntry
    submission: StoredSubmission


class ScoreChange(NamedTuple):
    """What a new grading changed."""

    submission: str
    student: str
    before: float
    after: float
    new_attempt: bool
    checks: list[str]  # "04_loop::train_epoch::runs: failed → passed"
    called: str  # the submission, with the name on the roster

    def __str__(self) -> str:
        """The change in words: "Ada (ada.zip): 3 → 5 (train_epoch::runs: failed → passed)".

        Three checks are named at most.
        """
        before = format_points(self.before)
        after = format_points(self.after)
        text = f"{self.called}: {before} → {after}"
        if not self.checks:
            return text
        outcomes = [check.partition("::")[2] for check in self.checks]
        checks = "; ".join(outcomes[:3])
        if len(outcomes) > 3:
            checks += f"; and {len(outcomes) - 3} more checks"
        return f"{text} ({checks})"


class HistoryLine(NamedTuple):
    """A line of history.csv, but for the time."""

    submission: str
    student: str
    before: str
    after: str
    why: str
    checks: str


def add_to_class(book: Gradebook, graded: Sequence[GradedEntry]) -> list[ScoreChange]:
    """Add what was graded in this run to the state of the class. Returns whose points changed.

    The changes are written to history.csv; the state is not written.
    """
    by_student: dict[str, list[GradedEntry]] = defaultdict(list)
    for each in graded:
        key = key_of_student(each.entry)
        by_student[key].append(each)
    changes = []
    for key, own in by_student.items():
        own.sort(key=lambda each: (each.submission.submitted, each.entry.attempt))
        change = _add_to_student(book, key, own)
        if change is not None:
            changes.append(change)
    if changes:
        append_to_history(book.out, map(_history_line, changes))
    return changes


def _add_to_student(book: Gradebook, key: str, graded: Sequence[GradedEntry]) -> ScoreChange | None:
    """Add what one student handed in, sorted by time, to the state of the class.

    Returns the change of points or checks, or None.
    """
    # The submission that counted before, and the one that counts now.
    before = None
    known_submissions: list[StoredSubmission] = []
    known_student = book.state.students.get(key)
    if known_student is not None:
        known_submissions = known_student.sent
        known_participant = book.participant_for(key, known_student)
        before = book.counted_submission(known_participant)
        if before is not None:
            before = replace(before)  # the grading of the same submission may change it
    entry = graded[-1].entry
    new_submissions = [each.submission for each in graded]
    student = Student(
        name=entry.name,
        student=entry.student,
        naming=str(entry.naming),
        identifier=entry.identifier,
        people=list(entry.people),
        sent=_merge_submissions(known_submissions, new_submissions),
    )
    book.state.students[key] = student
    participant = book.participant_for(key, student)
    after = book.counted_submission(participant)
    if before is None or after is None or _same_grading(before, after):
        return None

    # Never judged again: the checks of that time may be gone. Without the verdict that was kept,
    # only the score is known.
    row_maker = book.row_maker
    old_verdict = row_maker.kept_verdict(before)
    new_verdict = row_maker.verdict_on(after)
    score_before = before.score
    if old_verdict is not None:
        old_row = row_maker.row_for_submission(participant, before, old_verdict)
        score_before = old_row.score
    new_row = row_maker.row_for_submission(participant, after, new_verdict)
    score_after = new_row.score
    checks = _changed_checks(old_verdict, new_verdict)
    if not checks and score_before == score_after:
        return None
    new_attempt = before.digest != after.digest
    if new_attempt:
        after.changes = checks[:MOST_CHANGES]
    people = book.name_of_people(student)
    return ScoreChange(
        submission=student.name,
        student=people or student.student,
        before=score_before,
        after=score_after,
        new_attempt=new_attempt,
        checks=checks,
        called=both_names(people, student.name),
    )


def _merge_submissions(
    known: Sequence[StoredSubmission], graded: Sequence[StoredSubmission]
) -> list[StoredSubmission]:
    """All submissions of a student, the latest last.

    Of equal ones, the last grading is kept. A submission that is found again, as when the same
    download is graded twice, stays an earlier attempt. It is a later one where files in the same
    place have changed back, or the platform says so.
    """
    by_digest = {each.digest: each for each in known}
    last_digest_at = {each.origin: each.digest for each in known}
    for submission in graded:
        old = by_digest.get(submission.digest)
        if old is not None:
            if old.record == submission.record:
                submission.at = old.at
            submission.changes = old.changes
            last_digest = last_digest_at.get(submission.origin, submission.digest)
            changed_back = last_digest != submission.digest
            handed_in_again = submission.submitted > old.submitted > ""
            if changed_back or handed_in_again:
                del by_digest[submission.digest]  # so that it is added at the end
        by_digest[submission.digest] = submission
    return list(by_digest.values())


def _same_grading(before: StoredSubmission, after: StoredSubmission) -> bool:
    """True if both were made from the same record in the same way."""
    if before.record != after.record:
        return False
    if before.reference != after.reference:
        return False
    if before.judging_key != after.judging_key:
        return False
    return before.problem == after.problem


def _changed_checks(before: SubmissionRow | None, after: SubmissionRow) -> list[str]:
    """The checks with another outcome, such as `04_…::train_epoch::runs: failed → passed`.

    A check that was not there before has not changed.
    """
    outcomes = {}
    if before is not None:
        for exercise in before.exercises:
            for check in exercise.checks:
                outcomes[check.id] = check.outcome
    changed = []
    for exercise in after.exercises:
        for check in exercise.checks:
            old = outcomes.get(check.id, check.outcome)
            if old is not check.outcome:
                changed.append(f"{check.id}: {old} → {check.outcome}")
    return changed


def _history_line(change: ScoreChange) -> HistoryLine:
    """The line of history.csv for a change by a new grading."""
    why = "regraded"
    if change.new_attempt:
        why = "new attempt"
    return HistoryLine(
        submission=change.submission,
        student=change.student,
        before=format_points(change.before),
        after=format_points(change.after),
        why=why,
        checks="\n".join(change.checks),
    )


def append_to_history(out: Path, lines: Iterable[HistoryLine]) -> None:
    """Add lines, with the time, to history.csv. The file is replaced as a whole. Raises OSError.

    A new file begins with its headings.
    """
    path = out / HISTORY
    if path.exists():
        old = path.read_text(encoding="utf-8")
    else:
        old = HISTORY_COLUMNS
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    time = utc_now()
    for line in lines:
        cells = [spreadsheet_safe(cell) for cell in (time, *line)]
        writer.writerow(cells)
    whole = old + text.getvalue()
    write_file(path, whole.encode("utf-8", "backslashreplace"))
