"""The page of one student."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from markupsafe import Markup
from virtual_cuda.ledger import Timeline

from gpudojo.model.results import (
    BY_HAND,
    CheckRow,
    ClassResults,
    ExerciseRow,
    Outcome,
    SubmissionRow,
)
from gpudojo.platforms._texts import describe_lateness
from gpudojo.report.charts import Curve, draw_bars, draw_curves
from gpudojo.report.people import Person
from gpudojo.report.records import ShownSource, SourceLine, SubmissionRecords
from gpudojo.report.rendering import render_page, status_and_reason
from gpudojo.report.timeline_svg import (
    CallTotals,
    LegendEntry,
    largest_copy,
    legend_of,
    scaled_svg,
    timeline_svg,
    totals_of,
)

MOST_LINES: Final = 4_000  # of a submission's source
MOST_FAILED: Final = 8  # at the top of the page; the rest is below
MOST_LETTERS: Final = 160  # of what happened, at the top


@dataclass
class CheckView:
    """One check as the page shows it."""

    check: CheckRow
    anchor: str
    place: str
    at: str  # the anchor of its line in the source below, if that is shown
    code: list[SourceLine]
    happened: str
    expected: str
    message: str

    @property
    def in_short(self) -> str:
        """The first line of what happened, or else of the message, cut where it is long."""
        text = self.happened or self.message
        lines = text.splitlines()
        if not lines:
            return ""
        return textwrap.shorten(lines[0], MOST_LETTERS, placeholder=" …")


@dataclass(frozen=True)
class CallView:
    """The busiest call of a function, beside the reference's."""

    timeline: Timeline
    missing: str  # why there is no timeline of the reference
    mine: Markup
    theirs: Markup
    own: CallTotals
    others: CallTotals | None
    legend: list[LegendEntry]
    open: bool  # unfolded: it waits more often than the reference, or a check failed
    scaled: Markup  # to scale, modelled


@dataclass
class FunctionView:
    """One function of an exercise."""

    name: str
    is_decided: bool = False  # a person gave the points of its exercise: nothing is to fix
    points: float = 0.0
    worth: float = 0.0
    checks_shown: list[CheckView] = field(default_factory=list)
    call: CallView | None = None
    race: Markup = field(default_factory=Markup)
    peaks: Markup = field(default_factory=Markup)
    curves: Markup = field(default_factory=Markup)
    curved: list[Curve] = field(default_factory=list)

    @property
    def stub(self) -> bool:
        """True if it is still to be written."""
        return all(each.check.outcome is Outcome.TODO for each in self.checks_shown)

    @property
    def absent(self) -> bool:
        """True if it was not handed in."""
        return any(each.check.absent for each in self.checks_shown)

    @property
    def is_unjudged(self) -> bool:
        """True if points are missing of checks that wait for others, and there is nothing to fix.

        So it is where a person gave points for the check that they wait for.
        """
        if self.absent or self.to_fix or not self.by_hand:
            return False
        return any(view.check.waits_in_vain for view in self.checks_shown)

    @property
    def to_fix(self) -> list[CheckView]:
        """Checks that failed; none, where it was not handed in or a person gave the points."""
        if self.absent or self.is_decided:
            return []
        wrong = []
        for view in self.checks_shown:
            if view.check.to_fix or view.check.outcome is Outcome.ERROR:
                wrong.append(view)
        return wrong

    @property
    def by_hand(self) -> list[CheckView]:
        """Checks for which a person gave points or a comment, and that are not to be fixed."""
        to_fix = self.to_fix
        views = []
        for view in self.checks_shown:
            told = view.check.override is not None or view.check.remark
            if told and view not in to_fix:
                views.append(view)
        return views

    @property
    def folded(self) -> list[CheckView]:
        """Checks that passed or wait for others; all, where there is nothing to check."""
        shown = self.to_fix + self.by_hand
        return [view for view in self.checks_shown if view not in shown]

    @property
    def folded_counts(self) -> str:
        """How many folded checks have which outcome: "3 passed, 2 blocked".

        Where nothing was handed in, why the check has no result.
        """
        for view in self.checks_shown:
            if view.check.absent:
                return view.in_short
        counts = count_outcomes(self.folded)
        parts = [f"{count} {name}" for name, count in counts]
        return ", ".join(parts)


