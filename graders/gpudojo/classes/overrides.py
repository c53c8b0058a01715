"""Points that people give by hand, and the log of who gave them.

An *item* is what points can be given for: a check, an exercise, or what people grade. A student is
known by *keys*, which stay the same whatever a submission is called. An entry *holds*, or is in
force, until the same student's item is set again or undone.
"""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpudojo.classes.class_state import StoredSubmission
from gpudojo.classes.course_rules import find_exercise
from gpudojo.classes.csv_tables import read_table
from gpudojo.classes.store import write_file
from gpudojo.model.errors import BadClass, BadFile, suggest_name
from gpudojo.model.results import (
    CheckRow,
    ExerciseRow,
    Override,
    RubricRow,
    SubmissionRow,
    sum_points,
)
from gpudojo.model.results_csv import TABLE_ENCODING, spreadsheet_safe
from gpudojo.model.results_file import exact_points, format_points

NAME: Final = "overrides.csv"
COLUMNS: Final = ("at", "by", "action", "student", "item", "points", "comment", "key", "about")
FORMER_COLUMNS: Final = COLUMNS[:-1]  # of logs that an earlier version wrote
EVERYONE: Final = "*"  # stands for the student
SET: Final = "set"
UNDO: Final = "undo"
# Items that are no points: how late a submission was, in seconds, what was reviewed, and who was
# taken out of the class.
LATE: Final = "late"
REVIEW: Final = "review"
REMOVED: Final = "removed"  # the student is in no results
FULL: Final = "full"  # may be written for all points of an item
ALL_POINTS: Final = math.inf  # what FULL gives: all of an item, whatever it is worth
NOTHING_HANDED_IN: Final = "-"  # stands for the work in `about` of LATE
COMMENT: Final = "comment"  # `about` of an entry that leaves the points as they are
SUGGESTED_CHECKS: Final = 5  # of those that a name may mean


class KeyAndItem(NamedTuple):
    """For whom and for what an entry gives points."""

    key: str
    item: str


class LogEntry(NamedTuple):
    """A line of the log: the cells of COLUMNS."""

    at: str
    by: str
    action: str  # SET or UNDO
    student: str
    item: str
    points: float  # or ALL_POINTS
    comment: str
    key: str  # by which the student is known, whatever the submission is called; or EVERYONE
    # Of LATE, the seconds, and the work it is of; of REVIEW, the digest of what was reviewed;
    # COMMENT for a comment alone;
    # of points, what the item was worth, or empty where an earlier version wrote the line.
    about: str = ""

    @property
    def gives_points(self) -> bool:
        """False for what is no points, for a comment alone, and for what was undone."""
        if self.action != SET or self.about == COMMENT:
            return False
        return self.item not in (LATE, REVIEW, REMOVED)

    @property
    def late_seconds(self) -> int:
        """How late a person says it was; of LATE."""
        return int(self.about.partition(" ")[0])

    @property
    def delay(self) -> str:
        """How late a person says it was, as it is written behind --late: 2h."""
        for unit, seconds in (("d", 86_400), ("h", 3600)):
            if self.late_seconds and self.late_seconds % seconds == 0:
                return f"{self.late_seconds // seconds}{unit}"
        if not self.late_seconds:
            return "0"
        return f"{self.late_seconds / 60:.10g}m"

    def is_of_hand_in(self, submission: StoredSubmission) -> bool:
        """True if LATE was decided of this work, and not of another hand-in.

        Of everybody's, and in a line of an earlier version, it is of all that had arrived by then.
        """
        work = self.about.partition(" ")[2]
        if not work:
            return submission.order <= self.at
        return work == submission.work

    def was_given_of(self, max_points: float) -> bool:
        """True unless the item was worth other points when these were given.

        Of all points, and where nobody knows what it was worth, it is true.
        """
        if self.points == ALL_POINTS or not self.about:
            return True
        return self.about == exact_points(max_points)

    @property
    def key_and_item(self) -> KeyAndItem:
        """For whom and for what the line gives points."""
        return KeyAndItem(self.key, self.item)

    def as_cells(self) -> list[str]:
        """The line as texts that are safe in a spreadsheet, in the order of COLUMNS."""
        points = ""
        if self.gives_points:
            points = FULL
            if self.points != ALL_POINTS:
                points = exact_points(self.points)
        texts = (
            self.at,
            self.by,
            self.action,
            self.student,
            self.item,
            points,
            self.comment,
            self.key,
            self.about,
        )
        return [spreadsheet_safe(text) for text in texts]


