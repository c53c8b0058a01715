"""What is shown of a script that has run: a table of its lines, a timeline, a page, a trace."""

from __future__ import annotations

import html
import os
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from virtual_cuda.clock.advice import compare_with_cpu, what_limits
from virtual_cuda.clock.gpu_models import gpu_named
from virtual_cuda.clock.lanes import Times
from virtual_cuda.clock.to_scale import lanes_to_scale, modelled_trace
from virtual_cuda.ledger import (
    Ledger,
    draw_table,
    draw_timeline,
    file_rows,
    plain_lines,
    questions,
    timeline_of,
)
from virtual_cuda.ledger.line_table import LineRow, columns_of, totals
from virtual_cuda.ledger.texts import count_phrase, duration
from virtual_cuda.sizes import format_size

MOST_WAITING_LINES: Final = 5
WAITS_TO_TELL: Final = 3  # of a line, from which a sentence tells of them
PAGE_COLUMNS: Final = 120  # characters of the timeline on a page


class ScriptReport:
    """The report on one script: what its ledger and its modelled times tell."""

    def __init__(
        self, name: str, file: str, device: str, ledger: Ledger, times: Times | None
    ) -> None:
        """Report on the script `name`, whose code is in `file`.

        `device` is what texts call the device. `times` is None where nothing is modelled.
        """
        self.name = name
        self.file = file
        self.device = device
        self.ledger = ledger
        self.times = times
        # Modelled seconds of host and GPU, by the index of the record.
        self.spent = None if times is None else times.by_record(ledger)

    # ---- text ----

    def lines(self, width: int, with_timeline: bool, with_cpu: bool) -> Iterator[str]:
        """The lines to print: the table, sentences about it, and perhaps the timeline.

        `with_cpu` compares the modelled time with that of a CPU.
        """
        tables = self._rows_by_file()
        if tables:
            yield from self._table_lines(tables, width)
            for sentence in self._sentences_on_times(with_cpu):
                yield from textwrap.wrap(sentence, width, break_on_hyphens=False)
        else:
            yield f"{self.name} did nothing on {self.device}."
        yield from self._sentences_on_collectives()
        if with_timeline and self.ledger.records:
            yield ""
            yield from self._timeline_lines(width)

    def _rows_by_file(self) -> dict[str, list[LineRow]]:
        """The rows of the lines that did something, by file, the script first."""
        found = file_rows(self.ledger.records, self.spent)
        if self.file not in found:
            return found
        rows_of_script = found.pop(self.file)
        return {self.file: rows_of_script, **found}

    def _table_lines(self, tables: dict[str, list[LineRow]], width: int) -> Iterator[str]:
        """The table, with a heading, and a sentence on each line that waited often."""
        heading = f"What each line did on {self.device}"
        if self.times is not None:
            heading += f", and how long it would take on {self.times.label}, modelled"
        yield f"{heading}:"
        records = self.ledger.records
        by_short_path = {_short_path(file): rows for file, rows in tables.items()}
        yield from draw_table(
            by_short_path,
            sums=totals(records, self.spent),
            width=width,
            headings=columns_of(self.spent),
        )
        waits = questions.waits(records)
        waiting_lines = questions.hot_lines(waits, WAITS_TO_TELL)
        for file, line in list(waiting_lines)[:MOST_WAITING_LINES]:
            count = waiting_lines[file, line]
            yield f"{_short_path(file)}:{line} made the CPU wait for the GPU {count:,} times."

    def _sentences_on_times(self, with_cpu: bool) -> Iterator[str]:
        """Sentences on the modelled times; none where nothing took any."""
        times = self.times
        if times is None or not times.end:
            return
        took = duration(round(times.end * 1e9))
        yield f"Modelled on {times.label}: {took}, GPU idle {times.idle_share:.0%} of the time."
        yield what_limits(times)
        if with_cpu:
            yield from compare_with_cpu(self.ledger.rows, times, gpu_named(times.gpu))

    def _sentences_on_collectives(self) -> Iterator[str]:
        """A sentence on what ranks have exchanged, if they have exchanged anything."""
        collectives = questions.collectives(self.ledger.records)
        if not collectives:
            return
        count = count_phrase(len(collectives), "collective")
        size = format_size(sum(each.bytes for each in collectives))
        seconds = sum(each.seconds or 0 for each in collectives)
        yield f"{count} of {size}, complete after {seconds:.2f} s in all."

    def _timeline_lines(self, width: int) -> list[str]:
        """The timeline of the whole run, as text."""
        if self.times is None:
            scaled = None
        else:
            scaled = lanes_to_scale(self.times)
        timeline = timeline_of(
            self.ledger.records,
            function=self.name,
            scenario="",
            file=self.file,
            device="",
            source=_lines_of_file(self.file) or [],
            peak_bytes=max(self.ledger.peaks.values(), default=0),
            scaled=scaled,
        )
        return plain_lines(draw_timeline(timeline, width))

    # ---- files ----

    def write_trace(self, target: Path) -> None:
        """Write a trace: to scale, with host and streams, where times are modelled.

        Raises OSError.
        """
        if self.times is None:
            self.ledger.save_trace(target)
            return
        trace = modelled_trace(self.ledger, self.times)
        target.write_bytes(msgspec.json.encode(trace))

    def write_page(self, target: Path, with_cpu: bool) -> None:
        """Write a page: every line of the files that used the device, with what it did.

        Raises OSError.
        """
        columns = columns_of(self.spent)
        tables: list[str] = []
        for file, rows in self._rows_by_file().items():
            tables += _html_table(file, rows, columns)
        figures = []
        cells = totals(self.ledger.records, self.spent)
        for heading, cell in zip(columns, cells, strict=True):
            if cell:
                figures.append(f"{heading} {cell}")
        sentences = " ".join(self._sentences_on_times(with_cpu))
        timeline = "\n".join(self._timeline_lines(PAGE_COLUMNS))
        page = PAGE.format(
            title=f"What {html.escape(self.name)} did on {self.device}",
            sums=html.escape(", ".join(figures)),
            told=html.escape(sentences),
            drawn=html.escape(timeline),
            body="\n".join(tables),
        )
        target.write_text(page, encoding="utf-8")


PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root{{color-scheme:light dark}}
body{{font:15px system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}}
table{{border-collapse:collapse;font-size:13px}}
td,th{{padding:.1em .6em;text-align:right;white-space:nowrap}}
td:nth-child(2){{text-align:left;white-space:pre}} tr:not(.used) td,tr>th:first-child{{opacity:.6}}
tr.used{{background:color-mix(in srgb,orange 15%,transparent)}} pre,.wide{{overflow-x:auto}}
</style></head><body><h1>{title}</h1>
<p>In all: {sums}.</p>
<p>{told}</p>
<pre>{drawn}</pre>
<div class="wide">
{body}
</div></body></html>
"""


def _html_table(file: str, rows: list[LineRow], columns: tuple[str, ...]) -> list[str]:
    """The lines of a page with a table of all lines of a file."""
    path = html.escape(_short_path(file))
    headings = "".join(f"<th>{heading}</th>" for heading in columns)
    lines = [f"<h2>{path}</h2><table><tr><th></th><th></th>{headings}</tr>"]
    every_line = _every_line(file, rows, len(columns))
    lines += [_html_row(row) for row in every_line]
    lines.append("</table>")
    return lines


def _html_row(row: LineRow) -> str:
    """A row of a table on a page; one with any figure is marked."""
    kind = ""
    if any(row.cells):
        kind = ' class="used"'
    code = html.escape(row.code)
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells)
    return f"<tr{kind}><th>{row.number}</th><td><code>{code}</code></td>{cells}</tr>"


def _every_line(file: str, rows: list[LineRow], columns: int) -> list[LineRow]:
    """The rows of all lines of a file, also of those that did nothing.

    Only the given rows where the file cannot be read.
    """
    source = _lines_of_file(file)
    if source is None:
        return rows
    known = {row.number: row for row in rows}
    empty = ("",) * columns
    every = []
    for number, text in enumerate(source, 1):
        row = known.get(number, LineRow(number, text, empty))
        every.append(row)
    return every


def _lines_of_file(file: str) -> list[str] | None:
    """The lines of a file; None if it cannot be read."""
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.splitlines()


def _short_path(file: str) -> str:
    """The path from the current folder, where that is shorter."""
    with suppress(ValueError):  # another drive
        return min(file, os.path.relpath(file), key=len)
    return file
