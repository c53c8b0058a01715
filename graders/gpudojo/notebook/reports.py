"""Reports of checks in a notebook: data, plain text and HTML."""

from __future__ import annotations

import functools
import linecache
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jinja2
from markupsafe import Markup, escape
from virtual_cuda import gpu_named, ledger
from virtual_cuda.hooks import USUAL_GPU
from virtual_cuda.ledger import (
    Record,
    Timeline,
    columns_of,
    count_phrase,
    draw_timeline,
    line_rows,
    questions,
    timeline_legend,
)

from gpudojo.grading.feedback import (
    BAR_WIDTH,
    WIDTH,
    ExercisePoints,
    Part,
    headline_and_parts,
    hint_parts,
    hints_about,
    lay_out_part,
    pages_about,
    progress_bar,
)
from gpudojo.grading.watching import Busiest
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.notebook.session_functions import SessionFunction, cell_name

DONE: Final = "Everything that is defined here passes. Well done!"
STUB: Final = "still to do: fill in its cell, run it, and check again."
STOPPED: Final = (
    "Interrupted while `{name}` was checked. "
    "It has no result, and neither have the functions after it."
)
CODE_WIDTH: Final = 60  # characters of a line of code
DRAWING_WIDTH: Final = 110  # characters
MARKS: Final = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "FAILED",
    Outcome.TODO: "to do",
    Outcome.BLOCKED: "blocked",
    Outcome.ERROR: "error",
}
Timelines = tuple[Timeline, Timeline | None]  # of the student's function and of the reference


class CellLine(NamedTuple):
    """A line of code and what it did; the last row of a table has the sums."""

    number: str  # of the line; for another cell with the name of the cell
    code: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class LineTable:
    """What each line of a function did on the device, and how long a GPU would take for it."""

    headings: tuple[str, ...]
    rows: tuple[CellLine, ...]
    waits: tuple[str, ...]  # a sentence for each line at which the host waited more than once
    device: str


def line_table(busiest: Busiest, function: SessionFunction) -> LineTable | None:
    """The table of the busiest call. Returns None if it did not use a device.

    First the lines of the function's own cell, then those of other cells that did something; the
    last row has the sums. Raises OSError where our table of GPUs cannot be read.
    """
    records = [record for record in busiest.records if record.site is not None]
    spent = busiest.seconds_by_record()
    sums = ledger.totals(records, spent)
    if not any(sums):
        return None
    rows = []
    own_rows = line_rows(records, function.file, function.source, function.first, spent)
    for row in own_rows:
        rows.append(CellLine(str(row.number), row.code, row.cells))
    # Lines of other cells that did something.
    for file, line in sorted(questions.per_line(records)):
        if file == function.file:
            continue
        number = f"{cell_name(file)}:{line}".lstrip(":")
        code = linecache.getline(file, line)
        for row in line_rows(records, file, [code], line, spent):
            if any(row.cells):
                rows.append(CellLine(number, row.code, row.cells))
    rows.append(CellLine("", "total", sums))
    device = busiest.device
    if spent is not None:
        gpu = gpu_named(USUAL_GPU).label
        device = f"{device}, and how long it would take on {gpu}, modelled"
    waits = _sentences_about_waits(records, function.file)
    return LineTable(columns_of(spent), tuple(rows), tuple(waits), device)


def _sentences_about_waits(records: Sequence[Record], file: str) -> list[str]:
    """A sentence for each line of a file at which the host waited more than once."""
    sentences = []
    hot_lines = questions.hot_lines(questions.waits(records), at_least=2)
    for (file_of_line, line), count in hot_lines.items():
        if file_of_line == file:
            sentences.append(f"Line {line} made the host wait for the device {count} times.")
    return sentences


class ToldResult(NamedTuple):
    """A result with its texts."""

    result: CheckResult
    parts: tuple[Part, ...]


class Fold(NamedTuple):
    """Results of one kind, which take one line."""

    outcome: Outcome
    heading: str
    results: tuple[CheckResult, ...]


def _is_folded(result: CheckResult) -> bool:
    """True if results of this kind take one line together: what passed, and what waits for it.

    What is blocked by nothing was not judged, which is told.
    """
    if result.outcome is Outcome.BLOCKED:
        return result.blocked_by is not None
    return result.outcome is Outcome.PASSED


def _heading_of_fold(result: CheckResult) -> str:
    """What a line about several such results says after their number."""
    if result.outcome is Outcome.BLOCKED:
        return f" until `{result.blocked_by}` passes"
    return ""


