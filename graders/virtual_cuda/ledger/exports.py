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
from virtual_cuda.ledger.timeline import cut, duration, size
from virtual_cuda.ledger.timeline import shown as printable


def _size(bytes_: int) -> str:
    return size(bytes_) if bytes_ else ""


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
    """The headings of a table: with modelled times, those come first."""
    return (*(TIMES if spent is not None else ()), *COLUMNS)


@dataclass(frozen=True)
class LineRow:
    """One line of code, and a text for each column; empty where there is nothing to tell."""

    number: int
    code: str
    cells: tuple[str, ...]


def line_rows(
    records: Records, file: str, code: Iterable[str], first: int = 1, spent: Spent | None = None
) -> list[LineRow]:
    """A row for every line of the code, which begins at line `first` of the file."""
    found = by_line(records)
    return [
        LineRow(number, text.rstrip(), totals(found.get((file, number), ()), spent))
        for number, text in enumerate(code, first)
    ]


def by_line(records: Records) -> dict[SourceLine | None, list[Record]]:
    """The records that each line caused, in one pass; those without a line under None."""
    found: dict[SourceLine | None, list[Record]] = {}
    for record in records:
        site = record.site
        found.setdefault(None if site is None else (site.file, site.line), []).append(record)
    return found


def totals(records: Records, spent: Spent | None = None) -> tuple[str, ...]:
    """A text for each column, over all of the records."""
    counted = tuple(answer(records) for answer in COLUMNS.values())
    if spent is None:
        return counted
    sums = [
        sum(spent.get(record.index, (0.0, 0.0))[lane] for record in records)
        for lane in range(len(TIMES))
    ]
    return (*(duration(round(seconds * 1e9)) if seconds else "" for seconds in sums), *counted)


ELSEWHERE: Final = "(in libraries)"  # instead of a file: what no line of the user's caused
DISPENSABLE: Final = ("peak", "ops")  # columns that give way to the code where there is little room
CODE: Final = 36  # characters of code that a table has room for, with all columns
NARROW: Final = 24  # with less, the figures are below the code


def file_rows(records: Records, spent: Spent | None = None) -> dict[str, list[LineRow]]:
    """The lines that did something on a device, in order, by file."""
    found: dict[str, list[LineRow]] = {}
    lines = by_line(records)
    for place in sorted(lines, key=lambda place: place or (ELSEWHERE, 0)):
        file, number = place or (ELSEWHERE, 0)
        row = LineRow(
            number, printable(linecache.getline(file, number).strip()), totals(lines[place], spent)
        )
        if any(row.cells):
            found.setdefault(file, []).append(row)
    return found


def draw_table(
    files: Mapping[str, Sequence[LineRow]],
    sums: Sequence[str],
    width: int,
    headings: Sequence[str] = tuple(COLUMNS),
) -> list[str]:
    """The lines of a table, at most `width` characters wide; columns without any figure are left out."""
    rows = [row for each in files.values() for row in each]
    wide = [
        max(len(text) for text in (h, sums[i], *(r.cells[i] for r in rows)))
        for i, h in enumerate(headings)
    ]
    shown = [i for i, _ in enumerate(headings) if sums[i] or any(row.cells[i] for row in rows)]
    number = max([len(str(row.number)) for row in rows], default=1) + 2
    longest = max(
        [*(len(file) - number - 2 for file in files), *(len(row.code) for row in rows)], default=0
    )

    def room() -> int:
        return width - number - 2 - sum(wide[i] + 2 for i in shown)

    for name in DISPENSABLE:
        if room() < min(CODE, longest) and headings.index(name) in shown:
            shown.remove(headings.index(name))
    code = min(room(), longest)
    lines: list[str] = []
    if code < min(NARROW, longest):
        for file, found in files.items():
            lines.append(cut(file, width))
            for row in found:
                lines.append(cut(f"{row.number or '':>{number}}  {row.code}".rstrip(), width))
                cells = [row.cells[i] if i in shown else "" for i in range(len(wide))]
                lines += _figures(headings, cells, number + 4, width)
        return [*lines, "total", *_figures(headings, sums, number + 4, width)]
    first = number + 2 + code

    def line(text: str, cells: Sequence[str]) -> str:
        return (
            cut(text, first).ljust(first) + "".join(f"  {cells[i]:>{wide[i]}}" for i in shown)
        ).rstrip()

    for file, found in files.items():
        lines.append(line(file, headings))
        lines += [line(f"{row.number or '':>{number}}  {row.code}", row.cells) for row in found]
    return [*lines, line("total", sums)]


def _figures(headings: Sequence[str], cells: Sequence[str], indent: int, width: int) -> list[str]:
    pairs = zip(headings, cells, strict=True)
    told = ", ".join(f"{h}\N{NO-BREAK SPACE}{c}".replace(" ", "\xa0") for h, c in pairs if c)
    wrapped = textwrap.wrap(
        told, max(width - indent, 20), break_long_words=False, break_on_hyphens=False
    )
    return [" " * indent + text.replace("\xa0", " ") for text in wrapped]


TraceEvent = dict[str, Any]

PROCESS: Final = 1
HOST: Final = 1
COPIES: Final = 2
SYNCS: Final = 3
FIRST_DEVICE: Final = 4

# All in microseconds, the unit of the format. A ledger knows when something began, not how long it took: it is
# drawn until the next thing happened, but no longer than this, because the gap may be the student's own Python.
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
    """The trace events of the records, track names first."""
    devices = sorted({r.device for r in records if isinstance(r, Operation)})
    tracks = {HOST: "host", COPIES: "copies", SYNCS: "synchronisations"}
    tracks |= {tid: f"operations on {device}" for tid, device in enumerate(devices, FIRST_DEVICE)}
    device_tracks = {device: tid for tid, device in enumerate(devices, FIRST_DEVICE)}
    events = named_tracks(tracks)
    events += _host_events([r for r in records if isinstance(r, Span)], _moments(records))
    events += _short_events(records, device_tracks)
    events += [
        _event(r, "i", _microseconds(r.at), HOST, s="t")
        for r in records
        if isinstance(r, ScalerCall)
    ]
    for record in records:
        if isinstance(record, Operation | Allocation):
            where = {"ph": "C", "ts": _microseconds(record.at), "pid": PROCESS, "tid": HOST}
            title = {"name": f"live bytes on {record.device}", "cat": "memory"}
            events.append({**title, **where, "args": {"bytes": record.live}})
    return {"traceEvents": events}


def _host_events(spans: Sequence[Span], moments: Sequence[float]) -> list[TraceEvent]:
    """Passes and steps as nested slices: one never sticks out of the one it began in."""
    events: list[TraceEvent] = []
    enclosing: list[float] = []  # ends of the spans around this one, outermost first
    for span in spans:
        start = _microseconds(span.at)
        while enclosing and enclosing[-1] <= start:
            enclosing.pop()
        # A span without an end raised; a span of another thread may outlive the one it is drawn inside.
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
        # Slices that overlap without nesting are drawn wrongly, and two rows can be closer than the shortest slice.
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
    """What a trace tells of a record: its line, its index, and some of its attributes."""
    details: TraceEvent = {
        "site": None if record.site is None else str(record.site),
        "record": record.index,
    }
    details |= {key: getattr(record, name) for key, name in _DETAILS.get(type(record), {}).items()}
    return {key: value for key, value in details.items() if value is not None}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
