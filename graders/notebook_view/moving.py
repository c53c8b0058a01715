"""What did a student's function move where, line by line? What its busiest call did, as a table."""

from __future__ import annotations

import linecache
from dataclasses import dataclass

from graders.bench.ledger import questions
from graders.bench.ledger.by_line import LineRow, in_all, line_rows
from graders.notebook_view.live import Live, cell_name
from graders.probes.watching import Busiest


@dataclass(frozen=True)
class Moves:
    """A row for every line of the function, and for what it called in other cells."""

    rows: tuple[LineRow, ...]
    elsewhere: tuple[tuple[str, LineRow], ...]  # by the name of the cell
    sums: tuple[str, ...]
    waits: tuple[tuple[int, int], ...]  # line and how often, where the host waited more than once
    device: str


def moves(busiest: Busiest, live: Live) -> Moves | None:
    """None where the function had nothing to do with a device."""
    records = tuple(record for record in busiest.records if record.site is not None)
    sums = in_all(records)
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
    return Moves(tuple(rows), tuple(elsewhere), sums, here, busiest.device)