class SourceLineView(NamedTuple):
    """A line of a file, and the checks that point at it."""

    number: int
    text: str
    anchor: str
    marks: list[CheckView]


class CellView(NamedTuple):
    """A code cell of a notebook; without a number, a whole file."""

    number: int | None
    lines: list[SourceLineView]


@dataclass(frozen=True)
class SourceView:
    """One file of a submission."""

    name: str
    cells: list[CellView]
    note: str = ""  # where its functions are defined, too

    @property
    def marks(self) -> int:
        """How many lines have a check that points at them."""
        count = 0
        for cell in self.cells:
            for line in cell.lines:
                count += bool(line.marks)
        return count


@dataclass(frozen=True)
class Neighbours:
    """Where a page of a report leads to: the class, and the students before and after."""

    before: Person | None = None
    after: Person | None = None


def count_outcomes(views: Iterable[CheckView]) -> list[tuple[str, int]]:
    """Return how many checks have each outcome that occurs, as people see it."""
    counts = dict.fromkeys([*map(str, Outcome), BY_HAND], 0)
    for view in views:
        counts[view.check.shown_outcome] += 1
    return [(outcome, count) for outcome, count in counts.items() if count]


def student_page(
    row: SubmissionRow,
    person: Person,
    header: ClassResults,
    records: SubmissionRecords,
    neighbours: Neighbours | None = None,
) -> str:
    """Return the text of a student's page, HTML.

    Without neighbours it has no links to other pages, and can be mailed. Raises OSError where a
    file of ours cannot be read.
    """
    # Where nothing was judged, all checks failed for the one reason at the top.
    maker = _ViewMaker(person, records)
    exercises = []
    functions: list[tuple[str, FunctionView]] = []  # with the name of the exercise
    decided = set()  # exercises for which a person gave points: nothing is to fix there
    for exercise in row.exercises:
        views = []
        if row.was_judged:
            views = maker.functions_of(exercise)
        exercises.append((exercise, views))
        functions += [(exercise.exercise, view) for view in views]
        if exercise.override is not None:
            decided.add(exercise.exercise)

    stubs = []
    absent = []
    unjudged = []
    checks: list[CheckView] = []
    for name_of_exercise, function in functions:
        if name_of_exercise in decided:
            continue
        if function.stub:
            stubs.append((name_of_exercise, function.name))
        if function.is_unjudged:
            unjudged.append((name_of_exercise, function.name))
        if function.absent:
            absent.append((name_of_exercise, function.name))
        else:
            checks += function.checks_shown
    # Failures with a line in the student's file come first.
    failed = [view for view in checks if view.check.to_fix]
    failed.sort(key=lambda view: view.check.line is None)
    sources = []
    if row.was_judged:
        sources = maker.sources_of(row, failed)
    reason = ""
    if row.reason:
        reason_shown = person.hide_names(row.reason)
        reason = status_and_reason(row.status.value, reason_shown)

    if person.anonymous:
        output = ""
    else:
        output = row.output_for_student
    return render_page(
        "student.html",
        "student.js",
        row=row,
        person=person,
        header=header,
        exercises=exercises,
        judged=row.was_judged,
        failed=failed[:MOST_FAILED],
        more=len(failed[MOST_FAILED:]),
        counts=count_outcomes(checks),
        stubs=stubs,
        absent=absent,
        unjudged=unjudged,
        drawn=any(function.call for _, function in functions),
        recorded=records.record is not None,
        neighbours=neighbours,
        late=describe_lateness(row),
        sources=sources,
        reason=reason,
        output=output,
    )


