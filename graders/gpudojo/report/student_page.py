"""The page of one student."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from markupsafe import Markup
from virtual_cuda.ledger import Timeline, same_call

from gpudojo.classes.store import Record, Store
from gpudojo.model.evidence import Race, as_struct
from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.report.charts import Bar, Curve, bars, curve, curves
from gpudojo.report.people import Person
from gpudojo.report.picture import Sums, largest_copy, legend, picture, sums
from gpudojo.report.templating import page
from gpudojo.report.texts import counted, duration, size, told_once

RACERS: Final = (("the loop", "other"), ("yours", "mine"), ("the reference", "theirs"))
NO_PICTURES: Final = "There is no picture of the reference's run on the public seed in this evidence."
UNKNOWN_CALL: Final = (
    "The record of this run does not say which call this is; only the same call of the reference could stand beside it."
)
NOTHING_THERE: Final = (
    "Of the reference there is nothing to draw in the same call: it did next to nothing on a device, or never made it."
)
WITHOUT: Final = "every activation kept"


@dataclass(frozen=True)
class Beside:
    """What a student's call did, the same call of the reference on the public seed, and why that is missing."""

    mine: Timeline | None
    theirs: Timeline | None = None
    missing: str = ""


@dataclass(frozen=True)
class Known:
    """One submission's record, or None, and the reference's of the same run."""

    record: Record | None
    reference: Record | None

    def timelines(self, exercise: str, function: str) -> Beside:
        """What the student's call did, and the same call of the reference."""
        mine = _timeline(self.record, exercise, function)
        if mine is None:
            return Beside(None)
        every = self.reference.seen if self.reference is not None else {}
        seen = every.get(f"{exercise}::{function}")
        theirs = same_call(mine, seen.timelines) if seen is not None else None
        if theirs is not None:
            return Beside(mine, theirs)
        if not any(each.timelines for each in every.values()):
            return Beside(mine, missing=NO_PICTURES)
        return Beside(mine, missing=UNKNOWN_CALL if mine.place is None else NOTHING_THERE)

    def race(self, exercise: str, function: str) -> list[Bar]:
        """How long the loop, the student and the reference took, where the three were timed."""
        found, own = (_race(record, exercise, function) for record in (self.record, self.reference))
        if found is None:
            return []
        reference = found.reference if _drawable(found.reference) else None
        if reference is None and own is not None:
            # The reference did not run beside the student: its own speedup over the loop stands for it.
            reference = found.loop * own.student / own.loop
        times = ((*RACERS[0], found.loop), (*RACERS[1], found.student), (*RACERS[2], reference))
        return [Bar(label, took, duration(took), kind) for label, kind, took in times if took]

    def peaks(self, exercise: str, function: str) -> list[Bar]:
        """What the plain loop, the student and the reference took at most, where activations could be kept or not."""
        mine, theirs = (_facts(record, exercise, function) for record in (self.record, self.reference))
        for facts in mine.values():
            plain = _number(facts, "stored")
            for name, case in facts.items():
                peak = _number(case, "peak")
                if not peak or not plain:
                    continue
                bars = [Bar("plain", plain, size(plain), "other"), Bar("yours", peak, size(peak), "mine")]
                right = next((_number(found.get(name), "peak") for found in theirs.values() if name in found), None)
                return [*bars, Bar("the reference", right, size(right), "theirs")] if right else bars
        return []

    def curves(self, exercise: str, function: str) -> list[Curve]:
        """How memory rose and fell in the plain loop, the student's and the reference's; older records have none."""
        mine, theirs = (_facts(record, exercise, function) for record in (self.record, self.reference))
        for facts in mine.values():
            plain = curve(WITHOUT, facts.get("stored_curve"), "other")
            for name, case in facts.items():
                yours = curve("yours", _within(case, "curve"), "mine")
                if plain is None or yours is None:
                    continue
                others = (_within(found.get(name), "curve") for found in theirs.values())
                right = next((made for each in others if (made := curve("the reference", each, "theirs"))), None)
                return [plain, yours, *([right] if right else [])]
        return []

    def code(self, check: CheckRow) -> list[tuple[int, str, bool]]:
        """The student's lines around the one a check names, as far as they are known: number, text, if it is it."""
        exercise = check.id.partition("::")[0]
        timeline = _timeline(self.record, exercise, check.function)
        if timeline is None or check.line is None or self.record is None:
            return []
        shift = 0
        ran = self.record.files.get(check.file or "")
        if check.cell is not None:
            # A timeline counts the lines of a notebook through; the check counts in its cell.
            if ran is None or not check.cell <= len(ran.cells):
                return []
            shift = ran.cells[check.cell - 1] - 1
        wanted = check.line + shift
        if wanted not in timeline.lines:
            return []
        near = [number for number in sorted(timeline.lines) if wanted - 3 <= number <= wanted + 3 and number > shift]
        # Deep in a loop the indentation takes more room than the code; what one line has more than another stays.
        texts = textwrap.dedent("\n".join(timeline.lines[number].expandtabs(4) for number in near)).split("\n")
        if len(texts) != len(near):  # a stranger's line with a line break in it
            return []
        return [(number - shift, text, number == wanted) for number, text in zip(near, texts, strict=True)]


class Archive:
    """The records that lie beside a file of results."""

    def __init__(self, results: Path, reference: str) -> None:
        self._store = Store(results.parent)
        self.reference = self._store.record(reference) if reference else None

    def known(self, key: str) -> Known:
        return Known(self._store.record(key) if key else None, self.reference)


def _timeline(record: Record | None, exercise: str, function: str) -> Timeline | None:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return getattr(seen, "timeline", None)


def _facts(record: Record | None, exercise: str, function: str) -> Mapping[str, Mapping[str, Any]]:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return {name: each.facts for name, each in seen.evidence.observations.items()} if seen is not None else {}


def _race(record: Record | None, exercise: str, function: str) -> Race | None:
    """The race of a function, if it has one whose times can be drawn."""
    races = (as_struct(facts, Race) for facts in _facts(record, exercise, function).values())
    return next((race for race in races if race and _drawable(race.loop) and _drawable(race.student)), None)


def _within(facts: Any, key: str) -> Any:
    return facts.get(key) if isinstance(facts, Mapping) else None


def _number(facts: Any, key: str) -> float | None:
    """A number that can be drawn."""
    value = _within(facts, key)
    return float(value) if _drawable(value) else None


def _drawable(value: Any) -> bool:
    """Whether it is a number larger than 0 that fits in a picture."""
    return type(value) in (int, float) and math.isfinite(value) and 0 < value < 1e15


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
    read = row.status is not SubmissionStatus.UNREADABLE
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
