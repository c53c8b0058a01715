"""Points that people give by hand, and the log of who gave them."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpudojo.classes.course_rules import find_exercise
from gpudojo.classes.csv_tables import read_table
from gpudojo.classes.store import write_file
from gpudojo.model.errors import BadClass, BadFile, suggest_name
from gpudojo.model.results import ExerciseRow, Override, SubmissionRow, sum_points
from gpudojo.model.results_csv import spreadsheet_safe
from gpudojo.model.results_file import format_points

NAME: Final = "overrides.csv"
COLUMNS: Final = ("at", "by", "action", "student", "item", "points", "comment", "key")
EVERYONE: Final = "*"  # stands for the student
SET: Final = "set"
UNDO: Final = "undo"


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


class Overrides:
    """The log of points that people gave in one class.

    What was set last holds until it is undone.
    """

    def __init__(self, out: Path) -> None:
        """Read the log, if there is one. Raises BadFile."""
        self.path = out / NAME
        self.log = self._read_log() if self.path.exists() else []
        self._by_key: dict[str, dict[str, LogEntry]] | None = None

    def _read_log(self) -> list[LogEntry]:
        (line_of_headings, headings), *rows = read_table(self.path)
        file = str(self.path)
        if tuple(headings) != COLUMNS:
            columns = ", ".join(COLUMNS)
            raise BadFile(file, line_of_headings, f"the columns must be {columns}")
        entries = []
        for line, cells in rows:
            if len(cells) != len(COLUMNS) or cells[2] not in (SET, UNDO):
                needed = f"{len(COLUMNS)} cells are needed, the third {SET} or {UNDO}"
                raise BadFile(file, line, needed)
            at, by, action, student, item, points_text, comment, key = map(_without_quote, cells)
            points = parse_points(points_text, file, line) if action == SET else 0.0
            entries.append(LogEntry(at, by, action, student, item, points, comment, key))
        return entries

    def entries_in_force(self) -> dict[tuple[str, str], LogEntry]:
        """What holds now, by the student's key and the item."""
        return _entries_in_force(self.log)

    def entries_before(self, at: str) -> dict[tuple[str, str], LogEntry]:
        """What held before the command of this time, by the student's key and the item."""
        earlier = itertools.takewhile(lambda entry: entry.at != at, self.log)
        return _entries_in_force(earlier)

    def entries_for(self, keys: Iterable[str], everyone: bool = True) -> dict[str, LogEntry]:
        """What holds for the student with these keys, by item.

        The student's own points come before those of everyone who handed something in, which are
        left out unless `everyone`. Of what was given by several keys, as before and after the
        student was on a roster, the last holds.
        """
        if self._by_key is None:
            self._by_key = {}
            for (key, item), entry in self.entries_in_force().items():
                self._by_key.setdefault(key, {})[item] = entry
        own: list[LogEntry] = []
        for key in keys:
            own += self._by_key.get(key, {}).values()
        own.sort(key=lambda entry: entry.at)
        by_item = dict(self._by_key.get(EVERYONE, {})) if everyone else {}
        for entry in own:
            by_item[entry.item] = entry
        return by_item

    def entries_of_last_command(self) -> list[LogEntry]:
        """What the last command set. Nothing where it took something back."""
        last = [entry for entry in self.log if entry.at == self.log[-1].at]
        return last if all(entry.action == SET for entry in last) else []

    def append_entries(self, entries: Sequence[LogEntry]) -> None:
        """Append to the log. The file is replaced as a whole."""
        self.log += entries
        self._by_key = None
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for entry in self.log:
            points = format_points(entry.points) if entry.action == SET else ""
            cells = entry._replace(points=points)  # type: ignore[arg-type]
            writer.writerow([spreadsheet_safe(cell) for cell in cells])  # type: ignore[arg-type]
        write_file(self.path, text.getvalue().encode("utf-8", "backslashreplace"))


