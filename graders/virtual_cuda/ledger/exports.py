"""Exports of a ledger: a table with one row per source line, and a trace for Perfetto."""

from __future__ import annotations

import linecache
import textwrap
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from virtual_cuda.ledger import questions
from virtual_cuda.ledger.questions import Records, SourceLine
from virtual_cuda.ledger.records import (
    Allocation,
    Backward,
    Collective,
    Forward,
    Operation,
    OptimizerStep,
    Record,
    ScalerCall,
    Span,
    Sync,
    Transfer,
)
from virtual_cuda.ledger.texts import cut, duration, printable, short_size


def _size(bytes_: int) -> str:
    """A cell with a size; empty for 0."""
    return short_size(bytes_) if bytes_ else ""


COLUMNS: Final[dict[str, Callable[[Records], str]]] = {
    "to device": lambda records: _size(questions.bytes_to_device(records)),
    "to host": lambda records: _size(questions.bytes_to_host(records)),
    "waits": lambda records: str(len(questions.waits(records)) or ""),
    "ops": lambda records: str(len(questions.operations(records)) or ""),
    "allocated": lambda records: _size(questions.allocated_bytes(records)),
    "peak": lambda records: _size(questions.peak_bytes(records)),
}


# Modelled seconds of host and devices by the index of a record, and the columns that they fill.
Spent = Mapping[int, tuple[float, float]]
TIMES: Final = ("host", "GPU")


def columns_of(spent: Spent | None) -> tuple[str, ...]:
    """The headings of a table; modelled times, where there are any, come first."""
    if spent is None:
        return tuple(COLUMNS)
    return (*TIMES, *COLUMNS)


@dataclass(frozen=True)
class LineRow:
    """One line of code, and a text for each column; empty where there is nothing to tell."""

    number: int
    code: str
    cells: tuple[str, ...]


def line_rows(
    records: Records, file: str, code: Iterable[str], first: int = 1, spent: Spent | None = None
) -> list[LineRow]:
    """One row for every line of the code, which begins at line `first` of the file."""
    records_of_lines = by_line(records)
    rows = []
    for number, text in enumerate(code, first):
        cells = totals(records_of_lines.get((file, number), ()), spent)
        rows.append(LineRow(number, text.rstrip(), cells))
    return rows


def by_line(records: Records) -> dict[SourceLine | None, list[Record]]:
    """The records that each line caused, in one pass; those without a line under None."""
    found: dict[SourceLine | None, list[Record]] = {}
    for record in records:
        site = record.site
        found.setdefault(None if site is None else (site.file, site.line), []).append(record)
    return found


def totals(records: Records, spent: Spent | None = None) -> tuple[str, ...]:
    """A text for each column of `columns_of(spent)`, over all of the records."""
    cells = [answer(records) for answer in COLUMNS.values()]
    if spent is None:
        return tuple(cells)
    host = 0.0
    device = 0.0
    for record in records:
        host_seconds, device_seconds = spent.get(record.index, (0.0, 0.0))
        host += host_seconds
        device += device_seconds
    return (_time_cell(host), _time_cell(device), *cells)


def _time_cell(seconds: float) -> str:
    return duration(round(seconds * 1e9)) if seconds else ""


ELSEWHERE: Final = "(in libraries)"  # instead of a file: what no line of the user's caused
DISPENSABLE: Final = ("peak", "ops")  # columns that give way to the code where there is little room
CODE: Final = 36  # characters of code that a table has room for, with all columns
NARROW: Final = 24  # with less, the figures are below the code


def file_rows(records: Records, spent: Spent | None = None) -> dict[str, list[LineRow]]:
    """The lines that did something on a device, in order, by file."""
    found: dict[str, list[LineRow]] = {}
    lines = by_line(records)
    for line in sorted(lines, key=lambda line: line or (ELSEWHERE, 0)):
        file, number = line or (ELSEWHERE, 0)
        code = printable(linecache.getline(file, number).strip())
        row = LineRow(number, code, totals(lines[line], spent))
        if any(row.cells):
            found.setdefault(file, []).append(row)
    return found


def draw_table(
    files: Mapping[str, Sequence[LineRow]],
    sums: Sequence[str],
    width: int,
    headings: Sequence[str] = tuple(COLUMNS),
) -> list[str]:
    """The lines of a table, at most `width` characters wide.

    Columns without any figure are left out. `sums` are the cells of the last line, the total.
    """
    return _Table(files, sums, width, headings).draw()


