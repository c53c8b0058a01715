"""Reports of checks in a notebook: data, plain text and HTML."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from virtual_cuda.ledger import (
    COLUMNS,
    LineRow,
    Timeline,
    draw_timeline,
    line_rows,
    plain_lines,
    questions,
    timeline_legend,
    totals,
)

from gpudojo.grading.watching import Busiest
from gpudojo.grading.wording import BAR_WIDTH, ExercisePoints, Part, bar, compose, hint_parts, laid_out
from gpudojo.model.exercise import Exercise, Function
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.notebook.session import Live, cell_name


@dataclass(frozen=True)
class LineTable:
    """What each line of a function did on the device: a row per line, and rows for lines of other cells."""

    rows: tuple[LineRow, ...]
    elsewhere: tuple[tuple[str, LineRow], ...]  # by the name of the cell
    sums: tuple[str, ...]
    waits: tuple[tuple[int, int], ...]  # line and count, where the host waited more than once
    device: str


def line_table(busiest: Busiest, live: Live) -> LineTable | None:
    """The table of the busiest call; None where it did not use a device."""
    records = tuple(record for record in busiest.records if record.site is not None)
    sums = totals(records)
    if not any(sums):
        return None
    rows = line_rows(records, live.file, live.source, live.first)
    elsewhere = [
        (cell_name(file), row)
        for file, line in sorted(questions.per_line(records))
        if file != live.file
        for row in line_rows(records, file, [linecache.getline(file, line)], line)
        if any(row.cells)
    ]
    waits = questions.hot_lines(questions.syncs(records), at_least=2)
    here = tuple((line, count) for (file, line), count in waits.items() if file == live.file)
    return LineTable(tuple(rows), tuple(elsewhere), sums, here, busiest.device)


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
    begun = any(result.outcome is Outcome.FAILED for result in results)
    shown = hints if begun or hints > 1 else 0
    if all(result.outcome is Outcome.PASSED for result in results):
        shown = 0
    failed = next((result for result in results if result.outcome is Outcome.FAILED), None)
    every = function.hints_for(failed.misconception, failed.check) if failed else function.hints
    shown_hints = tuple(hint_parts(every, exercise, shown, f"check({live.name}, hints={shown + 1})"))
    return FunctionReport(
        function.name, exercise.stem, exercise.title, tuple(results), parts, shown_hints, lines, timelines
    )


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
TEXT_WIDTH: Final = 110
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
    if checked.outcomes == {Outcome.TODO}:
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
        yield from (
            f"  {line}" for line in plain_lines(draw_timeline(checked.timelines[0], TEXT_WIDTH, checked.timelines[1]))
        )
        yield from (f"  {line}" for line in timeline_legend(TEXT_WIDTH))


def _lines_text(table: LineTable) -> Iterator[str]:
    rows: list[tuple[str, str, tuple[str, ...]]] = [(str(row.number), _cut(row), row.cells) for row in table.rows]
    rows += [(f"{cell}:{row.number}".lstrip(":"), _cut(row), row.cells) for cell, row in table.elsewhere]
    rows.append(("", "total", table.sums))
    first = max(len(number) for number, _, _ in rows)
    code = max(len(shown) for _, shown, _ in rows)
    widths = [max(len(heading), *(len(row[2][i]) for row in rows)) for i, heading in enumerate(COLUMNS)]
    yield f"  What each line did in the busiest call, on {table.device}:"
    for number, shown, cells in [("", "", tuple(COLUMNS)), *rows]:
        counted = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"  {number:>{first}}  {shown:{code}}  {counted}".rstrip()
    for line, count in table.waits:
        yield f"  Line {line} made the host wait for the device {count} times."


def _cut(row: LineRow) -> str:
    return row.code if len(row.code) <= CODE else f"{row.code[: CODE - 1]}…"


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


# Transparent greys on the notebook's own colours suit every theme; badges set both of their colours.
STYLE: Final = """
.gpudojo{font-family:system-ui,sans-serif;line-height:1.45;max-width:62rem}
.gpudojo h4{margin:.6em 0 .4em;font-size:1.05em}
.gpudojo code,.gpudojo pre{font-family:ui-monospace,monospace;font-size:.92em;background:none;color:inherit}
.gpudojo pre{margin:.2em 0;padding:.2em .6em;border-left:3px solid #8888;background:#8882;white-space:pre-wrap}
.gpudojo .v{margin:.25em 0}
.gpudojo .b{display:inline-block;min-width:4.2em;text-align:center;border-radius:.6em;padding:0 .5em;margin-right:.5em;
font-size:.82em;font-weight:600;color:#fff;background:#57606a}
.gpudojo .passed{background:#1a7f37}.gpudojo .failed{background:#cf222e}.gpudojo .error{background:#8250df}
.gpudojo dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em .8em;margin:.2em 0 .5em 5.6em}
.gpudojo dt{font-weight:600;opacity:.75}.gpudojo dd{margin:0}
.gpudojo table{border-collapse:collapse;margin:.3em 0;font-size:.92em}
.gpudojo td,.gpudojo th{padding:.1em .7em;text-align:right!important;border:0;white-space:pre;vertical-align:top;
background:none;color:inherit}
.gpudojo td.c,.gpudojo th.c{text-align:left!important}
.gpudojo tr.m{background:#d4a72c33!important}.gpudojo tfoot td{border-top:1px solid #8888;font-weight:600}
.gpudojo .bar{display:inline-block;width:10em;height:.7em;background:#8884;border-radius:.35em;overflow:hidden}
.gpudojo .bar i{display:block;height:100%;background:#1a7f37}
.gpudojo .q{opacity:.75}
.gpudojo pre.t{white-space:pre;overflow-x:auto;line-height:1.15}
.gpudojo .t-wait{color:#cf222e;font-weight:700}.gpudojo .t-copy,.gpudojo .t-memory{color:#0969da}
.gpudojo .t-grad{color:#9a6700}.gpudojo .t-nograd{color:#1a7f37}.gpudojo .t-autocast{color:#8250df}
"""

PICTURE: Final = 110  # characters


def html(report: CheckReport) -> str:
    parts = [part for checked in report.checked for part in _checked_html(checked)]
    parts += list(_table_html(report.table)) if report.table is not None else []
    parts += [f"<p>{_prose(sentence)}</p>" for sentence in report.said]
    return f'<div class="gpudojo"><style>{STYLE}</style>{"".join(parts)}</div>'


def _checked_html(checked: FunctionReport) -> Iterator[str]:
    points = f"{checked.points:g} of {checked.most:g} points"
    yield f'<h4><code>{escape(checked.name)}</code>: {points} <span class="q">· {escape(checked.title)}</span></h4>'
    if checked.outcomes == {Outcome.TODO}:
        yield f'<div class="v">{_badge(Outcome.TODO)}{_prose(STUB)}</div>'
    else:
        for result, parts in zip(checked.results, checked.parts, strict=True):
            yield f'<div class="v">{_badge(result.outcome)}{_prose(result.claim)}</div>{_list(parts)}'
    yield _list(checked.hints)
    if checked.lines is not None:
        yield from _lines_html(checked.lines)
    if checked.timelines is not None:
        yield _picture(*checked.timelines)


def _badge(outcome: Outcome) -> str:
    return f'<span class="b {outcome.replace(" ", "")}">{escape(outcome)}</span>'


def _list(parts: tuple[Part, ...]) -> str:
    if not parts:
        return ""
    return f"<dl>{''.join(f'<dt>{escape(label)}</dt><dd>{_content(label, text)}</dd>' for label, text in parts)}</dl>"


def _content(label: str, text: str) -> str:
    if label == "line":
        first, _, code = text.partition("\n")
        return escape(first) + (f"<pre>{escape(code.strip())}</pre>" if code else "")
    if label == "read":
        pages = [escape(page) for page in text.splitlines()]
        return "<br>".join(f'<a href="{page}" target="_blank" rel="noopener">{page}</a>' for page in pages)
    first, *rest = text.splitlines() or [""]
    # All lines but the first are preformatted: code, or a drawing of values.
    return _prose(first) + (f"<pre>{escape(chr(10).join(rest))}</pre>" if rest else "")


def _prose(text: str) -> str:
    """A text in which `code` is marked, and everything is escaped."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _lines_html(table: LineTable) -> Iterator[str]:
    headings = "".join(f"<th>{escape(heading)}</th>" for heading in COLUMNS)
    yield f'<div class="q">What each line did in the busiest call, on <code>{escape(table.device)}</code>:</div>'
    yield f'<table><thead><tr><th></th><th class="c"></th>{headings}</tr></thead><tbody>'
    for row in table.rows:
        yield _row(str(row.number), row.code, row.cells)
    for cell, row in table.elsewhere:
        yield _row(f"{cell}:{row.number}".lstrip(":"), row.code, row.cells)
    yield f"</tbody><tfoot>{_row('', 'total', table.sums)}</tfoot></table>"
    for line, count in table.waits:
        yield f"<div>Line {line} made the host wait for the device {count} times.</div>"


def _picture(yours: Timeline, theirs: Timeline | None) -> str:
    """The drawing that a terminal shows; its first line says how often the host waits, for blind readers."""
    lines = [
        "".join(
            f'<span class="t-{meaning.replace(" ", "")}">{escape(text)}</span>' if meaning else escape(text)
            for text, meaning in line
        )
        for line in draw_timeline(yours, PICTURE, theirs)
    ]
    signs = "<br>".join(map(escape, timeline_legend(PICTURE)))
    return f'<pre class="t">{chr(10).join(lines)}</pre><div class="q">{signs}</div>'


def _row(number: str, code: str, cells: tuple[str, ...]) -> str:
    moved = ' class="m"' if number and (cells[0] or cells[1]) else ""
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr{moved}><td class="q">{escape(number)}</td><td class="c"><code>{escape(code)}</code></td>{shown}</tr>'


def _table_html(table: PointsTable) -> Iterator[str]:
    yield '<table><thead><tr><th class="c">exercise</th><th></th><th>points</th><th class="c"></th></tr></thead><tbody>'
    for row in table.rows:
        share = 100 * row.points / row.max_points if row.max_points else 0
        filled = f'<span class="bar"><i style="width:{share:.0f}%"></i></span>'
        yield f'<tr><td class="c">{escape(row.exercise)}</td><td>{filled}</td>'
        yield f'<td>{row.points:.4g} of {row.max_points:g}</td><td class="c">{escape(row.state)}</td></tr>'
    yield '</tbody><tfoot><tr><td class="c">total</td><td></td>'
    yield f"<td>{table.points:.4g} of {table.max_points:g}</td><td></td></tr></tfoot></table>"
    if table.following:
        yield f"<div>next: <code>{escape(table.following)}</code></div>"
    elif table.done:
        yield f"<div>{_prose(DONE)}</div>"
