"""What did a student's function move where, line by line? The ledger of its busiest call, kept while probes look."""

from __future__ import annotations

import copy
import dataclasses
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graders.bench.ledger import questions
from graders.bench.ledger.by_line import LineRow, in_all, line_rows
from graders.curriculum.exercise import Function
from graders.notebook_view.live import Live, cell_name
from graders.probes.calling import Call

if TYPE_CHECKING:
    from graders.bench.ledger import Ledger, Record


@dataclass(frozen=True)
class Moves:
    """A row for every line of the function, and for what it called in other cells."""

    rows: tuple[LineRow, ...]
    elsewhere: tuple[tuple[str, LineRow], ...]  # by the name of the cell
    sums: tuple[str, ...]
    waits: tuple[tuple[int, int], ...]  # line and how often, where the host waited more than once
    device: str


class _Watched(Call):
    """A call that remembers the ledgers of all its calls, not only of the last one."""

    ledgers: list[Ledger]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.ledgers.append(self.ledger)


class Watch:
    """Sees the calls that probes make, and keeps the records of the busiest."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.records: tuple[Record, ...] = ()
        self.device = ""
        self._weight = (0, 0)

    def over(self, function: Function) -> Function:
        """The same function, its probes watched."""
        probes = [dataclasses.replace(probe, look=self._watched(probe.look)) for probe in function.probes]
        return dataclasses.replace(function, probes=probes)

    def _watched(self, look: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        def watched(call: Any) -> dict[str, Any]:
            if not isinstance(call, Call):  # a value, as in the self-assessment
                return look(call)
            watching = copy.copy(call)
            watching.__class__ = _Watched
            assert isinstance(watching, _Watched)
            watching.ledgers = []
            try:
                return look(watching)
            finally:
                for ledger in watching.ledgers:
                    self._weigh(ledger.records, str(call.device))

        return watched

    def _weigh(self, records: Sequence[Record], device: str) -> None:
        own = tuple(record for record in records if record.site is not None)
        if not questions.per_line(own) or self.live.file not in {record.site.file for record in own if record.site}:
            return
        weight = questions.bytes_to_device(own) + questions.bytes_to_host(own), len(own)
        if weight > self._weight:
            self._weight, self.records, self.device = weight, own, device

    def moves(self) -> Moves | None:
        """None where the function had nothing to do with a device."""
        sums = in_all(self.records)
        if not any(sums):
            return None
        rows = line_rows(self.records, self.live.file, self.live.source, self.live.first)
        elsewhere = [
            (cell_name(file), row)
            for file, line in sorted(questions.per_line(self.records))
            if file != self.live.file
            for row in line_rows(self.records, file, [linecache.getline(file, line)], line)
            if any(row.cells)
        ]
        waits = questions.hot_lines(questions.syncs(self.records), at_least=2)
        here = tuple((line, count) for (file, line), count in waits.items() if file == self.live.file)
        return Moves(tuple(rows), tuple(elsewhere), sums, here, self.device)