@dataclass(frozen=True)
class FunctionReport:
    """The results of one function, and the texts about them."""

    name: str
    exercise: str
    title: str
    results: tuple[CheckResult, ...]
    parts: tuple[tuple[Part, ...], ...]  # the texts about each result
    hints: tuple[Part, ...] = ()
    lines: LineTable | None = None
    timelines: Timelines | None = None

    @property
    def points(self) -> float:
        """The points that were reached."""
        return sum(result.points for result in self.results)

    @property
    def most(self) -> float:
        """The points that can be reached."""
        return sum(result.max_points for result in self.results)

    @property
    def outcomes(self) -> set[Outcome]:
        """Which outcomes there are among the results."""
        return {result.outcome for result in self.results}

    @property
    def told(self) -> list[ToldResult]:
        """The results that are told one by one, with their texts: those to do something about."""
        told = []
        for result, parts in zip(self.results, self.parts, strict=True):
            if not _is_folded(result):
                told.append(ToldResult(result, parts))
        return told

    @property
    def passed(self) -> list[Fold]:
        """The checks that passed, together; empty if none did."""
        return self._fold(Outcome.PASSED)

    @property
    def blocked(self) -> list[Fold]:
        """The checks that wait for others, together by what they wait for."""
        return self._fold(Outcome.BLOCKED)

    def _fold(self, outcome: Outcome) -> list[Fold]:
        """The results of one outcome, together by their heading."""
        folds: dict[str, list[CheckResult]] = {}
        for result in self.results:
            if result.outcome is outcome and _is_folded(result):
                folds.setdefault(_heading_of_fold(result), []).append(result)
        found = []
        for heading, results in folds.items():
            count = count_phrase(len(results), "check")
            found.append(Fold(outcome, f"{count}{heading}", tuple(results)))
        return found

    @property
    def to_do(self) -> bool:
        """True if the function is still a stub."""
        return self.outcomes == {Outcome.TODO}


@dataclass(frozen=True)
class PointsTable:
    """The points of every exercise of which something is defined."""

    rows: tuple[ExercisePoints, ...]
    following: str  # what to check next, as code; empty when nothing is left

    @property
    def points(self) -> float:
        """The points that were reached."""
        return sum(row.points for row in self.rows)

    @property
    def max_points(self) -> float:
        """The points that can be reached."""
        return sum(row.max_points for row in self.rows)

    @property
    def done(self) -> bool:
        """True if every check of these exercises passes."""
        states = {row.state for row in self.rows}
        return states == {"done"}