def _without_quote(cell: str) -> str:
    """A cell without the quote that keeps a spreadsheet from taking it for a formula."""
    is_quoted = cell.startswith("'") and spreadsheet_safe(cell[1:]) == cell
    return cell[1:] if is_quoted else cell


def _entries_in_force(log: Iterable[LogEntry]) -> dict[tuple[str, str], LogEntry]:
    """The entries that hold after a log, by the student's key and the item.

    They are in the order in which they were set.
    """
    entries: dict[tuple[str, str], LogEntry] = {}
    for entry in log:
        entries.pop((entry.key, entry.item), None)
        if entry.action == SET:
            entries[entry.key, entry.item] = entry
    return entries


def parse_points(text: str, file: str, line: int | None = None) -> float:
    """The points that somebody wrote, with a decimal point or comma. Raises BadFile."""
    try:
        points = round(float(text.replace(",", ".")), 6)
    except ValueError:
        raise BadFile(file, line, f"{text!r} is not a number of points") from None
    if not 0 <= points < math.inf:
        raise BadFile(file, line, f"points must be 0 or more, not {text}")
    return points


def find_item(name: str, row: SubmissionRow) -> tuple[str, float]:
    """Find a check, exercise or item of a row. Returns its full name and what it is worth.

    A check may be named by its end: `runs`, `train_epoch::runs`; an exercise by its number. Raises
    BadClass, with a suggestion, for a name that is unknown or means several checks.
    """
    # What can be named, with what it is worth.
    exercises = {exercise.exercise: exercise.max_score for exercise in row.exercises}
    checks: dict[str, float] = {}
    for exercise in row.exercises:
        for check in exercise.checks:
            checks[check.id] = check.max_points
    stem = find_exercise(name, exercises)
    if stem is not None:
        return stem, exercises[stem]
    found = [check for check in checks if check == name or check.endswith(f"::{name}")]
    if len(found) == 1:
        return found[0], checks[found[0]]
    if found:
        some = ", ".join(_without_exercise(check) for check in found[:5])
        more = ", …" if len(found) > 5 else ""
        raise BadClass(f"{len(found)} checks are called {name!r}; write more of it: {some}{more}")
    # There is none of that name: suggest one.
    names = list(exercises)
    names += [_without_exercise(check) for check in checks]
    names += [check.rpartition("::")[2] for check in checks]
    hint = suggest_name(name, names, "") or "; see: dojo override --items"
    raise BadClass(f"there is no check, exercise or item {name!r}{hint}")


def _without_exercise(check: str) -> str:
    """The function and the name of a check: "train_epoch::runs"."""
    return check.partition("::")[2]


def apply_overrides(
    exercises: Sequence[ExerciseRow], entries: dict[str, LogEntry]
) -> tuple[list[ExerciseRow], list[str]]:
    """Put what people gave, by item, into the rows of exercises.

    Returns the new rows, and a sentence about each item that was given more than it is worth.
    """
    problems: list[str] = []
    if not entries:
        return list(exercises), problems

    def find_override(item: str, graded: float | None, most: float) -> Override | None:
        entry = entries.get(item)
        if entry is None:
            return None
        if entry.points > most:
            given = f"{format_points(entry.points)} of {format_points(most)} points"
            problems.append(f"an override gives {given} for {item}; it was cut")
        return Override(min(entry.points, most), graded, entry.comment, entry.by, entry.at)

    # Checks first: what was given for a whole exercise replaces the sum of its checks.
    rows = []
    for exercise in exercises:
        checks = []
        for check in exercise.checks:
            override = find_override(check.id, check.points, check.max_points)
            if override is not None:
                check = replace(check, override=override, points=override.points)
            checks.append(check)
        score = sum_points(check.points for check in checks) if checks else exercise.score
        graded = None if exercise.by_hand else score
        override = find_override(exercise.exercise, graded, exercise.max_score)
        if override is not None:
            score = override.points
        rows.append(replace(exercise, checks=checks, score=score, override=override))
    return rows, problems