class _Table:
    """Rows of files to be drawn, and how wide its columns are."""

    def __init__(
        self,
        files: Mapping[str, Sequence[LineRow]],
        sums: Sequence[str],
        width: int,
        headings: Sequence[str],
    ) -> None:
        """Measure the columns, and choose those that have a figure."""
        self.files = files
        self.sums = sums
        self.width = width
        self.headings = headings
        rows = [row for file_rows in files.values() for row in file_rows]
        self.number_width = max([len(str(row.number)) for row in rows], default=1) + 2
        self.column_widths: list[int] = []
        self.shown: list[int] = []  # the numbers of the columns
        for column, heading in enumerate(headings):
            cells = [sums[column], *(row.cells[column] for row in rows)]
            self.column_widths.append(max(map(len, [heading, *cells])))
            if any(cells):
                self.shown.append(column)
        lengths = [len(row.code) for row in rows]
        lengths += [len(file) - self.number_width - 2 for file in files]
        self.longest = max(lengths, default=0)  # of code, and of names of files beside it

    def draw(self) -> list[str]:
        """The lines of the table.

        Figures stand beside the code, or below it where the code would have too little room. Drops
        the columns of DISPENSABLE from `shown` where the code needs their room.
        """
        for name in DISPENSABLE:
            column = self.headings.index(name)
            if self._code_room() < min(CODE, self.longest) and column in self.shown:
                self.shown.remove(column)
        code_width = min(self._code_room(), self.longest)
        if code_width < min(NARROW, self.longest):
            return self._draw_narrow()
        return self._draw_wide(self.number_width + 2 + code_width)

    def _code_room(self) -> int:
        """Characters that the columns which are shown leave for code."""
        columns = sum(self.column_widths[column] + 2 for column in self.shown)
        return self.width - self.number_width - 2 - columns

    def _code_line(self, row: LineRow) -> str:
        return f"{row.number or '':>{self.number_width}}  {row.code}"

    def _draw_wide(self, first_width: int) -> list[str]:
        """The lines with the figures beside the code."""
        lines = []
        for file, rows in self.files.items():
            lines.append(self._line(file, self.headings, first_width))
            for row in rows:
                lines.append(self._line(self._code_line(row), row.cells, first_width))
        lines.append(self._line("total", self.sums, first_width))
        return lines

    def _line(self, text: str, cells: Sequence[str], first_width: int) -> str:
        line = cut(text, first_width).ljust(first_width)
        for column in self.shown:
            line += f"  {cells[column]:>{self.column_widths[column]}}"
        return line.rstrip()

    def _draw_narrow(self) -> list[str]:
        """The lines with the figures below the code."""
        lines = []
        for file, rows in self.files.items():
            lines.append(cut(file, self.width))
            for row in rows:
                lines.append(cut(self._code_line(row).rstrip(), self.width))
                lines += self._figures(row.cells)
        return [*lines, "total", *self._figures(self.sums, all_columns=True)]

    def _figures(self, cells: Sequence[str], all_columns: bool = False) -> list[str]:
        """The cells with their headings, in indented lines.

        A line never ends between a figure and its heading. `all_columns` adds those that are not
        shown.
        """
        figures = []
        for column, heading in enumerate(self.headings):
            if cells[column] and (all_columns or column in self.shown):
                figures.append(f"{heading} {cells[column]}".replace(" ", "\xa0"))
        indent = self.number_width + 4
        wrapped = textwrap.wrap(
            ", ".join(figures),
            max(self.width - indent, 20),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [" " * indent + text.replace("\xa0", " ") for text in wrapped]


TraceEvent = dict[str, Any]

PROCESS: Final = 1
HOST: Final = 1
COPIES: Final = 2
SYNCS: Final = 3
FIRST_DEVICE: Final = 4

# All in microseconds, the unit of the format. A ledger knows when something began, not how long it
# took: it is drawn until the next thing happened, but no longer than this, because the gap may be
# the student's own Python.
SHORTEST: Final = 1.0
LONGEST: Final = 10_000.0


def named_tracks(tracks: Mapping[int, str]) -> list[TraceEvent]:
    """The events that name tracks and put them in order."""
    events: list[TraceEvent] = []
    for tid, name in tracks.items():
        where: TraceEvent = {"ph": "M", "pid": PROCESS, "tid": tid, "ts": 0}
        events.append({"name": "thread_name", "args": {"name": name}, **where})
        events.append({"name": "thread_sort_index", "args": {"sort_index": tid}, **where})
    return events


def trace_of(records: Sequence[Record]) -> dict[str, list[TraceEvent]]:
    """The trace of the records, as Perfetto reads it: the names of its tracks, then the events."""
    tracks = {HOST: "host", COPIES: "copies", SYNCS: "synchronisations"}
    device_tracks: dict[str, int] = {}
    devices = sorted({r.device for r in records if isinstance(r, Operation)})
    for track, device in enumerate(devices, FIRST_DEVICE):
        tracks[track] = f"operations on {device}"
        device_tracks[device] = track
    events = named_tracks(tracks)
    events += _host_events([r for r in records if isinstance(r, Span)], _moments(records))
    events += _short_events(records, device_tracks)
    for record in records:
        if isinstance(record, ScalerCall):
            events.append(_event(record, "i", _microseconds(record.at), HOST, s="t"))
    for record in records:
        if isinstance(record, Operation | Allocation):
            events.append(_memory_event(record))
    return {"traceEvents": events}


def _memory_event(record: Operation | Allocation) -> TraceEvent:
    """A point of the curve of memory on a device."""
    return {
        "name": f"live bytes on {record.device}",
        "cat": "memory",
        "ph": "C",
        "ts": _microseconds(record.at),
        "pid": PROCESS,
        "tid": HOST,
        "args": {"bytes": record.live},
    }


def _host_events(spans: Sequence[Span], moments: Sequence[float]) -> list[TraceEvent]:
    """Passes and steps as slices, one inside the other.

    A slice never lasts longer than the one it began in.
    """
    events: list[TraceEvent] = []
    enclosing: list[float] = []  # ends of the spans around this one, outermost first
    for span in spans:
        start = _microseconds(span.at)
        while enclosing and enclosing[-1] <= start:
            enclosing.pop()
        # A span without an end raised; a span of another thread may outlive the one it is drawn
        # inside.
        end = moments[-1] if span.seconds is None else _microseconds(span.at + span.seconds)
        end = min([max(end, start + SHORTEST), *enclosing[-1:]])
        enclosing.append(end)
        events.append(_event(span, "X", start, HOST, dur=round(end - start, 3)))
    return events


def _short_events(records: Sequence[Record], device_tracks: dict[str, int]) -> list[TraceEvent]:
    """Operations, copies and synchronisations, one after the other on each track."""
    moments = _moments(records)
    free_from: dict[int, float] = {}
    events: list[TraceEvent] = []
    for record in records:
        match record:
            case Operation(device=device):
                tid = device_tracks[device]
            case Transfer():
                tid = COPIES
            case Sync():
                tid = SYNCS
            case _:
                continue
        began = _microseconds(record.at)
        # Slices that overlap without nesting are drawn wrongly, and two rows can be closer than the
        # shortest slice.
        start = max(began, free_from.get(tid, began))
        following = bisect_right(moments, began)
        end = moments[following] if following < len(moments) else start
        duration = min(max(end - start, SHORTEST), LONGEST)
        free_from[tid] = start + duration
        events.append(_event(record, "X", start, tid, dur=round(duration, 3)))
    return events


def _moments(records: Sequence[Record]) -> list[float]:
    """Every moment at which something began or ended."""
    ends = [r.at + r.seconds for r in records if isinstance(r, Span) and r.seconds is not None]
    return sorted(map(_microseconds, [*(r.at for r in records), *ends]))


def _event(record: Record, phase: str, start: float, tid: int, **more: Any) -> TraceEvent:
    """One event of the trace, with the title and the details of its record."""
    where = {"ph": phase, "ts": round(start, 3), "pid": PROCESS, "tid": tid}
    return {
        "name": title_of(record),
        "cat": _TITLES[type(record)][1],
        **where,
        **more,
        "args": details_of(record),
    }


# A record's title and category.
_TITLES: Final[dict[type[Record], tuple[str, str]]] = {
    Operation: ("{0.name}", "operation"),
    Transfer: ("{0.source} → {0.target}", "copy"),
    Sync: ("{0.what}", "sync"),
    Forward: ("{0.module}", "forward"),
    Backward: ("backward", "backward"),
    OptimizerStep: ("{0.optimizer}.step", "optimizer"),
    Collective: ("{0.name}", "collective"),
    ScalerCall: ("scaler.{0.call}", "scaler"),
    Allocation: ("allocation on {0.device}", "memory"),
}
# What a trace tells of a record besides its line: the names of its attributes, by the trace's.
_DETAILS: Final[dict[type[Record], dict[str, str]]] = {
    Operation: {"bytes": "bytes", "dtype": "autocast", "grad": "builds_graph"},
    Transfer: {"bytes": "bytes", "pinned": "pinned", "non_blocking": "non_blocking"},
    Sync: {"explicit": "explicit"},
    Collective: {"bytes": "bytes", "ranks": "ranks", "device": "device"},
    Forward: {"training": "training", "grad": "builds_graph", "devices": "devices"},
}


def title_of(record: Record) -> str:
    """The name of a record in a trace."""
    return _TITLES[type(record)][0].format(record)


def details_of(record: Record) -> TraceEvent:
    """The details of a record for a trace: its line, its index, and some of its attributes."""
    details: TraceEvent = {
        "site": None if record.site is None else str(record.site),
        "record": record.index,
    }
    details |= {key: getattr(record, name) for key, name in _DETAILS.get(type(record), {}).items()}
    return {key: value for key, value in details.items() if value is not None}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
