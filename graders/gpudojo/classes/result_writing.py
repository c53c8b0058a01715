"""Writes results.json and results.csv of a class, and says which points changed by new rules."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from gpudojo.classes.class_notices import notices_about_class
from gpudojo.classes.class_tally import ClassTally
from gpudojo.classes.gradebook import Gradebook
from gpudojo.classes.outputs import OutputComparison
from gpudojo.classes.overrides import EVERYONE, LogEntry
from gpudojo.classes.participants import Participant
from gpudojo.classes.score_changes import ABSENT, NEW_ATTEMPT, HistoryLine, append_to_history
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import BadClass, BadResults
from gpudojo.model.results import (
    ClassResults,
    Grade,
    SubmissionRow,
    SubmissionStatus,
    split_sections,
)
from gpudojo.model.results_csv import open_table
from gpudojo.model.results_file import (
    PublishedRow,
    format_points,
    iterate_published,
    open_results,
    without_surrogates,
)
from gpudojo.submissions.names import natural_key

RULES_CHANGED: Final = "Changed by the course file, the roster, dates, --only or --attempt"
NO_POINTS: Final = Grade(0.0, 0.0)


class WrittenResults(NamedTuple):
    """The file of results, counts of what is in it, and what a teacher should know of it."""

    path: Path
    tally: ClassTally
    notices: list[str]  # about settings and files
    unmatched: list[str]  # names of those who handed in and are not on the roster
    stale: list[str]  # sentences about pages that show earlier results
    unusual_rules: list[str]  # sentences about what counts, where that is not the usual


class Cause(NamedTuple):
    """Why the points of a submission change, as history.csv has it."""

    why: str  # "regraded", "override by ada"
    what: str  # checks that changed, or items that a person decided


def write_results(
    book: Gradebook, few: Collection[str] = (), causes: Mapping[str, Cause] = MappingProxyType({})
) -> WrittenResults:
    """Write results.json and results.csv, and return what they hold in short.

    `few` are names of submissions whose points are to be shown. Points to publish that are others
    than in the results of before are added to history.csv, with their cause in `causes`, by name.
    Without one, they changed by the settings, and are added to the tally. Verdicts that are missing
    are made and written. Raises BadClass where results cannot be written or the reference's record
    cannot be read for that, OSError where a verdict cannot be written before, BadDay where the day
    cannot be imported, and BadFile where the course names an exercise that is not there.
    """
    class_list = book.list_class()
    notices = class_list.notices + notices_about_class(book, class_list)
    header = _make_header(book, class_list.unmatched)
    path = book.out / "results.json"
    changes = _PublishedChanges(path, causes)
    exercises = list(book.row_maker.graded_exercises)
    exercises += [item.name for item in book.course.by_hand]
    tally = ClassTally()
    comparison = OutputComparison(book.out)
    try:
        with (
            open_table(book.out / "results.csv", exercises) as write_line,
            open_results(path, header) as write_row,
        ):
            for row in book.rows_of(class_list.participants):
                write_row(row)
                write_line(row)
                tally.count_row(row, show_points=row.submission in few)
                comparison.add_row(row)
                changes.add_row(row)
            for participant in class_list.removed:
                changes.add_removed(participant)
            # Before the results are replaced: where it cannot be written, they stay as they were.
            if changes.history:
                append_to_history(book.out, changes.history)
        tally.changed_by_rules = changes.by_settings
        tally.were_absent = changes.were_absent
    except OSError as error:
        raise BadClass(
            f"cannot write {path}: {error.strerror}; what has been run is kept"
        ) from None
    stale = comparison.describe_stale_pages()
    return WrittenResults(path, tally, notices, class_list.unmatched, stale, header.unusual_rules)


def write_decisions(book: Gradebook, entries: Sequence[LogEntry], command: str) -> WrittenResults:
    """Add what a person decided with a command to the log, and write the results, or neither.

    Raises BadClass, BadDay, BadFile and OSError, where the log is as it was, as far as it could be
    written.
    """
    before = book.overrides.log
    causes = _causes_of_decisions(book, entries, command)
    book.overrides.write_log([*before, *entries])
    try:
        return write_results(book, causes=causes)
    except BaseException:
        book.overrides.write_log(before)
        raise


def _causes_of_decisions(
    book: Gradebook, entries: Sequence[LogEntry], command: str
) -> dict[str, Cause]:
    """By the name of the submission, what a person decides now: the command, who, which items.

    A participant may have other keys, and so another name, before the entries hold than after it.
    """
    class_list = book.list_class()
    causes = {}
    for participant in (*class_list.participants, *class_list.removed):
        keys = {EVERYONE, *participant.keys}
        items = [entry.item for entry in entries if entry.key in keys]
        if items:
            why = f"{command} by {entries[0].by}"
            causes[participant.name] = Cause(why, "\n".join(dict.fromkeys(items)))
    return causes


def _make_header(book: Gradebook, unmatched: list[str]) -> ClassResults:
    """What the file says of the class as a whole. `unmatched` are names off the roster.

    It has no submissions: they are written line by line. Raises BadDay where the day cannot be
    imported, and BadFile where the course names an exercise that is not there.
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
    sections: set[str] = set()
    if book.roster is not None:
        for names in split_sections(row.section for row in book.roster.rows).values():
            sections.update(names)
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
        chosen=_name_chosen(book),
        scale=course.points,
        deadline=deadline,
        attempt=book.attempt,
        visibility=course.visibility,
        by_hand=list(course.by_hand),
        sections=sorted(sections, key=natural_key),
        unmatched=unmatched,
    )


