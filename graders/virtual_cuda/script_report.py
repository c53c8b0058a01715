"""What is shown of a script that has run: a table of its lines, a timeline, a page, a trace."""

from __future__ import annotations

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
from virtual_cuda.script_page import PageTexts, make_page
from virtual_cuda.script_page_sources import PageSource
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
        """The timeline of the whole run, as text: to scale where times are modelled."""
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
        """Write a page: the timeline, and every line of the files that used the device.

        Raises OSError.
        """
        sources = []
        for file in self._rows_by_file():
            sources.append(PageSource(file, _short_path(file), _lines_of_file(file) or []))
        timeline = []
        if self.times is None and self.ledger.records:
            timeline = self._timeline_lines(PAGE_COLUMNS)
        texts = PageTexts(
            title=f"What {self.name} did on {self.device}",
            told=list(self._sentences_on_times(with_cpu))[1:],  # the first is in the figures
            timeline=timeline,
        )
        page = make_page(self.ledger, self.times, sources, texts)
        target.write_text(page, encoding="utf-8")


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