class Overrides:
    """The log of points that people gave in one class."""

    def __init__(self, out: Path, by_hand: Sequence[ExerciseRow]) -> None:
        """Read the log, if there is one. Raises BadFile.

        `by_hand` is what people grade. In lines of an earlier version, lines of rubrics have the
        number by which they stand there now.
        """
        self.path = out / NAME
        self.log: list[LogEntry] = []
        names: dict[str, str] = {}
        for item in by_hand:
            names |= item.rubric_numbers
        if self.path.exists():
            for entry in _read_log(self.path):
                self.log.append(entry._replace(item=names.get(entry.item, entry.item)))
        self._by_key: dict[str, list[LogEntry]] | None = None

    def entries_in_force(self) -> dict[KeyAndItem, LogEntry]:
        """The entries that hold now, in the order in which they were set."""
        return _entries_in_force(self.log)

    def entries_before(self, at: str) -> dict[KeyAndItem, LogEntry]:
        """The entries that held before the command of this time, in the order they were set."""
        earlier = []
        for entry in self.log:
            if entry.at == at:
                break
            earlier.append(entry)
        return _entries_in_force(earlier)

    def entries_for(self, keys: Iterable[str], everyone: bool = True) -> dict[str, LogEntry]:
        """The entries that hold for the student with these keys, by item.

        The student's own points come before those of everyone who handed something in, which are
        left out unless `everyone`. Of what was given by several keys, as before and after the
        student was on a roster, the last holds.
        """
        by_key = self._entries_by_key()
        own: list[LogEntry] = []
        for key in keys:
            own += by_key.get(key, [])
        own.sort(key=lambda entry: entry.at)
        by_item = {}
        if everyone:
            for entry in by_key.get(EVERYONE, []):
                by_item[entry.item] = entry
        for entry in own:
            by_item[entry.item] = entry
        return by_item

    def _entries_by_key(self) -> dict[str, list[LogEntry]]:
        """The entries that hold, by the student's key; remembered until the log changes."""
        if self._by_key is None:
            self._by_key = {}
            for entry in self.entries_in_force().values():
                self._by_key.setdefault(entry.key, []).append(entry)
        return self._by_key

    def was_given_to_several(self, entry: LogEntry) -> bool:
        """True if the command that set an entry gave the same item to others, too.

        A command that took something back, and so gave again what held before, does not count.
        """
        keys = set()
        for other in self.log:
            if other.at != entry.at:
                continue
            if other.action == UNDO:
                return False
            if other.item == entry.item:
                keys.add(other.key)
        return len(keys) > 1

    def entries_of_last_command(self) -> list[LogEntry]:
        """What the last command set. Nothing where it took something back."""
        last = []
        for entry in self.log:
            if entry.at != self.log[-1].at:
                continue
            if entry.action == UNDO:
                return []
            last.append(entry)
        return last

    def write_log(self, log: Sequence[LogEntry]) -> None:
        """Make these entries the log, and replace its file as a whole.

        Cells that a spreadsheet would run as formulas get an apostrophe. Raises OSError; the log is
        as it was then.
        """
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for entry in log:
            writer.writerow(entry.as_cells())
        data = text.getvalue().encode(TABLE_ENCODING, "backslashreplace")
        write_file(self.path, data)
        self.log = list(log)
        self._by_key = None


def _read_log(path: Path) -> list[LogEntry]:
    """The entries of a log, in order.

    Cells are without the apostrophes that protect them in a spreadsheet. Raises BadFile for a file
    that cannot be read, and with the line that is no entry.
    """
    first, *lines = read_table(path)
    file = str(path)
    if tuple(first.cells) not in (COLUMNS, FORMER_COLUMNS):
        columns = ", ".join(COLUMNS)
        raise BadFile(file, first.number, f"the columns must be {columns}")
    entries = []
    for line in lines:
        if len(line.cells) != len(first.cells) or line.cells[2] not in (SET, UNDO):
            needed = f"{len(first.cells)} cells are needed, the third {SET} or {UNDO}"
            raise BadFile(file, line.number, needed)
        # Its cells by column.
        texts = [without_quote(cell) for cell in line.cells]
        cells = dict(zip(first.cells, texts, strict=True))
        entry = LogEntry(
            at=cells["at"],
            by=cells["by"],
            action=cells["action"],
            student=cells["student"],
            item=cells["item"],
            points=0.0,
            comment=cells["comment"],
            key=cells["key"],
            about=cells.get("about", ""),
        )
        if entry.gives_points:
            points = parse_points_or_full(cells["points"], file, line.number)
            entry = entry._replace(points=points)
        elif entry.action == SET and entry.item == LATE:
            seconds = entry.about.partition(" ")[0]
            if not _is_count(seconds):
                raise BadFile(file, line.number, f"{seconds!r} is not a number of seconds")
        entries.append(entry)
    return entries


def _is_count(text: str) -> bool:
    """True for a whole number in ASCII digits."""
    return text.isascii() and text.isdecimal()


def without_quote(cell: str) -> str:
    """A cell without the quote that keeps a spreadsheet from taking it for a formula."""
    is_quoted = cell.startswith("'") and spreadsheet_safe(cell[1:]) == cell
    if is_quoted:
        return cell[1:]
    return cell


