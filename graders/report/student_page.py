"""What does a student see? Points, every check with its reason, and what the code did beside what the reference did."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from markupsafe import Markup

from graders.report.charts import bars
from graders.report.curves import Curve, curves
from graders.report.evidence import Known
from graders.report.people import Person
from graders.report.picture import Sums, largest_copy, legend, picture, sums
from graders.report.templating import page
from graders.report.texts import counted, told_once
from graders.results import CheckRow, ClassResults, Outcome, Status, SubmissionRow

Says = Callable[[str], str]
MOST_FAILED: Final = 8  # told at the top of the page; it has all of them below
MOST_LETTERS: Final = 160  # of what happened, there
SUMS: Final = (
    ("waits to read a value", "walls"),
    ("waits it was told to", "asked"),
    ("to the device", "to_device"),
    ("to the host", "to_host"),
    ("operations", "operations"),
    ("peak memory", "peak"),
)


@dataclass
class Judgement:
    """One check as it is shown."""

    check: CheckRow
    anchor: str
    place: str
    code: list[tuple[int, str, bool]]
    happened: str
    expected: str
    message: str

    @property
    def in_short(self) -> str:
        """What happened, in a line."""
        first = next(iter((self.happened or self.message).splitlines()), "")
        return textwrap.shorten(first, MOST_LETTERS, placeholder=" …")


@dataclass(frozen=True)
class Call:
    """What the busiest call of a function did, and the reference's."""

    scenario: str
    place: int | None
    mine: Markup
    theirs: Markup
    peak: str
    their_peak: str
    rows: list[tuple[str, object, object]]  # what is counted, yours, and the reference's
    legend: list[tuple[str, str, str]]
    missing: str  # why there is no picture of the reference's
    left_out: int
    waits: list[tuple[int, str, int]]
    headline: str
    open: bool  # there is something to see at once: more walls than needed, or a check that failed


@dataclass
class Part:
    """One function of an exercise."""

    name: str
    points: float
    worth: float
    judgements: list[Judgement] = field(default_factory=list)
    call: Call | None = None
    race: Markup = field(default_factory=Markup)
    peaks: Markup = field(default_factory=Markup)
    curves: Markup = field(default_factory=Markup)
    curved: list[Curve] = field(default_factory=list)

    @property
    def stub(self) -> bool:
        return all(each.check.outcome is Outcome.TODO for each in self.judgements)

    @property
    def passed(self) -> bool:
        return all(each.check.outcome is Outcome.PASSED for each in self.judgements)


def student_page(row: SubmissionRow, person: Person, header: ClassResults, known: Known, home: bool) -> str:
    """The page's text; with `home`, it leads back to the class."""
    # All checks of what could not be read have failed for the one reason that stands at the top.
    read = row.status is not Status.UNREADABLE
    exercises = [
        (exercise, _parts(exercise.exercise, exercise.checks, person, known) if read else [])
        for exercise in row.exercises
    ]
    every = [judgement for _, parts in exercises for part in parts for judgement in part.judgements]
    # What has a line in the student's file can be looked at there, and is told first.
    failed = [judgement for judgement in every if judgement.check.outcome is Outcome.FAILED]
    failed.sort(key=lambda judgement: judgement.check.line is None)
    outcomes = Counter(judgement.check.outcome for judgement in every)
    return page(
        "student.html",
        "student.js",
        row=row,
        person=person,
        header=header,
        exercises=exercises,
        read=read,
        failed=failed[:MOST_FAILED],
        more=len(failed[MOST_FAILED:]),
        counts=[(outcome.value, outcomes[outcome]) for outcome in Outcome if outcomes[outcome]],
        stubs=[(exercise.exercise, part.name) for exercise, parts in exercises for part in parts if part.stub],
        drawn=any(part.call for _, parts in exercises for part in parts),
        recorded=known.record is not None,
        home=home,
        reason=told_once(row.status.value, person.says(row.reason)) if row.reason else "",
        output="" if person.anonymous else row.output,
    )


