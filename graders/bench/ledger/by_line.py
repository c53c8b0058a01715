"""What did each line of some code cause? A row per line: what it moved where, how often the host waited, its peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from graders.bench.ledger import questions
from graders.bench.ledger.records import Record
from graders.bench.sizes import format_size

Records = Sequence[Record]


def _size(bytes_: int) -> str:
    return format_size(bytes_) if bytes_ else ""


def _number(count: int) -> str:
    return str(count) if count else ""


COLUMNS: Final[dict[str, Callable[[Records], str]]] = {
    "to device": lambda records: _size(questions.bytes_to_device(records)),
    "to host": lambda records: _size(questions.bytes_to_host(records)),
    "syncs": lambda records: _number(len(questions.syncs(records))),
    "ops": lambda records: _number(len(questions.operations(records))),
    "peak": lambda records: _size(questions.peak_bytes(records)),
}


@dataclass(frozen=True)
class LineRow:
    """One line of code, and a text for each column; empty where there is nothing to tell."""

    number: int
    code: str
    cells: tuple[str, ...]


def line_rows(records: Records, file: str, code: Iterable[str], first: int = 1) -> list[LineRow]:
    """A row for every line of the code, which begins at line `first` of the file."""
    return [
        LineRow(number, text.rstrip(), in_all(questions.on_line(records, file, number)))
        for number, text in enumerate(code, first)
    ]


def in_all(records: Records) -> tuple[str, ...]:
    """A text for each column, over all of the records."""
    return tuple(answer(records) for answer in COLUMNS.values())
