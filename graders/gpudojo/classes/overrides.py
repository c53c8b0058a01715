"""Points that people give by hand, and the log of who gave them.

An *item* is what points can be given for: a check, an exercise, or what people grade. A student is
known by *keys*, which stay the same whatever a submission is called. An entry *holds*, or is in
force, until the same student's item is set again or undone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpudojo.classes.course_rules import find_exercise
from gpudojo.classes.csv_tables import read_table
from gpudojo.classes.store import write_file
from gpudojo.model.errors import BadClass, BadFile, suggest_name
from gpudojo.model.results import CheckRow, ExerciseRow, Override, SubmissionRow, sum_points
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points

NAME: Final = "overrides.csv"
COLUMNS: Final = ("at", "by", "action", "student", "item", "points", "comment", "key")
EVERYONE: Final = "*"  # stands for the student
SET: Final = "set"
UNDO: Final = "undo"
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
    points: float
    comment: str
    key: str  # by which the student is known, whatever the submission is called; or EVERYONE

    @property
    def key_and_item(self) -> KeyAndItem:
        """For whom and for what the line gives points."""
        return KeyAndItem(self.key, self.item)

    def as_cells(self) -> list[str]:
        """The line as texts that are safe in a spreadsheet, in the order of COLUMNS."""
        points = ""
        if self.action == SET:
            points = format_points(self.points)
        texts = (
            self.at,
            self.by,
            self.action,
            self.student,
            self.item,
            points,
            self.comment,
            self.key,
        )
        return [spreadsheet_safe(text) for text in texts]


class Overrides:
    """The log of points that people gave in one class."""

    def __init__(self, out: Path) -> None:
        """Read the log, if there is one. Raises BadFile."""
        self.path = out / NAME
        self.log: list[LogEntry] = []
        if self.path.exists():
            self.log = _read_log(self.path)
        self._by_key: dict[str, list[LogEntry]] | None = None

    def entries_in_force(self) -> dict[KeyAndItem, LogEntry]:
        """The entries that hold now."""
        return _entries_in_force(self.log)

    def entries_before(self, at: str) -> dict[KeyAndItem, LogEntry]:
        """The entries that held before the command of this time."""
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
        """The entries that hold, by the student's key; found once for each state of the log."""
        if self._by_key is None:
            self._by_key = {}
            for entry in self.entries_in_force().values():
                self._by_key.setdefault(entry.key, []).append(entry)
        return self._by_key

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

    def append_entries(self, entries: Sequence[LogEntry]) -> None:
        """Append to the log. The file is replaced as a whole. Raises OSError.

        Cells that a spreadsheet would run as formulas get an apostrophe.
        """
        self.log += entries
        self._by_key = None
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for entry in self.log:
            writer.writerow(entry.as_cells())
        data = text.getvalue().encode("utf-8", "backslashreplace")
        write_file(self.path, data)


def _read_log(path: Path) -> list[LogEntry]:
    """The entries of a log. Raises BadFile with the line that is not one.

    Cells are without the apostrophes that protect them in a spreadsheet.
    """
    first, *lines = read_table(path)
    file = str(path)
    if tuple(first.cells) != COLUMNS:
        columns = ", ".join(COLUMNS)
        raise BadFile(file, first.number, f"the columns must be {columns}")
    entries = []
    for line in lines:
        if len(line.cells) != len(COLUMNS) or line.cells[2] not in (SET, UNDO):
            needed = f"{len(COLUMNS)} cells are needed, the third {SET} or {UNDO}"
            raise BadFile(file, line.number, needed)
        # Its cells by column.
        texts = [_without_quote(cell) for cell in line.cells]
        cells = dict(zip(COLUMNS, texts, strict=True))
        points = 0.0
        if cells["action"] == SET:
            points = parse_points(cells["points"], file, line.number)
        entry = LogEntry(
            at=cells["at"],
            by=cells["by"],
            action=cells["action"],
            student=cells["student"],
            item=cells["item"],
            points=points,
            comment=cells["comment"],
            key=cells["key"],
        )
        entries.append(entry)
    return entries


def _without_quote(cell: str) -> str:
    """A cell without the quote that keeps a spreadsheet from taking it for a formula."""
    is_quoted = cell.startswith("'") and spreadsheet_safe(cell[1:]) == cell
    if is_quoted:
        return cell[1:]
    return cell