def _parts(exercise: str, checks: list[CheckRow], person: Person, known: Known) -> list[Part]:
    parts: dict[str, Part] = {}
    failed = {check.function for check in checks if check.outcome is Outcome.FAILED}
    for check in checks:
        part = parts.get(check.function)
        if part is None:
            part = parts[check.function] = Part(check.function, 0.0, 0.0)
            part.call = _call(exercise, check.function, check.function in failed, person.says, known)
            if race := known.race(exercise, check.function):
                part.race = bars(f"How long {check.function} took", race)
            part.curved = known.curves(exercise, check.function)
            if part.curved:
                part.curves = curves(f"Memory of {check.function}", part.curved)
            elif peaks := known.peaks(exercise, check.function):
                part.peaks = bars(f"Peak memory of {check.function}", peaks)
        part.points, part.worth = part.points + check.points, part.worth + check.max_points
        part.judgements.append(_judgement(check, person, known))
    for part in parts.values():
        _say_once(part)
    return list(parts.values())


def _say_once(part: Part) -> None:
    """Why the checks of a stub are to do, or those behind another are blocked, stands at the first of them."""
    for one, other in reversed(list(itertools.pairwise(part.judgements))):
        if other.message == one.message and other.check.outcome is one.check.outcome is not Outcome.FAILED:
            other.message = ""


def _judgement(check: CheckRow, person: Person, known: Known) -> Judgement:
    failed = check.outcome is Outcome.FAILED
    return Judgement(
        check,
        "at-" + check.id.replace("::", "-"),
        place(check, person),
        [(number, person.says(text), marked) for number, text, marked in known.code(check)] if failed else [],
        person.says(check.happened),
        person.says(check.expected),
        person.says(check.message).removeprefix(f"{check.outcome.value}: "),
    )


def place(check: CheckRow, person: Person) -> str:
    """Where a check points to: "line 14 of 04_loop.py", "line 3 of cell 5 of day8.ipynb"."""
    if check.line is None:
        return ""
    file = check.file or ""
    if person.anonymous:  # students put their names into names of files
        file = f"the {'notebook' if PurePosixPath(file).suffix == '.ipynb' else 'file'}" if file else ""
    cell = f" of cell {check.cell}" if check.cell is not None else ""
    return f"line {check.line}{cell}" + (f" of {file}" if file else "")


def _call(exercise: str, function: str, failed: bool, says: Says, known: Known) -> Call | None:
    beside = known.timelines(exercise, function)
    mine, theirs = beside.mine, beside.theirs
    if mine is None:
        return None
    highest = max(mine.peak_bytes, theirs.peak_bytes if theirs is not None else 0)
    widest = largest_copy(mine, theirs)
    own = sums(mine)
    others = sums(theirs) if theirs is not None else None
    return Call(
        says(mine.scenario),
        mine.place,
        picture(mine, f"What your {function} did", highest, widest, says),
        picture(theirs, f"What the reference's {function} did", highest, widest, code=False)
        if theirs is not None
        else Markup(""),
        own.peak,
        others.peak if others is not None else "",
        _rows(own, others),
        legend(mine, theirs),
        beside.missing,
        mine.left_out,
        [(line, says(mine.lines.get(line, "").strip()), count) for line, count in sorted(mine.waits.items())],
        _headline(own, others),
        failed or (others is not None and own.walls > others.walls),
    )


def _rows(mine: Sums, theirs: Sums | None) -> list[tuple[str, object, object]]:
    found = [(name, getattr(mine, key), getattr(theirs, key, "")) for name, key in SUMS]
    # Hardly any call is told to wait; the row is worth its room only where one is.
    return [row for row in found if row[0] != "waits it was told to" or row[1] or row[2]]


def _headline(mine: Sums, theirs: Sums | None) -> str:
    walls = "Yours has " + (counted(mine.walls, "wall") if mine.walls else "no wall")
    if theirs is None:
        return f"{walls}."
    if not mine.walls and not theirs.walls:
        return "Neither yours nor the reference has a wall."
    return f"{walls}, the reference {theirs.walls or 'none'}."