class _ViewMaker:
    """Makes what the page shows of one submission."""

    def __init__(self, person: Person, records: SubmissionRecords) -> None:
        self.person = person
        self.records = records
        self.files = list(records.texts)  # in anchors, a file is its place in this list

    def functions_of(self, exercise: ExerciseRow) -> list[FunctionView]:
        """Return the functions of an exercise, in the order of its checks."""
        checks_by_function: dict[str, list[CheckRow]] = {}
        for check in exercise.checks:
            checks_by_function.setdefault(check.function, []).append(check)
        views = []
        for function, checks in checks_by_function.items():
            views.append(self._function_view(exercise, function, checks))
        return views

    def _function_view(
        self, exercise: ExerciseRow, function: str, checks: list[CheckRow]
    ) -> FunctionView:
        """Return a function with its checks, its busiest call and its charts."""
        view = FunctionView(function, is_decided=exercise.override is not None)
        for check in checks:
            view.points += check.points
            view.worth += check.max_points
            view.checks_shown.append(self._check_view(check))
        _explain_waiting_for_a_person(view.checks_shown)
        _say_reasons_once(view.checks_shown)

        key = exercise.exercise
        view.call = self._call_view(key, function, has_failed=bool(view.to_fix))
        race = self.records.race_bars(key, function)
        if race:
            view.race = draw_bars(f"How long {function} takes, modelled", race)
        view.curved = self.records.memory_curves(key, function)
        peaks = self.records.peak_bars(key, function)
        if view.curved:
            view.curves = draw_curves(f"Memory of {function}", view.curved)
        elif peaks:
            view.peaks = draw_bars(f"Peak memory of {function}", peaks)
        return view

    def _check_view(self, check: CheckRow) -> CheckView:
        """Return a check with its texts, in which nothing identifies an anonymous student."""
        hide_names = self.person.hide_names
        code = []
        if check.outcome is Outcome.FAILED:
            code = self.records.code_around(check, hide_names)
        return CheckView(
            check,
            anchor="at-" + check.id.replace("::", "-"),
            place=describe_place(check, self.person),
            at=self._anchor_of_line(check),
            code=code,
            happened=hide_names(check.happened),
            expected=hide_names(check.expected),
            message=hide_names(check.message).removeprefix(f"{check.outcome.value}: "),
        )

    def _call_view(self, exercise: str, function: str, has_failed: bool) -> CallView | None:
        """Return the busiest call of a function; None where it has no timeline.

        It is unfolded where a check of it is to fix.
        """
        pair = self.records.timeline_pair(exercise, function)
        mine = pair.mine
        theirs = pair.theirs
        if mine is None:
            return None
        # Both pictures have the same scale.
        highest = mine.peak_bytes
        if theirs is not None:
            highest = max(highest, theirs.peak_bytes)
        widest = largest_copy(mine, theirs)
        own = totals_of(mine)
        others = None
        drawn_theirs = Markup("")
        if theirs is not None:
            others = totals_of(theirs)
            title = f"What the reference's {function} did"
            drawn_theirs = timeline_svg(theirs, title, highest, widest, code=False)
        title = f"What your {function} did"
        drawn_mine = timeline_svg(mine, title, highest, widest, self.person.hide_names)
        scaled = Markup("")
        if mine.scaled is not None:
            scaled = scaled_svg(mine.scaled, f"What your {function} would do, to scale")
        waits_more = others is not None and own.waits > others.waits
        return CallView(
            mine,
            pair.missing,
            drawn_mine,
            drawn_theirs,
            own,
            others,
            legend_of(mine, theirs),
            open=has_failed or waits_more,
            scaled=scaled,
        )

    def sources_of(self, row: SubmissionRow, failed: list[CheckView]) -> list[SourceView]:
        """Return the files that were graded, as many as fit on a page.

        The lines of `failed` checks are marked.
        """
        marks: dict[str, list[CheckView]] = {}  # by the anchor of their line
        for view in failed:
            if view.at:
                marks.setdefault(view.at, []).append(view)
        files = dict.fromkeys(definition.file for definition in row.definitions)  # each once
        sources: list[SourceView] = []
        lines_left = MOST_LINES
        for file in files:
            cells = []
            for text in self.records.texts.get(file, []):
                lines_left -= len(text.lines)
                lines = self._lines_of_cell(file, text, marks)
                cells.append(CellView(text.cell, lines))
            if not cells or lines_left < 0:
                continue
            name = file
            note = _note_about_file(row, file)
            if self.person.anonymous:
                name = f"file {len(sources) + 1}"
                note = ""
            sources.append(SourceView(name, cells, note))
        return sources

    def _lines_of_cell(
        self, file: str, source: ShownSource, marks: dict[str, list[CheckView]]
    ) -> list[SourceLineView]:
        """Return the lines of a cell; `marks` are the checks that point at lines, by anchor."""
        lines = []
        for number, line in enumerate(source.lines, 1):
            anchor = self._anchor_of(file, source.cell, number)
            text = self.person.hide_names(line)
            checks = marks.get(anchor, [])
            lines.append(SourceLineView(number, text, anchor, checks))
        return lines

    def _anchor_of(self, file: str, cell: int | None, line: int) -> str:
        """Return the id of a line on the page; without a cell, the line of a whole file."""
        place = self.files.index(file)
        return f"line-{place}-{cell or 0}-{line}"

    def _anchor_of_line(self, check: CheckRow) -> str:
        """Return where the line of a check is in the source; empty where it is not shown."""
        if check.line is None or check.file not in self.files:
            return ""
        return self._anchor_of(check.file, check.cell, check.line)