@dataclass(frozen=True)
class CheckReport:
    """The output of one call of `check`, as text and as HTML."""

    checked: tuple[FunctionReport, ...] = ()
    table: PointsTable | None = None
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The report as text."""
        return report_as_text(self)

    def _repr_html_(self) -> str:
        """The report as HTML, for notebooks."""
        return report_as_html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Both forms, of which a notebook shows the one that it can."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def report_function(
    student: SessionFunction,
    exercise: Exercise,
    function: Function,
    results: Sequence[CheckResult],
    hints: int,
    lines: LineTable | None = None,
    timelines: Timelines | None = None,
) -> FunctionReport:
    """The report of one function: results, texts, hints, and what its busiest call did.

    `hints` is how many of them are shown. Raises BadDay or OSError where hints or mistakes of the
    day cannot be read.
    """
    parts = [_parts_about(result, student) for result in results]
    outcomes = [result.outcome for result in results]
    # Hints stand with the first check that failed; without one, they are about the whole function.
    more = f"check({student.name}, hints={hints + 1})"
    hints_of_function: Sequence[Part] = ()
    if Outcome.FAILED in outcomes:
        place = outcomes.index(Outcome.FAILED)
        about_failure = hints_about(results[place], function)
        pages = pages_about(results[place], exercise)
        parts[place] += tuple(hint_parts(about_failure, pages, hints, more))
    elif hints > 1 and set(outcomes) != {Outcome.PASSED}:
        hints_of_function = hint_parts(function.hints, exercise.reading, hints, more)
    return FunctionReport(
        function.name,
        exercise.stem,
        exercise.title,
        tuple(results),
        tuple(parts),
        tuple(hints_of_function),
        lines,
        timelines,
    )


def _parts_about(result: CheckResult, student: SessionFunction) -> tuple[Part, ...]:
    """The labelled texts about one result.

    Empty for a result that takes no lines of its own. Raises BadDay or OSError where mistakes of
    the day cannot be read.
    """
    place = ""
    if result.line is not None:
        place = student.describe_line(result.line)
    headline, parts = headline_and_parts(result, place)
    if _is_folded(result):
        return ()
    if result.outcome is Outcome.FAILED:
        parts = [part for part in parts if part.label != "claim"]  # it stands above them
    elif result.outcome is Outcome.BLOCKED:
        parts = [Part("not judged", result.happened)]
    elif result.outcome is Outcome.ERROR:
        parts = [part for part in parts if part.label == "happened"]
        parts.insert(0, Part("our fault", headline))
    elif result.outcome is Outcome.TODO:
        parts = []
        if result.happened:
            parts.append(Part("to do", result.happened))
    return tuple(parts)


def report_as_text(report: CheckReport) -> str:
    """A report as lines of text."""
    lines: list[str] = []
    for checked in report.checked:
        lines += _function_lines(checked)
        lines.append("")
    if report.table is not None:
        lines += _points_lines(report.table)
        lines.append("")
    lines += report.remarks
    return "\n".join(lines).rstrip()


def _function_lines(checked: FunctionReport) -> Iterator[str]:
    """Yield the text about one function: results, hints, what its lines did, its timeline."""
    points = f"{checked.points:g} of {checked.most:g} points"
    yield f"{checked.name}: {points} ({checked.exercise})"
    if checked.to_do:
        yield f"  {STUB}"
    else:
        yield from _lines_of_folds(checked.passed)
        for result, parts in checked.told:
            yield f"  {MARKS[result.outcome]:8} {result.claim}"
            for label, content in parts:
                for line in lay_out_part(label, content):
                    yield f"  {line}"
        yield from _lines_of_folds(checked.blocked)
    for label, content in checked.hints:
        yield from lay_out_part(label, content)
    if checked.lines is not None:
        yield from _table_lines(checked.lines)
    if checked.timelines is not None:
        yours, theirs = checked.timelines
        drawing = draw_timeline(yours, DRAWING_WIDTH, theirs)
        lines = [*ledger.plain_lines(drawing), *timeline_legend(DRAWING_WIDTH)]
        for line in lines:
            yield f"  {line}"


def _lines_of_folds(folds: Sequence[Fold]) -> Iterator[str]:
    """Yield a line about each fold with the names of its checks; what is too long goes on below."""
    for fold in folds:
        names = ", ".join(result.check for result in fold.results)
        beginning = f"  {MARKS[fold.outcome]:8} "
        yield from textwrap.wrap(
            f"{fold.heading}: {names}",
            WIDTH,
            initial_indent=beginning,
            subsequent_indent=" " * len(beginning),
        )


def _table_lines(table: LineTable) -> Iterator[str]:
    """Yield the table of what each line did, its columns as wide as they need to be.

    Sentences about waits come after it.
    """
    rows = [CellLine("", "", table.headings)]
    for row in table.rows:
        code = row.code
        if len(code) > CODE_WIDTH:
            code = code[: CODE_WIDTH - 1] + "…"
        rows.append(row._replace(code=code))
    number_width = max(len(row.number) for row in rows)
    code_width = max(len(row.code) for row in rows)
    cells_of_rows = [row.cells for row in rows]
    widths = []
    for column in zip(*cells_of_rows, strict=True):
        widths.append(max(map(len, column)))
    yield f"  What each line did in the busiest call, on {table.device}:"
    for row in rows:
        number = row.number.rjust(number_width)
        code = row.code.ljust(code_width)
        line = f"  {number}  {code}"
        for cell, width in zip(row.cells, widths, strict=True):
            line += f"  {cell.rjust(width)}"
        yield line.rstrip()
    for sentence in table.waits:
        yield f"  {sentence}"


def _points_lines(table: PointsTable) -> Iterator[str]:
    """Yield the table of points, the total, and what to check next."""
    width = max([len(row.exercise) for row in table.rows], default=0)
    for row in table.rows:
        bar = progress_bar(row.points, row.max_points)
        points = f"{row.points:5.4g} of {row.max_points:<4g}"
        yield f"{row.exercise:{width}}  {bar}  {points}  {row.state}"
    total = "total".ljust(width)
    no_bar = " " * BAR_WIDTH
    yield f"{total}  {no_bar}  {table.points:5.4g} of {table.max_points:g}"
    if table.following:
        yield f"next: {table.following}"
    elif table.done:
        yield DONE


def report_as_html(report: CheckReport) -> str:
    """A report as HTML for the output of a cell."""
    return _html_template().render(report=report)


@functools.cache
def _html_template() -> jinja2.Template:
    """The template of a report, loaded once."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudojo.notebook"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _mark_code
    environment.globals.update(
        draw_timeline=draw_timeline,
        timeline_legend=timeline_legend,
        width=DRAWING_WIDTH,
        to_do=STUB,
        done=DONE,
    )
    return environment.get_template("check.html")


def _mark_code(text: str) -> Markup:
    """A text in which `code` is marked, and everything is escaped."""
    escaped = str(escape(text))
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped))
