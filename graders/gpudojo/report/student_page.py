"""The page of one student."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from markupsafe import Markup
from virtual_cuda.ledger import Timeline, same_call

from gpudojo.classes.store import Record, Store
from gpudojo.model.evidence import Modelled, as_struct
from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.report.charts import Bar, Curve, bars, curve, curves, drawable
from gpudojo.report.rendering import Person, duration, page, said_once, size
from gpudojo.report.timeline_svg import CallTotals, largest_copy, legend, scaled_svg, timeline_svg, totals

Says = Callable[[str], str]
RACERS: Final = (("the loop", "other"), ("yours", "mine"), ("the reference", "theirs"))
NO_PICTURES: Final = "This evidence has no timeline of the reference on the public seed."
UNKNOWN_CALL: Final = "This run did not record which call this is, so it cannot be compared with the reference's."
NOTHING_THERE: Final = "The reference has no timeline for this call: it hardly used a device, or did not make the call."
WITHOUT: Final = "all activations stored"


@dataclass(frozen=True)
class TimelinePair:
    """The timeline of a student's call and of the same call of the reference, or why that is missing."""

    mine: Timeline | None
    theirs: Timeline | None = None
    missing: str = ""


@dataclass(frozen=True)
class SubmissionRecords:
    """The record of one submission, if there is one, and that of the reference in the same run."""

    record: Record | None
    reference: Record | None

    def timelines(self, exercise: str, function: str) -> TimelinePair:
        """The timelines of the student's busiest call and of the same call of the reference."""
        mine = _timeline(self.record, exercise, function)
        if mine is None:
            return TimelinePair(None)
        every = self.reference.seen if self.reference is not None else {}
        seen = every.get(f"{exercise}::{function}")
        theirs = same_call(mine, seen.timelines) if seen is not None else None
        if theirs is not None:
            return TimelinePair(mine, theirs)
        if not any(each.timelines for each in every.values()):
            return TimelinePair(mine, missing=NO_PICTURES)
        return TimelinePair(mine, missing=UNKNOWN_CALL if mine.place is None else NOTHING_THERE)

    def race(self, exercise: str, function: str) -> list[Bar]:
        """Modelled times of the loop, the student's code and the reference, if there are any."""
        found, own = (_modelled(record, exercise, function) for record in (self.record, self.reference))
        if found is None:
            return []
        # The loop beside the reference: student code may slow down the one that runs beside it.
        times = ((own or found).loop, found.student, own.student if own else None)
        return [Bar(who[0], took, duration(took), who[1]) for who, took in zip(RACERS, times, strict=True) if took]

    def peaks(self, exercise: str, function: str) -> list[Bar]:
        """Peak memory of the plain loop, the student's code and the reference, if it was measured."""
        for facts, case, theirs in self._cases(exercise, function):
            plain, peak, right = _number(facts, "stored"), _number(case, "peak"), _number(theirs, "peak")
            if plain and peak:
                shown = (("plain", plain, "other"), ("yours", peak, "mine"), ("the reference", right, "theirs"))
                return [Bar(label, value, size(value), kind) for label, value, kind in shown if value]
        return []

    def curves(self, exercise: str, function: str) -> list[Curve]:
        """Memory curves of the plain loop, the student's code and the reference; older records have none."""
        for facts, case, theirs in self._cases(exercise, function):
            plain = curve(WITHOUT, facts.get("stored_curve"), "other")
            yours = curve("yours", _within(case, "curve"), "mine")
            if plain is not None and yours is not None:
                right = curve("the reference", _within(theirs, "curve"), "theirs")
                return [plain, yours, *([right] if right else [])]
        return []

    def _cases(self, exercise: str, function: str) -> Iterator[tuple[Mapping[str, Any], Any, Any]]:
        """Each fact of the student's record, with the facts it is one of, and the reference's of the same name."""
        mine, theirs = (_facts(record, exercise, function) for record in (self.record, self.reference))
        others = {name: fact for facts in reversed(list(theirs.values())) for name, fact in facts.items()}
        for facts in mine.values():
            yield from ((facts, case, others.get(name)) for name, case in facts.items())

    def code(self, check: CheckRow, says: Says = str) -> list[tuple[int, str, bool]]:
        """The known lines around the one that a check names: number, text, whether it is that line."""
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
        # Common indentation is removed.
        texts = textwrap.dedent("\n".join(timeline.lines[number].expandtabs(4) for number in near)).split("\n")
        if len(texts) != len(near):  # a line of untrusted evidence with a line break in it
            return []
        return [(number - shift, says(text), number == wanted) for number, text in zip(near, texts, strict=True)]


class RecordStore:
    """The records beside a results file."""

    def __init__(self, results: Path, reference: str) -> None:
        self._store = Store(results.parent)
        self.reference = self._store.record(reference) if reference else None

    def known(self, key: str) -> SubmissionRecords:
        return SubmissionRecords(self._store.record(key) if key else None, self.reference)


def _timeline(record: Record | None, exercise: str, function: str) -> Timeline | None:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return getattr(seen, "timeline", None)


def _facts(record: Record | None, exercise: str, function: str) -> Mapping[str, Mapping[str, Any]]:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return {name: each.facts for name, each in seen.evidence.observations.items()} if seen is not None else {}


def _modelled(record: Record | None, exercise: str, function: str) -> Modelled | None:
    """The modelled times of a function, if it has any that can be drawn."""
    every = (as_struct(_within(f, "speed"), Modelled) for f in _facts(record, exercise, function).values())
    return next((each for each in every if each and all(t and drawable(t) for t in (each.loop, each.student))), None)


def _within(facts: Any, key: str) -> Any:
    return facts.get(key) if isinstance(facts, Mapping) else None