def _entries_in_force(log: Iterable[LogEntry]) -> dict[KeyAndItem, LogEntry]:
    """The entries that hold after a log, in the order in which they were set.

    By student and item, the latest of each.
    """
    entries: dict[KeyAndItem, LogEntry] = {}
    for entry in log:
        entries.pop(entry.key_and_item, None)
        if entry.action == SET:
            entries[entry.key_and_item] = entry
    return entries


def parse_points(text: str, file: str, line: int | None = None) -> float:
    """The points that somebody wrote, with a decimal point or comma.

    Raises BadFile, with `file` and `line`, for a text that is no number and for less than 0.
    """
    number = text.replace(",", ".")
    try:
        points = round(float(number), 6)
    except ValueError:
        raise BadFile(file, line, f"{text!r} is not a number of points") from None
    if not 0 <= points < math.inf:
        raise BadFile(file, line, f"points must be 0 or more, not {text}")
    return points


def parse_points_or_full(text: str, file: str, line: int | None = None) -> float:
    """The points that somebody wrote, or ALL_POINTS for FULL.

    Raises BadFile, with `file` and `line`, for another text that is no number or less than 0.
    """
    if text.casefold() == FULL:
        return ALL_POINTS
    return parse_points(text, file, line)


class NamedItem(NamedTuple):
    """A check, exercise or item by its full name, and what it is worth."""

    name: str
    max_points: float


def find_item(
    name: str, row: SubmissionRow, checks_of_day: Mapping[str, Sequence[str]]
) -> NamedItem:
    """Find a check, exercise or item of a row; `late` is an item, too.

    A check may be named by its end: `runs`, `train_epoch::runs`; an exercise by its number, and a
    number is nothing else; a line of a rubric by its text, or by where it stands: `report::1`.
    `checks_of_day` has all exercises of the day with their checks, also those that the row does not
    have. Raises BadClass, with a suggestion, for a name that is unknown, means several checks, or
    is of an exercise that does not count.
    """
    if name == LATE:
        return NamedItem(LATE, 0.0)
    # What can be named, with what it is worth.
    exercises: dict[str, float] = {}
    checks: dict[str, float] = {}
    for exercise in row.exercises:
        name = exercise.rubric_numbers.get(name, name)
        exercises[exercise.exercise] = exercise.max_score
        for check in exercise.checks:
            checks[check.id] = check.max_points
        for line_name, line in exercise.rubric_lines.items():
            checks[line_name] = line.max_points

    stem = find_exercise(name, exercises)
    if stem is not None:
        return NamedItem(stem, exercises[stem])
    exercise_named = name.partition("::")[0]
    left_out = find_exercise(exercise_named, checks_of_day)
    if left_out is not None and left_out not in exercises:
        raise BadClass(f"{left_out} does not count in this course")
    matching = _checks_called(name, checks)
    if len(matching) == 1:
        return NamedItem(matching[0], checks[matching[0]])
    if matching:
        names = [_without_exercise(check_id) for check_id in matching]
        listed = ", ".join(names[:SUGGESTED_CHECKS])
        if len(names) > SUGGESTED_CHECKS:
            listed += ", …"
        raise BadClass(f"{len(names)} checks are called {name!r}; write more of it: {listed}")
    for stem, checks_of_stem in checks_of_day.items():
        if stem not in exercises and _checks_called(name, checks_of_stem):
            raise BadClass(f"{name} is of {stem}, which does not count in this course")
    hint = _suggest_item(name, exercises, checks)
    raise BadClass(f"there is no check, exercise or item {name!r}{hint}")


def _checks_called(name: str, checks: Iterable[str]) -> list[str]:
    """The checks with this id, or with this end of it."""
    matching = []
    for check_id in checks:
        is_its_end = check_id.endswith(f"::{name}") and not name.isdecimal()
        if check_id == name or is_its_end:
            matching.append(check_id)
    return matching


def _suggest_item(name: str, exercises: Iterable[str], checks: Iterable[str]) -> str:
    """What may have been meant by a name that is unknown, or how to find out."""
    item = name.partition("::")[0]
    lines = [each for each in checks if each.startswith(f"{item}::") and each.count("::") == 1]
    if lines:
        listed = "; ".join(
            f"{item}::{number} is {_without_exercise(each)!r}"
            for number, each in enumerate(lines, 1)
        )
        return f"; of {item}, {listed}"
    names = list(exercises)
    for check in checks:
        names.append(check)
        names.append(_without_exercise(check))
        names.append(check.rpartition("::")[2])
    return suggest_name(name, names, "") or "; what this course has: dojo override --items"


def _without_exercise(check: str) -> str:
    """The function and the name of a check: "train_epoch::runs"."""
    return check.partition("::")[2]