def _explain_waiting_for_a_person(views: list[CheckView]) -> None:
    """Say of blocked checks that one they wait for was decided by hand. The views are changed."""
    by_hand = {view.check.id.rpartition("::")[2] for view in views if view.check.override}
    for view in views:
        check = view.check
        if check.outcome is Outcome.BLOCKED and check.blocked_by in by_hand:
            view.message = (
                f"It was not judged: it waits for `{check.blocked_by}`, "
                "for which a person gave points."
            )


def _say_reasons_once(views: list[CheckView]) -> None:
    """Empty the message of each check whose outcome and message are those of the one before it.

    Failed checks keep theirs. The views are changed.
    """
    last_outcome = None
    last_message = None
    for view in views:
        outcome = view.check.outcome
        message = view.message
        is_repeated = outcome is last_outcome and message == last_message
        if is_repeated and outcome is not Outcome.FAILED:
            view.message = ""
        last_outcome = outcome
        last_message = message


def describe_place(check: CheckRow, person: Person) -> str:
    """Return where a check points to: "line 3 of cell 5 of day8.ipynb"; empty without a line.

    Of a line that is not the mistake itself it also says what it is: "returned in line 3".
    """
    if check.line is None:
        return ""
    text = f"{check.line_role.before}line {check.line}"
    if check.cell is not None:
        text += f" of cell {check.cell}"
    if not check.file:
        return text
    if not person.anonymous:
        return f"{text} of {check.file}"
    # Students put their names into names of files.
    if PurePosixPath(check.file).suffix == ".ipynb":
        return f"{text} of the notebook"
    return f"{text} of the file"


def _note_about_file(row: SubmissionRow, file: str) -> str:
    """Return where else functions are defined that were graded in this file; empty for nowhere."""
    notes: dict[str, str] = {}  # the first function with each
    for definition in row.definitions:
        if definition.file == file and definition.note:
            notes.setdefault(definition.note, definition.function)
    return " ".join(f"{function}: {note}" for note, function in notes.items())