def _number(facts: Any, key: str) -> float | None:
    """A number that can be drawn."""
    value = _within(facts, key)
    return float(value) if drawable(value) else None


MOST_FAILED: Final = 8  # at the top of the page; the rest is below
MOST_LETTERS: Final = 160  # of what happened, at the top


@dataclass
class CheckView:
    """One check as the page shows it."""

    check: CheckRow
    anchor: str
    place: str
    code: list[tuple[int, str, bool]]
    happened: str
    expected: str
    message: str

    @property
    def in_short(self) -> str:
        """The first line of what happened."""
        first = next(iter((self.happened or self.message).splitlines()), "")
        return textwrap.shorten(first, MOST_LETTERS, placeholder=" …")


@dataclass(frozen=True)
class CallView:
    """The busiest call of a function, beside the reference's."""

    timeline: Timeline
    missing: str  # why there is no timeline of the reference
    mine: Markup
    theirs: Markup
    own: CallTotals
    others: CallTotals | None
    legend: list[tuple[str, str, str]]
    open: bool  # unfolded: it waits more often than the reference, or a check failed
    scaled: Markup  # to scale, modelled


@dataclass
class FunctionView:
    """One function of an exercise."""

    name: str
    points: float
    worth: float
    checks_shown: list[CheckView] = field(default_factory=list)
    call: CallView | None = None
    race: Markup = field(default_factory=Markup)
    peaks: Markup = field(default_factory=Markup)
    curves: Markup = field(default_factory=Markup)
    curved: list[Curve] = field(default_factory=list)

    @property
    def stub(self) -> bool:
        return all(each.check.outcome is Outcome.TODO for each in self.checks_shown)

    @property
    def passed(self) -> bool:
        return all(each.check.outcome is Outcome.PASSED for each in self.checks_shown)


def student_page(row: SubmissionRow, person: Person, header: ClassResults, known: SubmissionRecords, home: bool) -> str:
    """The page's text; with `home`, it leads back to the class."""
    # Where nothing could be read, all checks failed for the one reason at the top.
    read = row.status is not SubmissionStatus.UNREADABLE
    exercises = [
        (exercise, _parts(exercise.exercise, exercise.checks, person, known) if read else [])
        for exercise in row.exercises
    ]
    every = [view for _, parts in exercises for part in parts for view in part.checks_shown]
    # Failures with a line in the student's file come first.
    failed = [view for view in every if view.check.outcome is Outcome.FAILED]
    failed.sort(key=lambda view: view.check.line is None)
    outcomes = Counter(view.check.outcome for view in every)
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
        reason=said_once(row.status.value, person.says(row.reason)) if row.reason else "",
        output="" if person.anonymous else row.output,
    )


def _parts(exercise: str, checks: list[CheckRow], person: Person, known: SubmissionRecords) -> list[FunctionView]:
    parts: dict[str, FunctionView] = {}
    failed = {check.function for check in checks if check.outcome is Outcome.FAILED}
    for check in checks:
        part = parts.get(check.function)
        if part is None:
            part = parts[check.function] = FunctionView(check.function, 0.0, 0.0)
            part.call = _call(exercise, check.function, check.function in failed, person.says, known)
            if race := known.race(exercise, check.function):
                part.race = bars(f"How long {check.function} takes, modelled", race)
            part.curved = known.curves(exercise, check.function)
            if part.curved:
                part.curves = curves(f"Memory of {check.function}", part.curved)
            elif peaks := known.peaks(exercise, check.function):
                part.peaks = bars(f"Peak memory of {check.function}", peaks)
        part.points, part.worth = part.points + check.points, part.worth + check.max_points
        part.checks_shown.append(
            CheckView(
                check,
                "at-" + check.id.replace("::", "-"),
                place(check, person),
                known.code(check, person.says) if check.outcome is Outcome.FAILED else [],
                person.says(check.happened),
                person.says(check.expected),
                person.says(check.message).removeprefix(f"{check.outcome.value}: "),
            )
        )
    for part in parts.values():
        # Why checks are to do or blocked is said at the first of them.
        for one, other in reversed(list(itertools.pairwise(part.checks_shown))):
            if other.message == one.message and other.check.outcome is one.check.outcome is not Outcome.FAILED:
                other.message = ""
    return list(parts.values())


def place(check: CheckRow, person: Person) -> str:
    """Where a check points to: "line 14 of 04_loop.py", "line 3 of cell 5 of day8.ipynb"."""
    if check.line is None:
        return ""
    file = check.file or ""
    if person.anonymous:  # students put their names into names of files
        file = f"the {'notebook' if PurePosixPath(file).suffix == '.ipynb' else 'file'}" if file else ""
    cell = f" of cell {check.cell}" if check.cell is not None else ""
    return f"line {check.line}{cell}" + (f" of {file}" if file else "")


def _call(exercise: str, function: str, failed: bool, says: Says, known: SubmissionRecords) -> CallView | None:
    beside = known.timelines(exercise, function)
    mine, theirs = beside.mine, beside.theirs
    if mine is None:
        return None
    highest = max(mine.peak_bytes, theirs.peak_bytes if theirs is not None else 0)
    widest = largest_copy(mine, theirs)
    own, others, reference = totals(mine), None, Markup("")
    if theirs is not None:
        others = totals(theirs)
        reference = timeline_svg(theirs, f"What the reference's {function} did", highest, widest, code=False)
    drawn = timeline_svg(mine, f"What your {function} did", highest, widest, says)
    opened = failed or (others is not None and own.waits > others.waits)
    lanes = (
        scaled_svg(mine.scaled, f"What your {function} would do, to scale") if mine.scaled is not None else Markup("")
    )
    return CallView(mine, beside.missing, drawn, reference, own, others, legend(mine, theirs), opened, lanes)