def _name_chosen(book: Gradebook) -> list[str]:
    """The exercises that --only chose, and the functions where not all of an exercise are chosen.

    Empty where the course says what counts. Raises BadDay where the day cannot be imported, and
    BadFile where the course names an exercise that is not there.
    """
    state = book.state
    names = []
    for exercise in exercises_of(state.day):
        if exercise.stem not in book.row_maker.graded_exercises:
            continue
        functions = [function.name for function in exercise.functions]
        chosen = [name for name in functions if name in state.chosen]
        if chosen == functions:
            names.append(exercise.stem)
        else:
            names += [f"{exercise.stem}::{name}" for name in chosen]
    return names


# Whose points changed


class _PublishedChanges:
    """Compares rows with the points that were published before, and collects what changed."""

    def __init__(self, path: Path, causes: Mapping[str, Cause]) -> None:
        """Read the results in a file, if it can be read; `causes` are by submission.

        Students who handed in under several names are found by their own, unless others have it,
        too.
        """
        self.causes = causes
        self.history: list[HistoryLine] = []
        self.by_settings: list[str] = []  # for the summary
        self.were_absent: set[str] = set()  # submissions of those who are not absent now
        self._absent: set[str] = set()  # names of those without points, and of their submissions
        self._by_submission: dict[str, Grade] = {}
        self._by_student: dict[str, Grade | None] = {}  # None: several are called so
        with contextlib.suppress(BadResults):
            for row in iterate_published(path):
                student = row.student or ""
                if not _is_published(row):
                    self._absent |= {row.submission, student}
                    continue
                self._by_submission[row.submission] = row.final
                is_first = student not in self._by_student
                self._by_student[student] = row.final if is_first else None

    def add_row(self, row: SubmissionRow) -> None:
        """Compare a row of now."""
        new = None
        if _is_published(row):
            new = row.final
        old = self._published_before(row.submission, row.student or "")
        cause = self.causes.get(row.submission)
        if _same_points(old, new):
            return
        if old is None and (cause is None or cause.why == NEW_ATTEMPT):
            names = {without_surrogates(row.submission), without_surrogates(row.student or "")}
            if self._absent.isdisjoint(names):
                return  # nobody knew of the student before
            self.were_absent.add(row.submission)
        self._add_line(row.submission, row.student or "", old, new, cause)
        if cause is None:
            self.by_settings.append(_describe_change(row, old, new))

    def add_removed(self, participant: Participant) -> None:
        """Note the points of somebody who has no row any more, if there were some."""
        name = participant.name
        old = self._published_before(name, "")
        cause = self.causes.get(name)
        if cause is not None and old is not None:
            self._add_line(name, participant.display_name, old, None, cause)

    def _published_before(self, submission: str, student: str) -> Grade | None:
        """The points that were published for a submission or its student; None for none."""
        name = without_surrogates(submission)
        if name in self._by_submission:
            return self._by_submission[name]
        if not student:
            return None
        return self._by_student.get(without_surrogates(student))

    def _add_line(
        self,
        submission: str,
        student: str,
        old: Grade | None,
        new: Grade | None,
        cause: Cause | None,
    ) -> None:
        """Add a line to the history; points that were or are not published are empty there."""
        cause = cause or Cause("settings", "")
        line = HistoryLine(
            submission=submission,
            student=student,
            before="" if old is None else format_points(old.points),
            after="" if new is None else format_points(new.points),
            out_of=format_points((new or old or NO_POINTS).max_points),
            why=cause.why,
            checks=cause.what,
        )
        self.history.append(line)


def _is_published(row: SubmissionRow | PublishedRow) -> bool:
    """False for who handed in nothing, and got no points by hand: their cells stay empty."""
    return row.status is not SubmissionStatus.ABSENT or row.final.points > 0


def _same_points(old: Grade | None, new: Grade | None) -> bool:
    """True if both are shown with the same points and maximum, or neither is published."""
    if old is None or new is None:
        return old is new
    if format_points(old.points) != format_points(new.points):
        return False
    return format_points(old.max_points) == format_points(new.max_points)


def _describe_change(row: SubmissionRow, old: Grade | None, new: Grade | None) -> str:
    """How published points changed, for the summary; without points, the student is absent."""
    before = ABSENT if old is None else format_points(old.points)
    if new is None:
        return f"{row.called}: {before} → {ABSENT}"
    after = format_points(new.points)
    out_of = format_points(new.max_points)
    if old is not None and format_points(old.max_points) != out_of:
        before += f" of {format_points(old.max_points)}"
    return f"{row.called}: {before} → {after} of {out_of}"