class _OverrideApplier:
    """Puts what people gave to one student, by item, into the rows of exercises."""

    def __init__(self, entries: dict[str, LogEntry]) -> None:
        self.entries = entries
        # A sentence about each item that was given too much, or is worth other points since.
        self.problems: list[str] = []

    def apply_to_exercise(self, exercise: ExerciseRow) -> ExerciseRow:
        """A new row with points given for its checks, or for the whole, instead of their sum.

        Points of the whole come before those of its checks. Points that are cut are noted in
        `problems`.
        """
        checks = [self._apply_to_check(check) for check in exercise.checks]
        score = exercise.score
        if checks:
            score = sum_points(check.points for check in checks)
        rubric = exercise.rubric
        if exercise.by_hand:
            rubric = self._apply_to_rubric(exercise)
            given = [line.override for line in rubric]
            score = sum_points(override.points for override in given if override)
        graded = None
        if not exercise.by_hand:
            graded = score
        override = self._find_override(exercise.exercise, graded, exercise.max_score)
        if override is not None:
            score = override.points
        return replace(
            exercise,
            checks=checks,
            score=score,
            override=override,
            rubric=rubric,
            remark=self._find_remark(exercise.exercise),
        )

    def _apply_to_rubric(self, exercise: ExerciseRow) -> list[RubricRow]:
        """The rubric of an item, with the points that people gave for its lines.

        Points that are cut are noted in `problems`.
        """
        names = {id(line): name for name, line in exercise.rubric_lines.items()}
        rubric = []
        for line in exercise.rubric:
            name = names.get(id(line), "")
            override = self._find_override(name, None, line.max_points)
            rubric.append(replace(line, override=override))
        if exercise.exercise not in self.entries:
            self._note_former_lines(exercise)
        return rubric

    def _note_former_lines(self, exercise: ExerciseRow) -> None:
        """Note in `problems` what was given for texts that are no lines of the rubric now."""
        known = {exercise.exercise, *exercise.rubric_lines}
        for item, entry in self.entries.items():
            name, _, text = item.partition("::")
            if name != exercise.exercise or item in known or not entry.gives_points:
                continue
            undo = shlex.join(("dojo", "override", "--undo", entry.student, item))
            points = FULL if entry.points == ALL_POINTS else format_points(entry.points)
            self.problems.append(
                f"{points} of {entry.about} points were given by hand for {text!r}, which is no "
                f"line of {name} now; give them for a line that is there (dojo override --items), "
                f"and take these back: {undo}"
            )

    def _apply_to_check(self, check: CheckRow) -> CheckRow:
        """The check with the points that people gave for it, if they did.

        Points that are cut are noted in `problems`.
        """
        override = self._find_override(check.id, check.points, check.max_points)
        if override is None:
            return replace(check, remark=self._find_remark(check.id))
        return replace(check, override=override, points=override.points)

    def _find_remark(self, item: str) -> str:
        """What a person says about an item without giving points. Empty for nothing."""
        entry = self.entries.get(item)
        if entry is None or entry.about != COMMENT:
            return ""
        return entry.comment

    def _find_override(self, item: str, graded: float | None, most: float) -> Override | None:
        """What people gave for an item, or None.

        `graded` are the points that the grader gave, `most` what the item is worth. What is more
        than that is cut. A sentence about that, and about an item that was worth other points when
        they were given, is added to `problems`.
        """
        entry = self.entries.get(item)
        if entry is None or entry.about == COMMENT:
            return None
        if most < entry.points < ALL_POINTS:
            share = f"{format_points(entry.points)} of {format_points(most)} points"
            self.problems.append(f"an override gives {share} for {item}; it was cut")
        elif not entry.was_given_of(most):
            self.problems.append(
                f"{format_points(entry.points)} of {entry.about} points were given by hand for "
                f"{item}, which is worth {format_points(most)} now; to give others, or these "
                f"again: dojo override {shlex.join((entry.student, item))} --points POINTS"
            )
        return Override(
            points=min(entry.points, most),
            graded=graded,
            comment=entry.comment,
            by=entry.by,
            at=entry.at,
        )


class OverriddenExercises(NamedTuple):
    """Rows of exercises with what people gave, and sentences about what was too much."""

    rows: list[ExerciseRow]
    problems: list[str]


def apply_overrides(
    exercises: Sequence[ExerciseRow], entries: dict[str, LogEntry]
) -> OverriddenExercises:
    """Put what people gave, by item, into new rows of exercises.

    Returns these, and a sentence about each item that was given too much. The rows that are given
    stay as they are.
    """
    if not entries:
        return OverriddenExercises(list(exercises), [])
    applier = _OverrideApplier(entries)
    rows = [applier.apply_to_exercise(exercise) for exercise in exercises]
    return OverriddenExercises(rows, applier.problems)
