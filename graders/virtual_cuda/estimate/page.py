"""An estimate as a page: memory over time as a stack of its parts, GPUs, and the last step."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

from virtual_cuda.clock.advice import format_seconds
from virtual_cuda.clock.gpu_models import gpu_named
from virtual_cuda.clock.lanes import times_of_rows
from virtual_cuda.estimate.memory_record import PARTS, MemoryRecord, Moment
from virtual_cuda.estimate.report import FITS, format_rate, report_lines
from virtual_cuda.estimate.result import Estimate, row_with_site
from virtual_cuda.estimate.steps import Step
from virtual_cuda.ledger import Ledger
from virtual_cuda.ledger.ledger import Sites
from virtual_cuda.ledger.texts import short_line, short_size
from virtual_cuda.script_page_files import PAGE, SCRIPT, STYLE
from virtual_cuda.script_page_sources import PageSource
from virtual_cuda.script_timeline import TimelineDrawing

_COLUMNS: Final = 900  # of the drawing of the memory
_HEIGHT: Final = 320
# Of the parts, in their order: legible side by side, also for people who see few colours.
_COLOURS: Final = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#56b4e9",
    "#cc79a7",
    "#d55e00",
    "#999999",
    "#f0e442",
)


class _Column(NamedTuple):
    """What one column of the drawing shows: its highest moment."""

    parts: list[int]  # bytes, in the order of PARTS
    line: str  # what ran there, on which line; "" if unknown


def make_page(
    estimate: Estimate,
    memory: MemoryRecord,
    ledger: Ledger,
    steps: Sequence[Step],
) -> str:
    """The page of a run as HTML; `steps` are those to mark, of which the last has a timeline."""
    moments = memory.moments()
    columns = _columns_of(moments, memory)
    marks = _marks_of_steps(moments, steps)
    body = [
        _key_figures(estimate),
        f"<p>Nothing was computed, and all times are modelled ({html.escape(estimate.ended)}).</p>",
        "<section><h2>Memory, from the start to the end</h2>",
        _memory_drawing(columns, marks),
        "</section><section><h2>On which GPU?</h2>",
        _table_of_gpus(estimate),
        "</section>",
        *_timeline(estimate, ledger, steps),
        "<section><h2>In words</h2>",
        f"<pre tabindex=0>{html.escape(chr(10).join(report_lines(estimate)))}</pre></section>",
    ]
    columns_as_data = json.dumps([[each.parts, each.line] for each in columns])
    data = f"const columns = {_for_script(columns_as_data)};\n"
    return Template(PAGE).substitute(
        title=html.escape(f"{estimate.program} on {estimate.label}"),
        style=STYLE + _STYLE,
        script=SCRIPT + data + _SCRIPT,
        body="\n".join(body),
    )


def _for_script(data: str) -> str:
    """JSON that may stand inside a script: a line of code cannot end it."""
    return data.replace("<", "\\u003c")


# ---- figures -------------------------------------------------------------------------------------


def _key_figures(estimate: Estimate) -> str:
    """The main figures, each with its name."""
    found = [
        (short_size(estimate.peak), "memory at the peak"),
        (short_size(estimate.reserved), "reserved by torch"),
    ]
    if estimate.step_seconds:
        step = f"one {estimate.step_is} on {estimate.label}"
        found.append((format_seconds(estimate.step_seconds), step))
        if estimate.batch:
            found.append((format_rate(estimate.batch / estimate.step_seconds), "samples/s"))
        if estimate.tokens:
            found.append((format_rate(estimate.tokens / estimate.step_seconds), "tokens/s"))
    if estimate.idle_share is not None:
        found.append((f"{estimate.idle_share:.0%}", "of the time the GPU is idle"))
    tiles = []
    for figure, words in found:
        tiles.append(f"<div><dt>{html.escape(words)}</dt><dd>{html.escape(figure)}</dd></div>")
    return f'<dl class="sums">{"".join(tiles)}</dl>'


def _table_of_gpus(estimate: Estimate) -> str:
    """A table of all GPUs."""
    rows = []
    for each in sorted(estimate.on_gpus, key=lambda gpu: gpu.memory):
        seconds = ""
        idle = ""
        if each.step_seconds is not None and each.idle_share is not None and each.fits != "no":
            seconds = format_seconds(each.step_seconds)
            idle = f"{each.idle_share:.0%}"
        cells = (each.label, short_size(each.memory), FITS[each.fits], seconds, idle)
        row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr class="{each.fits}">{row}</tr>')
    step = html.escape(f"one {estimate.step_is}" if estimate.step_is else "")
    head = f"<tr><th>GPU<th>memory<th>fits?<th>{step}<th>{'idle' if step else ''}</tr>"
    table = f'<table class="gpus">{head}{"".join(rows)}</table>'
    return f'<div class="plain" tabindex="0">{table}</div>'


# ---- memory --------------------------------------------------------------------------------------


def _columns_of(moments: Sequence[Moment], memory: MemoryRecord) -> list[_Column]:
    """The columns of the drawing, each with the highest of its moments."""
    sites = Sites()
    columns = []
    count = min(_COLUMNS, len(moments))
    for column in range(count):
        first = column * len(moments) // count
        until = (column + 1) * len(moments) // count
        highest = max(moments[first:until], key=lambda moment: moment.total)
        row = row_with_site(memory.rows, highest.row)
        line = ""
        if row is not None:
            site = sites.find(row.code, row.offset)
            line = row.name if site is None else f"{row.name} at {short_line(str(site))}"
        columns.append(_Column([highest.parts.get(part, 0) for part in PARTS], line))
    return columns


def _marks_of_steps(moments: Sequence[Moment], steps: Sequence[Step]) -> list[float]:
    """Where steps end, as shares of the width of the drawing."""
    marks = []
    place = 0
    for step in steps:
        while place < len(moments) and moments[place].row < step.until:
            place += 1
        if moments:
            marks.append(place / len(moments))
    return [mark for mark in marks if mark < 1]


def _memory_drawing(columns: Sequence[_Column], marks: Sequence[float]) -> str:
    """The stack of areas, one for each part, with its legend and the end of each step."""
    most = max((sum(column.parts) for column in columns), default=0)
    shapes = [*_areas(columns, most or 1)]
    for mark in marks:
        x = f"{mark * _COLUMNS:.1f}"
        shapes.append(f'<line class="step" x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT}"/>')
    legend = []
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        legend.append(f'<li><i style="background:{colour}"></i>{part} <b></b></li>')
    steps = " A dashed line is the end of a step." if marks else ""
    return (
        f'<div class="stack"><svg id="memory" viewBox="0 0 {_COLUMNS} {_HEIGHT}" tabindex="0" '
        f'preserveAspectRatio="none" role="img" aria-label="Memory by parts, up to '
        f'{short_size(most)}">{"".join(shapes)}'
        f'<line id="at" y1="0" y2="{_HEIGHT}" visibility="hidden"/></svg>'
        f'<div class="times"><span>up to {short_size(most)}</span>'
        f"<span>in the order of allocations</span></div></div>"
        f'<p id="sum" role="status">Point at the drawing, or use the arrow keys on it, to see what '
        f"is in memory.{steps}</p>"
        f'<ul class="legend" id="parts">{"".join(legend)}</ul>'
    )


def _areas(columns: Sequence[_Column], most: int) -> Iterator[str]:
    """Yield the area of each part, which lies on those of the parts before it."""
    step = _COLUMNS / max(len(columns), 1)
    below = [0] * len(columns)
    for part, colour in enumerate(_COLOURS):
        above = [low + column.parts[part] for low, column in zip(below, columns, strict=True)]
        if above != below:
            outline = [*_steps_of(above, step, most), *reversed([*_steps_of(below, step, most)])]
            yield f'<polygon fill="{colour}" points="{" ".join(outline)}"/>'
        below = above


def _steps_of(heights: Sequence[int], step: float, most: int) -> Iterator[str]:
    """Yield the points of a line that is level over each column."""
    for column, height in enumerate(heights):
        y = _HEIGHT * (1 - height / most)
        yield f"{column * step:.1f},{y:.1f}"
        yield f"{(column + 1) * step:.1f},{y:.1f}"


# ---- the last step -------------------------------------------------------------------------------


def _timeline(estimate: Estimate, ledger: Ledger, steps: Sequence[Step]) -> Iterator[str]:
    """Yield the parts of the section on the last step; none if there is no step."""
    if not steps:
        return
    step = steps[-1]
    times = times_of_rows(ledger.rows, gpu_named(estimate.gpu), step.first, step.until)
    if not times.end:
        return
    part = ledger.since(step.first, step.until)
    files = _sources_of(part)
    yield f"<section><h2>Timeline of the last {html.escape(estimate.step_is)}</h2>"
    yield f"<p>{html.escape(estimate.limits)}</p>"
    yield TimelineDrawing(part, times, files, has_code=False).draw()
    yield "</section>"


def _sources_of(ledger: Ledger) -> list[PageSource]:
    """The files whose lines did something, with their text where it can be read."""
    found = {}
    for record in ledger.records:
        if record.site is not None and record.site.file not in found:
            file = record.site.file
            found[file] = PageSource(file, short_line(f"{file}:0")[:-2], _lines_of(file))
    return list(found.values())


def _lines_of(file: str) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


_STYLE: Final = """\
.stack svg{height:20em;background:var(--lane)}
.stack svg:focus-visible{outline:2px solid var(--accent)}
.step{stroke:var(--text);stroke-width:1;stroke-dasharray:4 4;vector-effect:non-scaling-stroke}
#at{stroke:var(--text);stroke-width:1;vector-effect:non-scaling-stroke}
#sum{margin:.5em 0;min-height:2.9em;overflow-wrap:anywhere}
#parts b{font-variant-numeric:tabular-nums}
.plain{overflow-x:auto}.gpus{min-width:0;font-size:1em}
.gpus th,.gpus td{padding:.15em 1.4em .15em 0;text-align:left;position:static;width:auto;
color:inherit;font-weight:normal;white-space:nowrap}
.gpus th:first-child,.gpus tr>:last-child{position:static;text-align:left;color:inherit;
padding-right:1.4em}
.gpus th{color:var(--faint)!important;font-size:.85em}
.gpus td:nth-child(2),.gpus td:nth-child(n+4){text-align:right;
font-variant-numeric:tabular-nums}
.gpus th:nth-child(2),.gpus th:nth-child(n+4){text-align:right!important}
.gpus .no{color:var(--faint)}.gpus .yes td:nth-child(3){font-weight:600}
"""
_SCRIPT: Final = """\
const drawing = document.getElementById("memory");
const pointer = document.getElementById("at");
const size = bytes => bytes >= 2**30 ? (bytes / 2**30).toFixed(2) + " GiB"
  : bytes >= 2**20 ? (bytes / 2**20).toFixed(1) + " MiB" : (bytes / 1024).toFixed(0) + " KiB";
let shown = -1;
function showColumn(place) {
  shown = Math.min(Math.max(place, 0), columns.length - 1);
  const [parts, line] = columns[shown];
  const x = (shown + 0.5) / columns.length * drawing.viewBox.baseVal.width;
  pointer.setAttribute("x1", x);
  pointer.setAttribute("x2", x);
  pointer.setAttribute("visibility", "visible");
  const total = size(parts.reduce((sum, part) => sum + part, 0));
  document.getElementById("sum").textContent = `${total} in all${line && ": " + line}`;
  document.querySelectorAll("#parts b").forEach((cell, part) => {
    cell.textContent = parts[part] ? size(parts[part]) : "";
  });
}
drawing.addEventListener("pointermove", event => {
  const box = drawing.getBoundingClientRect();
  showColumn(Math.floor((event.clientX - box.left) / box.width * columns.length));
});
drawing.addEventListener("keydown", event => {
  const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (!by) return;
  event.preventDefault();
  showColumn(shown + by * (event.shiftKey ? 20 : 1));
});
"""
