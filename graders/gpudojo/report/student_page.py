"""The page of one student."""

from __future__ import annotations

import contextlib
import functools
import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from virtual_cuda.ledger import Timeline, same_call

from gpudojo.classes.store import Record, Store
from gpudojo.grading.load import NotANotebook, Unparsable
from gpudojo.model.evidence import Modelled, as_struct
from gpudojo.model.results import CheckRow, ClassResults, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.platforms._texts import describe_lateness
from gpudojo.report.rendering import (
    Bar,
    Curve,
    Person,
    bars,
    curve,
    curves,
    drawable,
    duration,
    page,
    said_once,
    size,
)
from gpudojo.report.timeline_svg import (
    CallTotals,
    largest_copy,
    legend,
    scaled_svg,
    timeline_svg,
    totals,
)
from gpudojo.submissions.entries import SOURCES, suffix
from gpudojo.submissions.reading import parts as source_parts

Says = Callable[[str], str]
RACERS: Final = (("the loop", "other"), ("yours", "mine"), ("the reference", "theirs"))
NO_PICTURES: Final = "This evidence has no timeline of the reference on the public seed."
UNKNOWN_CALL: Final = (
    "This run did not record which call this is, so it cannot be compared with the reference's."
)
NOTHING_THERE: Final = "The reference has no timeline for this call: it hardly used a device, or did not make the call."
WITHOUT: Final = "all activations stored"


@dataclass(frozen=True)
class TimelinePair:
    """The timeline of a student's call and of the same call of the reference, or why that is missing."""

    mine: Timeline | None
    theirs: Timeline | None = None
    missing: str = ""


class SourceText(NamedTuple):
    """The lines of a file, or of a code cell of a notebook."""

    cell: int | None
    lines: list[str]


@dataclass(frozen=True)
class SubmissionRecords:
    """The record of one submission, if there is one, that of the reference in the same run, and the source."""

    record: Record | None
    reference: Record | None
    sources: Mapping[str, bytes] = field(default_factory=dict)  # what was handed in, by path

    @functools.cached_property
    def texts(self) -> dict[str, list[SourceText]]:
        """The text of each file, or of each code cell; without files that are long or cannot be read."""
        found = {}
        for path, data in self.sources.items():
            with contextlib.suppress(Unparsable, NotANotebook, RecursionError, MemoryError):
                if len(data) <= LARGEST and suffix(path, SOURCES):
                    found[path] = [
                        SourceText(cell, text.splitlines())
                        for text, _, cell in source_parts(path, data)
                    ]
        return found

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
        found, own = (
            _modelled(record, exercise, function) for record in (self.record, self.reference)
        )
        if found is None or not (
            loop := (own or found).loop
        ):  # which is measured beside the reference
            return []
        times = (loop, found.student, own.student if own else None)
        return [
            Bar(who[0], took, duration(took), who[1])
            for who, took in zip(RACERS, times, strict=True)
            if took
        ]

    def peaks(self, exercise: str, function: str) -> list[Bar]:
        """Peak memory of the plain loop, the student's code and the reference, if it was measured."""
        for facts, case, theirs in self._cases(exercise, function):
            plain = _number(facts, "stored")
            peak = _number(case, "peak")
            right = _number(theirs, "peak")
            if plain and peak:
                shown = (
                    ("plain", plain, "other"),
                    ("yours", peak, "mine"),
                    ("the reference", right, "theirs"),
                )
                return [
                    Bar(label, value, size(value), kind) for label, value, kind in shown if value
                ]
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
        """Each fact of the student's record, with the facts it is one of, and the reference's of the same name.

        Among the facts are those that only the reference's record has, such as what a plain loop takes.
        """
        mine, theirs = (
            _facts(record, exercise, function) for record in (self.record, self.reference)
        )
        others = {
            name: fact for facts in reversed(list(theirs.values())) for name, fact in facts.items()
        }
        for own in mine.values():
            facts = {name: others.get(name) if fact is None else fact for name, fact in own.items()}
            yield from ((facts, case, others.get(name)) for name, case in own.items())

    def code(self, check: CheckRow, says: Says = str) -> list[tuple[int, str, bool]]:
        """The lines around the one that a check names: number, text, whether it is that line."""
        own = next(
            (
                each.lines
                for each in self.texts.get(check.file or "", ())
                if each.cell == check.cell
            ),
            None,
        )
        known = dict(enumerate(own, 1)) if own else self._drawn(check)
        if check.line is None or check.line not in known:
            return []
        near = [number for number in sorted(known) if check.line - 3 <= number <= check.line + 3]
        # Common indentation is removed.
        texts = textwrap.dedent("\n".join(known[number].expandtabs(4) for number in near)).split(
            "\n"
        )
        if len(texts) != len(near):  # a line of untrusted evidence with a line break in it
            return []
        return [
            (number, says(text), number == check.line)
            for number, text in zip(near, texts, strict=True)
        ]

    def _drawn(self, check: CheckRow) -> Mapping[int, str]:
        """The lines that a timeline knows, where the source was not kept."""
        timeline = _timeline(self.record, check.id.partition("::")[0], check.function)
        if timeline is None or self.record is None:
            return {}
        if check.cell is None:
            return timeline.lines
        # A timeline counts the lines of a notebook through; the check counts in its cell.
        ran = self.record.files.get(check.file or "")
        if ran is None or not check.cell <= len(ran.cells):
            return {}
        shift = ran.cells[check.cell - 1] - 1
        return {number - shift: text for number, text in timeline.lines.items() if number > shift}


