"""Adds what was graded to a class, and says whose points changed; and writes `history.csv`."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.classes.class_state import StoredSubmission, Student, key_of_student, utc_now
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.participants import Participant
from gpudojo.classes.store import write_file
from gpudojo.model.results import SubmissionRow, SubmissionStatus
from gpudojo.model.results_csv import TABLE_ENCODING, spreadsheet_safe
from gpudojo.model.results_file import format_points
from gpudojo.submissions.entries import SubmissionEntry

HISTORY: Final = "history.csv"
HISTORY_COLUMNS: Final = (
    "at,submission,student,published_before,published_after,out_of,why,checks\n"
)
FORMER_HISTORY: Final = "history-former.csv"  # with headings of an earlier version
ABSENT: Final = SubmissionStatus.ABSENT.value  # in place of points
NEW_ATTEMPT: Final = "new attempt"  # why points changed
MOST_CHANGES: Final = 60  # of checks, that are kept of one grading


class GradedEntry(NamedTuple):
    """What was handed in and graded now."""

    entry: SubmissionEntry
    submission: StoredSubmission


class ScoreChange(NamedTuple):
    """What a new grading changed."""

    submission: str
    student: str
    before: float | None  # None of who had handed in nothing
    after: float
    new_attempt: bool
    checks: list[str]  # "04_loop::train_epoch::runs: failed → passed"
    called: str  # the submission, with the name on the roster
    now: SubmissionRow

    @property
    def why(self) -> str:
        """The reason in a word or two, for history.csv."""
        if self.new_attempt:
            return NEW_ATTEMPT
        return "regraded"

    def __str__(self) -> str:
        """The change in words: "Ada (ada.zip): 3 → 5 (train_epoch::runs: failed → passed)".

        Where other points are published, they come first: "Ada: 18 of 20; 3 → 5 of 8 in the
        exercises". Three checks are named at most.
        """
        before = ABSENT
        if self.before is not None:
            before = format_points(self.before)
        after = format_points(self.after)
        text = f"{self.called}: {before} → {after}"
        published = self.now.grade
        if published is not None:
            points = f"{format_points(published.points)} of {format_points(published.max_points)}"
            worth = format_points(self.now.max_score)
            text = f"{self.called}: {points}; {before} → {after} of {worth} in the exercises"
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
    before: str  # points as they are published; empty where nobody knows
    after: str
    out_of: str
    why: str
    checks: str


def add_to_class(book: Gradebook, graded: Sequence[GradedEntry]) -> list[ScoreChange]:
    """Add what was graded in this run to the state of the class. Returns whose points changed.

    Those of whom nothing counted before are among them, without points of before.
    A person who handed in under several names, or in a group, is one. What is kept of a submission
    gets its date in the roster. Verdicts that are missing are made and written; the state is not.
    Raises BadClass where the reference's record cannot be read for that, BadDay where the day
    cannot be imported, BadFile where the course names an exercise that is not there, and OSError
    where a file cannot be written.
    """
    by_student: dict[str, list[GradedEntry]] = defaultdict(list)
    for each in graded:
        key = key_of_student(each.entry)
        by_student[key].append(each)
    before = _CountedBefore(book)
    for key, own in by_student.items():
        own.sort(key=lambda each: (each.submission.submitted, each.entry.attempt))
        _add_to_student(book, key, own)
    graded_now = {each.submission.digest for each in graded}
    book.dates.given = {each.submission.digest for each in graded if not each.entry.kept}
    participants = book.list_class().participants
    _keep_dates(participants)
    changes = []
    for participant in participants:
        if graded_now.isdisjoint(each.digest for each in participant.submissions):
            continue
        change = _change_of(book, participant, before.submission_of(participant))
        if change is not None:
            changes.append(change)
    return changes


def _keep_dates(participants: Iterable[Participant]) -> None:
    """Keep with each submission the date that the roster has for it: later it may have another."""
    for participant in participants:
        for submission in participant.submissions:
            date = participant.dates.get(submission.digest)
            if date is not None:
                submission.dated = date.text
        for copy, date in participant.copies:
            if date is not None:
                copy.dated = date.text


class _CountedBefore:
    """Which submission of each participant counted before anything was added."""

    def __init__(self, book: Gradebook) -> None:
        """Note the present state.

        Where the best attempt counts, rows are made: raises BadClass, BadFile, BadDay or OSError
        where they cannot be.
        """
        self._by_key: dict[str, StoredSubmission] = {}
        for participant in book.list_class().participants:
            counted = book.counted_submission(participant)
            if counted is None:
                continue
            for key in participant.keys:
                self._by_key[key] = counted

    def submission_of(self, participant: Participant) -> StoredSubmission | None:
        """The one of a participant; None for somebody new, or who had handed in nothing."""
        for key in participant.keys:
            if key in self._by_key:
                return self._by_key[key]
        return None


def _add_to_student(book: Gradebook, key: str, graded: Sequence[GradedEntry]) -> None:
    """Add what one student handed in, sorted by time, to the state of the class.

    `key` is that of the student.
    """
    known_submissions: list[StoredSubmission] = []
    known_student = book.state.students.get(key)
    if known_student is not None:
        known_submissions = known_student.sent
    # What was known before keeps its place among the attempts.
    regraded = {each.submission.digest: each.submission for each in graded if each.entry.kept}
    known_submissions = [regraded.get(each.digest, each) for each in known_submissions]
    given = [each for each in graded if not each.entry.kept]
    if known_student is not None and not given:
        known_student.sent = known_submissions
        return
    entry = given[-1].entry
    new_submissions = [each.submission for each in given]
    book.state.students[key] = Student(
        name=entry.name,
        student=entry.student,
        naming=str(entry.naming),
        identifier=entry.identifier,
        people=list(entry.people),
        sent=_merge_submissions(known_submissions, new_submissions),
    )


def _change_of(
    book: Gradebook, participant: Participant, before: StoredSubmission | None
) -> ScoreChange | None:
    """What changed for a participant, of whom the submission `before` counted until now.

    None where points and checks are the same, or nothing counts. Where nothing counted until now,
    there are no points and checks of before. The changed checks of another
    attempt are put into it, and a verdict that is missing is made and written. Raises BadClass
    where the reference's record cannot be read for that, BadFile, BadDay and OSError.
    """
    after = book.counted_submission(participant)
    if after is None or (before is not None and _same_grading(before, after)):
        return None
    row_maker = book.row_maker
    if before is None:
        row = row_maker.row_for_submission(participant, after)
        name = row.student or participant.name
        return ScoreChange(participant.name, name, None, row.score, True, [], row.called, row)
    # Never judged again: the checks of that time may be gone. Without the verdict that was kept,
    # only the score is known.
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
    return ScoreChange(
        submission=participant.name,
        student=new_row.student or participant.name,
        before=score_before,
        after=score_after,
        new_attempt=new_attempt,
        checks=checks,
        called=new_row.called,
        now=new_row,
    )


def _merge_submissions(
    known: Sequence[StoredSubmission], graded: Sequence[StoredSubmission]
) -> list[StoredSubmission]:
    """All submissions of a student, the latest last.

    Of equal ones, the last grading is kept; it takes over when the earlier one ran and its changes.
    A submission that is found again, as when the same download is graded twice, stays an earlier
    attempt. It is a later one where files in the same place have changed back, or the platform says
    so. When each arrived is set in `graded`.
    """
    now = utc_now("microseconds")
    by_digest = {each.digest: each for each in known}
    last_digest_at = {each.origin: each.digest for each in known}
    for submission in graded:
        submission.arrived = now
        old = by_digest.get(submission.digest)
        if old is not None:
            submission.arrived = old.arrived
            if old.record == submission.record:
                submission.at = old.at
            submission.changes = old.changes
            submission.dated = old.dated
            last_digest = last_digest_at.get(submission.origin, submission.digest)
            changed_back = last_digest != submission.digest
            handed_in_again = submission.submitted > old.submitted > ""
            if changed_back or handed_in_again:
                submission.arrived = now
                submission.dated = ""
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


def _free_path(path: Path) -> Path:
    """The path, or the first one with a number behind its name at which nothing is."""
    free = path
    number = 2
    while free.exists():
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1
    return free


def append_to_history(out: Path, lines: Iterable[HistoryLine]) -> None:
    """Add lines, with the time of now, to history.csv, which is replaced as a whole.

    A new file begins with its headings. One with other headings, of an earlier version, whose
    points were partly those of the exercises, is kept as FORMER_HISTORY. Raises OSError.
    """
    path = out / HISTORY
    old = HISTORY_COLUMNS
    if path.exists():
        known = path.read_text(encoding=TABLE_ENCODING)
        if known.startswith(HISTORY_COLUMNS):
            old = known
        else:
            path.replace(_free_path(out / FORMER_HISTORY))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    time = utc_now()
    for line in lines:
        cells = [spreadsheet_safe(cell) for cell in (time, *line)]
        writer.writerow(cells)
    whole = old + text.getvalue()
    write_file(path, whole.encode(TABLE_ENCODING, "backslashreplace"))
