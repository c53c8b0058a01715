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
EVERYONE: Final = "*"
SET = "set"
UNDO = "undo"


class LogEntry(NamedTuple):
    """A line of the log."""

    at: str
    by: str
    action: str
    student: str
    item: str
    points: float
    comment: str
    key: str  # by which the student is known, whatever the submission is called; or EVERYONE


class Overrides:
    """The log of one class."""

    def __init__(self, out: Path) -> None:
        """Reads the log, if there is one; raises BadFile."""
        self.path = out / NAME
        self.log = self._read() if self.path.exists() else []
        self._by_key: dict[str, dict[str, LogEntry]] | None = None

    def _read(self) -> list[LogEntry]:
        (at, headings), *lines = read_table(self.path)
        if tuple(headings) != COLUMNS:
            raise BadFile(str(self.path), at, f"the columns must be {', '.join(COLUMNS)}")
        found = []
        for line, cells in lines:
            if len(cells) != len(COLUMNS) or cells[2] not in (SET, UNDO):
                raise BadFile(
                    str(self.path),
                    line,
                    f"{len(COLUMNS)} cells are needed, the third {SET} or {UNDO}",
                )
            points = parse_points(cells[5], str(self.path), line) if cells[2] == SET else 0.0
            unquoted = [
                cell[1:] if cell.startswith("'") and spreadsheet_safe(cell[1:]) == cell else cell
                for cell in cells
            ]
            at_, by, action, student, item, _, comment, whose = unquoted
            found.append(LogEntry(at_, by, action, student, item, points, comment, whose))
        return found

    def current(self) -> dict[tuple[str, str], LogEntry]:
        """By key of the student and item, what holds."""
        return self._held(self.log)

    def before(self, at: str) -> dict[tuple[str, str], LogEntry]:
        """The same, before the command of a time."""
        return self._held(itertools.takewhile(lambda entry: entry.at != at, self.log))

    @staticmethod
    def _held(log: Iterable[LogEntry]) -> dict[tuple[str, str], LogEntry]:
        found: dict[tuple[str, str], LogEntry] = {}
        for entry in log:
            found.pop((entry.key, entry.item), None)
            if entry.action == SET:
                found[entry.key, entry.item] = entry
        return found

    def of(self, keys: Iterable[str], everyone: bool = True) -> dict[str, LogEntry]:
        """By item, what holds for a student: the student's own before what everyone gets who handed something in.

        Of what was given by several keys, as before and after the student was on a roster, the last holds."""
        if self._by_key is None:
            self._by_key = {}
            for (who, item), entry in self.current().items():
                self._by_key.setdefault(who, {})[item] = entry
        known = self._by_key
        own = sorted(
            (entry for who in keys for entry in known.get(who, {}).values()),
            key=lambda entry: entry.at,
        )
        given = known.get(EVERYONE, {}) if everyone else {}
        return given | {entry.item: entry for entry in own}

    def last(self) -> list[LogEntry]:
        """What the last command set; nothing where it took something back."""
        last = [entry for entry in self.log if entry.at == self.log[-1].at]
        return last if all(entry.action == SET for entry in last) else []

    def add(self, entries: Sequence[LogEntry]) -> None:
        """Append to the log; the file is replaced as a whole."""
        self.log += entries
        self._by_key = None
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for entry in self.log:
            points = format_points(entry.points) if entry.action == SET else ""
            writer.writerow([spreadsheet_safe(cell) for cell in (*entry[:5], points, *entry[6:])])
        write_file(self.path, text.getvalue().encode("utf-8", "backslashreplace"))


def parse_points(text: str, file: str, line: int | None = None) -> float:
    """The points that somebody wrote, with a decimal point or comma; raises BadFile."""
    try:
        points = round(float(text.replace(",", ".")), 6)
    except ValueError:
        raise BadFile(file, line, f"{text!r} is not a number of points") from None
    if not 0 <= points < math.inf:
        raise BadFile(file, line, f"points must be 0 or more, not {text}")
    return points


def find_item(name: str, row: SubmissionRow) -> tuple[str, float]:
    """The name of a check, exercise or item of a row, and what it is worth; raises BadClass with a suggestion.

    A check may be named by its end: `runs`, `train_epoch::runs`; an exercise by its number.
    """
    worth = {exercise.exercise: exercise.max_score for exercise in row.exercises}
    checks = {check.id: check.max_points for exercise in row.exercises for check in exercise.checks}
    stem = find_exercise(name, worth)
    if stem is not None:
        return stem, worth[stem]
    found = [id_ for id_ in checks if id_ == name or id_.endswith(f"::{name}")]
    if len(found) == 1:
        return found[0], checks[found[0]]
    if found:
        some = ", ".join(id_.partition("::")[2] for id_ in found[:5])
        raise BadClass(
            f"{len(found)} checks are called {name!r}; write more of it: {some}{', …' * (len(found) > 5)}"
        )
    ends = [id_.partition("::")[2] for id_ in checks]
    every = [*worth, *ends, *(id_.rpartition("::")[2] for id_ in checks)]
    hint = suggest_name(name, every, "") or "; see: dojo override --items"
    raise BadClass(f"there is no check, exercise or item {name!r}{hint}")


def apply_overrides(
    exercises: Sequence[ExerciseRow], holds: dict[str, LogEntry]
) -> tuple[list[ExerciseRow], list[str]]:
    """The exercises with what people gave; and sentences about what could not be given as it was written."""
    said: list[str] = []
    if not holds:
        return list(exercises), said

    def override(item: str, graded: float | None, most: float) -> Override | None:
        entry = holds.get(item)
        if entry is None:
            return None
        if entry.points > most:
            said.append(
                f"an override gives {format_points(entry.points)} of {format_points(most)} points for {item}; it was cut"
            )
        return Override(min(entry.points, most), graded, entry.comment, entry.by, entry.at)

    found = []
    for exercise in exercises:
        checks = []
        for check in exercise.checks:
            given = override(check.id, check.points, check.max_points)
            checks.append(replace(check, override=given, points=given.points) if given else check)
        score = sum_points(check.points for check in checks) if checks else exercise.score
        whole = override(exercise.exercise, None if exercise.by_hand else score, exercise.max_score)
        score = whole.points if whole else score
        found.append(replace(exercise, checks=checks, score=score, override=whole))
    return found, said