class RecordStore:
    """The records beside a results file."""

    def __init__(self, results: Path, reference: str) -> None:
        self._store = Store(results.parent)
        self.reference = self._store.record(reference) if reference else None
        self.given = (
            self._store.sources(reference) if reference else {}
        )  # the reference's files, with the given code

    def known(self, row: SubmissionRow) -> SubmissionRecords:
        record = self._store.record(row.record) if row.record else None
        # With seeds per student, each has a reference of its own.
        reference = self._store.record(row.reference) if row.reference else self.reference
        return SubmissionRecords(record, reference, self.sources(row))

    def sources(self, row: SubmissionRow) -> dict[str, bytes]:
        """What was handed in, by path; empty where it was not kept."""
        return self._store.sources(row.digest) if row.digest else {}


def _timeline(record: Record | None, exercise: str, function: str) -> Timeline | None:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return getattr(seen, "timeline", None)


def _facts(record: Record | None, exercise: str, function: str) -> Mapping[str, Mapping[str, Any]]:
    seen = record.seen.get(f"{exercise}::{function}") if record is not None else None
    return (
        {name: each.facts for name, each in seen.evidence.observations.items()}
        if seen is not None
        else {}
    )


def _modelled(record: Record | None, exercise: str, function: str) -> Modelled | None:
    """The modelled times of a function, if it has any that can be drawn."""
    every = (
        as_struct(_within(f, "speed"), Modelled)
        for f in _facts(record, exercise, function).values()
    )
    return next(
        (
            each
            for each in every
            if each and each.student and all(map(drawable, (each.loop, each.student)))
        ),
        None,
    )


def _within(facts: Any, key: str) -> Any:
    return facts.get(key) if isinstance(facts, Mapping) else None


def _number(facts: Any, key: str) -> float | None:
    """A number that can be drawn."""
    value = _within(facts, key)
    return float(value) if drawable(value) else None


LARGEST: Final = 400_000  # bytes of a file that is shown
MOST_LINES: Final = 4_000  # of a submission
MOST_FAILED: Final = 8  # at the top of the page; the rest is below
MOST_LETTERS: Final = 160  # of what happened, at the top


@dataclass
class CheckView:
    """One check as the page shows it."""

    check: CheckRow
    anchor: str
    place: str
    at: str  # the anchor of its line in the source below, if that is shown
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
    def absent(self) -> bool:
        """Whether it was not handed in."""
        return any(each.check.absent for each in self.checks_shown)

    @property
    def to_fix(self) -> list[CheckView]:
        wrong = (Outcome.FAILED, Outcome.ERROR)
        return (
            []
            if self.absent
            else [each for each in self.checks_shown if each.check.outcome in wrong]
        )

    @property
    def folded(self) -> list[CheckView]:
        """Checks that passed or wait for others; all, where there is nothing to check."""
        return [each for each in self.checks_shown if each not in self.to_fix]

    @property
    def folded_counts(self) -> str:
        """3 passed, 2 blocked."""
        if absent := next((each for each in self.checks_shown if each.check.absent), None):
            return absent.in_short
        counts = Counter(each.check.outcome for each in self.folded)
        return ", ".join(
            f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]
        )


@dataclass(frozen=True)
class SourceView:
    """One file of a submission: for each line its number, text, anchor, and the checks that point at it."""

    name: str
    cells: list[tuple[int | None, list[tuple[int, str, str, list[CheckView]]]]]

    @property
    def marks(self) -> int:
        return sum(bool(marks) for _, lines in self.cells for *_, marks in lines)


@dataclass(frozen=True)
class Neighbours:
    """Where a page of a report leads to: the class, and the students before and after."""

    before: Person | None = None
    after: Person | None = None


