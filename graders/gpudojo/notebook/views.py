"""Reports of checks in a notebook: data, plain text and HTML."""

from __future__ import annotations

import functools
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape
from virtual_cuda import ledger
from virtual_cuda.ledger import COLUMNS, Timeline, draw_timeline, line_rows, questions, timeline_legend

from gpudojo.grading.watching import Busiest
from gpudojo.grading.wording import BAR_WIDTH, ExercisePoints, Part, bar, compose, hint_parts, hints_about, laid_out
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.notebook.session import Live, cell_name


@dataclass(frozen=True)
class LineTable:
    """What each line of a function did on the device."""

    rows: tuple[tuple[str, str, tuple[str, ...]], ...]  # number, code and cells: the lines, those of other cells, sums
    waits: tuple[str, ...]  # a sentence for each line at which the host waited more than once
    device: str


def line_table(busiest: Busiest, live: Live) -> LineTable | None:
    """The table of the busiest call; None where it did not use a device."""
    records = tuple(record for record in busiest.records if record.site is not None)
    sums = ledger.totals(records)
    if not any(sums):
        return None
    rows = [(str(row.number), row.code, row.cells) for row in line_rows(records, live.file, live.source, live.first)]
    for file, line in sorted(questions.per_line(records)):
        found = line_rows(records, file, [linecache.getline(file, line)], line) if file != live.file else []
        number = f"{cell_name(file)}:{line}".lstrip(":")
        rows += [(number, row.code, row.cells) for row in found if any(row.cells)]
    hot = questions.hot_lines(questions.waits(records), at_least=2).items()
    told = "Line {} made the host wait for the device {} times."
    waits = tuple(told.format(line, count) for (file, line), count in hot if file == live.file)
    return LineTable((*rows, ("", "total", sums)), waits, busiest.device)


DONE: Final = "Everything that is defined here passes. Well done!"
STUB: Final = "still to do: fill in its cell, run it, and check again."
STOPPED: Final = "Interrupted while `{name}` was checked. It has no result, and neither have the functions after it."
Timelines = tuple[Timeline, Timeline | None]  # of the student's function and of the reference


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
        return sum(result.points for result in self.results)

    @property
    def most(self) -> float:
        return sum(result.max_points for result in self.results)

    @property
    def outcomes(self) -> set[Outcome]:
        return {result.outcome for result in self.results}

    @property
    def to_do(self) -> bool:
        return self.outcomes == {Outcome.TODO}


@dataclass(frozen=True)
class PointsTable:
    """The points of every exercise of which something is defined."""

    rows: tuple[ExercisePoints, ...]
    following: str  # what to check next, as code; empty when nothing is left

    @property
    def points(self) -> float:
        return sum(row.points for row in self.rows)

    @property
    def max_points(self) -> float:
        return sum(row.max_points for row in self.rows)

    @property
    def done(self) -> bool:
        return bool(self.rows) and all(row.state == "done" for row in self.rows)


@dataclass(frozen=True)
class CheckReport:
    """The output of one call of `check`, as text and as HTML."""

    checked: tuple[FunctionReport, ...] = ()
    table: PointsTable | None = None
    said: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        return html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def function_report(
    live: Live,
    exercise: Exercise,
    function: Function,
    results: Sequence[CheckResult],
    hints: int,
    lines: LineTable | None = None,
    timelines: Timelines | None = None,
) -> FunctionReport:
    """The report of one function: results, texts, hints, and what its busiest call did."""
    parts = tuple(_parts(result, live) for result in results)
    failed = next((result for result in results if result.outcome is Outcome.FAILED), None)
    passed = all(result.outcome is Outcome.PASSED for result in results)
    count = hints if failed or (hints > 1 and not passed) else 0
    every = hints_about(failed, function) if failed else function.hints
    shown = tuple(hint_parts(every, exercise, count, f"check({live.name}, hints={count + 1})"))
    return FunctionReport(function.name, exercise.stem, exercise.title, tuple(results), parts, shown, lines, timelines)


def _parts(result: CheckResult, live: Live) -> tuple[Part, ...]:
    headline, parts = compose(result, live.place(result.line) if result.line is not None else "")
    if result.outcome is Outcome.BLOCKED:
        parts = [("blocked by", f"`{result.blocked_by}`, which has to pass first")]
    elif result.outcome is Outcome.ERROR:
        parts = [("our fault", headline), *[part for part in parts if part[0] == "happened"]]
    elif result.outcome is Outcome.TODO:
        parts = [("to do", result.happened)] if result.happened else []
    return tuple(parts)


CODE: Final = 60  # characters of a line of code
WIDTH: Final = 110  # of a drawing, in characters
MARKS: Final = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "FAILED",
    Outcome.TODO: "to do",
    Outcome.BLOCKED: "blocked",
    Outcome.ERROR: "error",
}


def text(report: CheckReport) -> str:
    lines: list[str] = []
    for checked in report.checked:
        lines += [*_checked_text(checked), ""]
    if report.table is not None:
        lines += [*_table_text(report.table), ""]
    lines += report.said
    return "\n".join(lines).rstrip()


def _checked_text(checked: FunctionReport) -> Iterator[str]:
    yield f"{checked.name}: {checked.points:g} of {checked.most:g} points ({checked.exercise})"
    if checked.to_do:
        yield f"  {STUB}"
    else:
        for result, parts in zip(checked.results, checked.parts, strict=True):
            yield f"  {MARKS[result.outcome]:8} {result.claim}"
            for label, content in parts:
                yield from (f"  {line}" for line in laid_out(label, content))
    for label, content in checked.hints:
        yield from laid_out(label, content)
    if checked.lines is not None:
        yield from _lines_text(checked.lines)
    if checked.timelines is not None:
        yours, theirs = checked.timelines
        drawn = ledger.plain_lines(draw_timeline(yours, WIDTH, theirs))
        yield from (f"  {line}" for line in (*drawn, *timeline_legend(WIDTH)))


def _lines_text(table: LineTable) -> Iterator[str]:
    rows = [(number, c if len(c) <= CODE else f"{c[: CODE - 1]}…", cells) for number, c, cells in table.rows]
    first = max(len(number) for number, _, _ in rows)
    code = max(len(shown) for _, shown, _ in rows)
    widths = [max(len(heading), *(len(row[2][i]) for row in rows)) for i, heading in enumerate(COLUMNS)]
    yield f"  What each line did in the busiest call, on {table.device}:"
    for number, shown, cells in [("", "", tuple(COLUMNS)), *rows]:
        counted = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"  {number:>{first}}  {shown:{code}}  {counted}".rstrip()
    yield from (f"  {sentence}" for sentence in table.waits)


def _table_text(table: PointsTable) -> Iterator[str]:
    wide = max((len(row.exercise) for row in table.rows), default=0)
    for row in table.rows:
        filled = bar(row.points, row.max_points)
        yield f"{row.exercise:{wide}}  {filled}  {row.points:5.4g} of {row.max_points:<4g}  {row.state}"
    yield f"{'total':{wide}}  {'':{BAR_WIDTH}}  {table.points:5.4g} of {table.max_points:g}"
    if table.following:
        yield f"next: {table.following}"
    elif table.done:
        yield DONE


def html(report: CheckReport) -> str:
    return _template().render(report=report)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gpudojo.notebook"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.globals.update(draw_timeline=draw_timeline, timeline_legend=timeline_legend, width=WIDTH)
    environment.globals.update(columns=COLUMNS, to_do=STUB, done=DONE)
    return environment.get_template("check.html")


def _prose(text: str) -> Markup:
    """A text in which `code` is marked, and everything is escaped."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
