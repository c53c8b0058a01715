"""What does a student see? Points, every check with its reason, and what the code did beside what the reference did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from markupsafe import Markup

from graders.report.charts import bars
from graders.report.curves import Curve, curves
from graders.report.evidence import Known
from graders.report.people import Person
from graders.report.picture import Sums, largest_copy, picture, sums
from graders.report.templating import page
from graders.report.texts import counted
from graders.results import CheckRow, ClassResults, Outcome, SubmissionRow

Says = Callable[[str], str]


@dataclass(frozen=True)
class Judgement:
    """One check as it is shown."""

    check: CheckRow
    place: str
    code: list[tuple[int, str, bool]]
    happened: str
    expected: str
    message: str


@dataclass(frozen=True)
class Call:
    """What the busiest call of a function did, and the reference's."""

    scenario: str
    place: int | None
    mine: Markup
    theirs: Markup
    sums: Sums
    their_sums: Sums | None
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


def student_page(row: SubmissionRow, person: Person, header: ClassResults, known: Known, home: bool) -> str:
    """The page's text; with `home`, it leads back to the class."""
    exercises = [(exercise, _parts(exercise.exercise, exercise.checks, person, known)) for exercise in row.exercises]
    drawn = any(part.call for _, parts in exercises for part in parts)
    return page(
        "student.html",
        "student.js",
        row=row,
        person=person,
        header=header,
        exercises=exercises,
        drawn=drawn,
        recorded=known.record is not None,
        home=home,
        reason=person.says(row.reason),
        output="" if person.anonymous else row.output,
        outcomes=[outcome.value for outcome in Outcome],
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
    return list(parts.values())


def _judgement(check: CheckRow, person: Person, known: Known) -> Judgement:
    failed = check.outcome is Outcome.FAILED
    return Judgement(
        check,
        place(check, person),
        [(number, person.says(text), marked) for number, text, marked in known.code(check)] if failed else [],
        person.says(check.happened),
        person.says(check.expected),
        person.says(check.message),
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
        own,
        others,
        beside.missing,
        mine.left_out,
        [(line, says(mine.lines.get(line, "").strip()), count) for line, count in sorted(mine.waits.items())],
        _headline(own, others),
        failed or (others is not None and own.walls > others.walls),
    )


def _headline(mine: Sums, theirs: Sums | None) -> str:
    walls = "Yours has " + (counted(mine.walls, "wall") if mine.walls else "no wall")
    if theirs is None:
        return f"{walls}."
    return f"{walls}, the reference {theirs.walls or 'none'}."