def student_page(
    row: SubmissionRow,
    person: Person,
    header: ClassResults,
    known: SubmissionRecords,
    neighbours: Neighbours | None = None,
) -> str:
    """The page's text; without neighbours it leads nowhere, and can be mailed."""
    # Where nothing could be read, all checks failed for the one reason at the top.
    read = row.status not in (SubmissionStatus.UNREADABLE, SubmissionStatus.ABSENT)
    exercises = [
        (exercise, _parts(exercise.exercise, exercise.checks, person, known) if read else [])
        for exercise in row.exercises
    ]
    functions = [(exercise.exercise, part) for exercise, parts in exercises for part in parts]
    every = [view for _, part in functions for view in part.checks_shown if not part.absent]
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
        stubs=[(exercise, part.name) for exercise, part in functions if part.stub],
        absent=[(exercise, part.name) for exercise, part in functions if part.absent],
        drawn=any(part.call for _, part in functions),
        recorded=known.record is not None,
        neighbours=neighbours,
        late=describe_lateness(row),
        sources=_sources(row, every, person, known) if read else [],
        reason=said_once(row.status.value, person.says(row.reason)) if row.reason else "",
        output="" if person.anonymous else row.output,
    )


def _parts(
    exercise: str, checks: list[CheckRow], person: Person, known: SubmissionRecords
) -> list[FunctionView]:
    parts: dict[str, FunctionView] = {}
    failed = {check.function for check in checks if check.outcome is Outcome.FAILED}
    for check in checks:
        part = parts.get(check.function)
        if part is None:
            part = parts[check.function] = FunctionView(check.function, 0.0, 0.0)
            part.call = _call(
                exercise, check.function, check.function in failed, person.says, known
            )
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
                _line_anchor(check, known),
                known.code(check, person.says) if check.outcome is Outcome.FAILED else [],
                person.says(check.happened),
                person.says(check.expected),
                person.says(check.message).removeprefix(f"{check.outcome.value}: "),
            )
        )
    for part in parts.values():
        # Why checks are to do or blocked is said at the first of them.
        for one, other in reversed(list(itertools.pairwise(part.checks_shown))):
            if (
                other.message == one.message
                and other.check.outcome is one.check.outcome is not Outcome.FAILED
            ):
                other.message = ""
    return list(parts.values())


def _sources(
    row: SubmissionRow, views: list[CheckView], person: Person, known: SubmissionRecords
) -> list[SourceView]:
    """The files that were graded, as many as fit on a page."""
    marks: dict[str, list[CheckView]] = {}
    for view in views:
        if view.check.outcome is Outcome.FAILED and view.at:
            marks.setdefault(view.at, []).append(view)
    shown: list[SourceView] = []
    left = MOST_LINES
    for file in dict.fromkeys(each.file for each in row.definitions):
        cells = known.texts.get(file, [])
        left -= sum(len(each.lines) for each in cells)
        if not cells or left < 0:
            continue
        name = f"file {len(shown) + 1}" if person.anonymous else file
        place = list(known.texts).index(file)
        numbered = [
            (each.cell, [(n, person.says(text), at := _anchor(place, each.cell, n), marks.get(at, []))
                         for n, text in enumerate(each.lines, 1)])
            for each in cells
        ]  # fmt: skip
        shown.append(SourceView(name, numbered))
    return shown


def _anchor(file: int, cell: int | None, line: int) -> str:
    return f"line-{file}-{cell or 0}-{line}"


def _line_anchor(check: CheckRow, known: SubmissionRecords) -> str:
    """Where the line of a check is in the source; empty where it is not shown."""
    if check.line is None or check.file not in known.texts:
        return ""
    return _anchor(list(known.texts).index(check.file), check.cell, check.line)


def place(check: CheckRow, person: Person) -> str:
    """Where a check points to: "line 14 of 04_loop.py", "line 3 of cell 5 of day8.ipynb"."""
    if check.line is None:
        return ""
    file = check.file or ""
    if person.anonymous:  # students put their names into names of files
        file = (
            f"the {'notebook' if PurePosixPath(file).suffix == '.ipynb' else 'file'}"
            if file
            else ""
        )
    cell = f" of cell {check.cell}" if check.cell is not None else ""
    return f"line {check.line}{cell}" + (f" of {file}" if file else "")


def _call(
    exercise: str, function: str, failed: bool, says: Says, known: SubmissionRecords
) -> CallView | None:
    beside = known.timelines(exercise, function)
    mine = beside.mine
    theirs = beside.theirs
    if mine is None:
        return None
    highest = max(mine.peak_bytes, theirs.peak_bytes if theirs is not None else 0)
    widest = largest_copy(mine, theirs)
    own = totals(mine)
    others = None
    reference = Markup("")
    if theirs is not None:
        others = totals(theirs)
        reference = timeline_svg(
            theirs, f"What the reference's {function} did", highest, widest, code=False
        )
    drawn = timeline_svg(mine, f"What your {function} did", highest, widest, says)
    opened = failed or (others is not None and own.waits > others.waits)
    lanes = (
        scaled_svg(mine.scaled, f"What your {function} would do, to scale")
        if mine.scaled is not None
        else Markup("")
    )
    return CallView(
        mine, beside.missing, drawn, reference, own, others, legend(mine, theirs), opened, lanes
    )