def _entries_in_force(log: Iterable[LogEntry]) -> dict[KeyAndItem, LogEntry]:
    """The entries that hold after a log, in the order in which they were set."""
    entries: dict[KeyAndItem, LogEntry] = {}
    for entry in log:
        entries.pop(entry.key_and_item, None)
        if entry.action == SET:
            entries[entry.key_and_item] = entry
    return entries


def parse_points(text: str, file: str, line: int | None = None) -> float:
    """The points that somebody wrote, with a decimal point or comma. Raises BadFile."""
    number = text.replace(",", ".")
    try:
        points = round(float(number), 6)
    except ValueError:
        raise BadFile(file, line, f"{text!r} is not a number of points") from None
    if not 0 <= points < math.inf:
        raise BadFile(file, line, f"points must be 0 or more, not {text}")
    return points


class NamedItem(NamedTuple):
    """A check, exercise or item by its full name, and what it is worth."""

    name: str
    max_points: float


def find_item(name: str, row: SubmissionRow) -> NamedItem:
    """Find a check, exercise or item of a row.

    A check may be named by its end: `runs`, `train_epoch::runs`; an exercise by its number. Raises
    BadClass, with a suggestion, for a name that is unknown or means several checks.
    """
    # What can be named, with what it is worth.
    exercises: dict[str, float] = {}
    checks: dict[str, float] = {}
    for exercise in row.exercises:
        exercises[exercise.exercise] = exercise.max_score
        for check in exercise.checks:
            checks[check.id] = check.max_points

    stem = find_exercise(name, exercises)
    if stem is not None:
        return NamedItem(stem, exercises[stem])
    matching = []
    for check_id in checks:
        if check_id == name or check_id.endswith(f"::{name}"):
            matching.append(check_id)
    if len(matching) == 1:
        return NamedItem(matching[0], checks[matching[0]])
    if matching:
        names = [_without_exercise(check_id) for check_id in matching]
        listed = ", ".join(names[:SUGGESTED_CHECKS])
        if len(names) > SUGGESTED_CHECKS:
            listed += ", …"
        raise BadClass(f"{len(names)} checks are called {name!r}; write more of it: {listed}")
    hint = _suggest_item(name, exercises, checks)
    raise BadClass(f"there is no check, exercise or item {name!r}{hint}")


def _suggest_item(name: str, exercises: Iterable[str], checks: Iterable[str]) -> str:
    """What may have been meant by a name that is unknown, or how to find out."""
    names = list(exercises)
    for check in checks:
        names.append(_without_exercise(check))
        names.append(check.rpartition("::")[2])
    return suggest_name(name, names, "") or "; see: dojo override --items"


def _without_exercise(check: str) -> str:
    """The function and the name of a check: "train_epoch::runs"."""
    return check.partition("::")[2]


class _OverrideApplier:
    """Puts what people gave to one student, by item, into the rows of exercises."""

    def __init__(self, entries: dict[str, LogEntry]) -> None:
        self.entries = entries
        self.problems: list[str] = []  # a sentence about each item that was given too much

    def apply_to_exercise(self, exercise: ExerciseRow) -> ExerciseRow:
        """The row with points given for its checks, or for the whole, instead of their sum.

        Points of the whole come before those of its checks. The row itself is not changed.
        """
        checks = [self._apply_to_check(check) for check in exercise.checks]
        score = exercise.score
        if checks:
            score = sum_points(check.points for check in checks)
        graded = None
        if not exercise.by_hand:
            graded = score
        override = self._find_override(exercise.exercise, graded, exercise.max_score)
        if override is not None:
            score = override.points
        return replace(exercise, checks=checks, score=score, override=override)

    def _apply_to_check(self, check: CheckRow) -> CheckRow:
        """The check with the points that people gave for it, if they did."""
        override = self._find_override(check.id, check.points, check.max_points)
        if override is None:
            return check
        return replace(check, override=override, points=override.points)

    def _find_override(self, item: str, graded: float | None, most: float) -> Override | None:
        """What people gave for an item, or None. `graded` are the points that the grader gave.

        What is more than the item is worth is cut, with a sentence in `problems`.
        """
        entry = self.entries.get(item)
        if entry is None:
            return None
        if entry.points > most:
            share = f"{format_points(entry.points)} of {format_points(most)} points"
            self.problems.append(f"an override gives {share} for {item}; it was cut")
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
    """Put what people gave, by item, into new rows of exercises."""
    if not entries:
        return OverriddenExercises(list(exercises), [])
    applier = _OverrideApplier(entries)
    rows = [applier.apply_to_exercise(exercise) for exercise in exercises]
    return OverriddenExercises(rows, applier.problems)
