"""A table of a ledger with one row per source line, as data and as text."""

from __future__ import annotations

import linecache
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from virtual_cuda.ledger import questions
from virtual_cuda.ledger.names import SourceLine
from virtual_cuda.ledger.questions import Records
from virtual_cuda.ledger.records import Record
from virtual_cuda.ledger.texts import cut, duration, printable, short_size


class _Figure(NamedTuple):
    """What one column of the table tells."""

    ask: Callable[[Records], int]
    spell: Callable[[int], str]

    def cell(self, records: Records) -> str:
        """The text for these records; empty for 0."""
        figure = self.ask(records)
        if figure:
            return self.spell(figure)
        return ""


def _count_waits(records: Records) -> int:
    """The number of times that the host waited to read from a device."""
    return len(questions.waits(records))


def _count_operations(records: Records) -> int:
    """The number of operations that ran on devices."""
    return len(questions.operations(records))


COLUMNS: Final = {
    "to device": _Figure(questions.bytes_to_device, short_size),
    "to host": _Figure(questions.bytes_to_host, short_size),
    "waits": _Figure(_count_waits, str),
    "ops": _Figure(_count_operations, str),
    "allocated": _Figure(questions.allocated_bytes, short_size),
    "peak": _Figure(questions.peak_bytes, short_size),
}
# Instead of file and line: what no line of the user's caused.
NO_LINE: Final = ("(in libraries)", 0)
TIMES: Final = ("host", "GPU")  # the columns of modelled times


class ModelledSeconds(NamedTuple):
    """How long the host and the devices work on something, by the modelled clock."""

    host: float = 0.0
    device: float = 0.0


Spent = Mapping[int, ModelledSeconds]  # by the index of a record
Cells = tuple[str, ...]  # a text for each column


@dataclass(frozen=True)
class LineRow:
    """One line of code, and a text for each column; empty where there is nothing to tell."""

    number: int
    code: str
    cells: Cells


FileRows = Mapping[str, Sequence[LineRow]]  # the rows of each file


def columns_of(spent: Spent | None) -> Cells:
    """The headings of a table; modelled times, where there are any, come first."""
    if spent is None:
        return tuple(COLUMNS)
    return (*TIMES, *COLUMNS)


def line_rows(
    records: Records, file: str, code: Iterable[str], first: int = 1, spent: Spent | None = None
) -> list[LineRow]:
    """One row for every line of the code, which begins at line `first` of the file.

    `spent` has the modelled seconds by the index of a record; with it, rows have columns of times.
    """
    records_of_lines = records_by_line(records)
    rows = []
    for number, text in enumerate(code, first):
        of_line = records_of_lines[file, number]
        cells = totals(of_line, spent)
        rows.append(LineRow(number, text.rstrip(), cells))
    return rows


def records_by_line(records: Records) -> defaultdict[SourceLine, list[Record]]:
    """The records that each line caused; those without a line under NO_LINE.

    A line that caused none has an empty list.
    """
    found = defaultdict(list)
    for record in records:
        line = NO_LINE
        if record.site is not None:
            line = (record.site.file, record.site.line)
        found[line].append(record)
    return found


def totals(records: Records, spent: Spent | None = None) -> Cells:
    """A text for each column of `columns_of(spent)`, over all of the records.

    `spent` has the modelled seconds by the index of a record; None where no times are modelled.
    """
    cells = [figure.cell(records) for figure in COLUMNS.values()]
    if spent is None:
        return tuple(cells)
    host = 0.0
    device = 0.0
    for record in records:
        seconds = spent.get(record.index, ModelledSeconds())
        host += seconds.host
        device += seconds.device
    return (time_cell(host), time_cell(device), *cells)


def time_cell(seconds: float) -> str:
    """A time in words; "" for none."""
    if seconds:
        return duration(round(seconds * 1e9))
    return ""


DISPENSABLE: Final = ("peak", "ops")  # columns that give way to the code where there is little room
CODE: Final = 36  # characters of code that a table has room for, with all columns
NARROW: Final = 24  # with less, the figures are below the code


def file_rows(records: Records, spent: Spent | None = None) -> dict[str, list[LineRow]]:
    """The lines that did something on a device, in order, by file.

    Their code is read from the files. What no line of the user's did is in one row under NO_LINE,
    which stands for a file and its line. `spent` has the modelled seconds by the index of a record.
    """
    found: defaultdict[str, list[LineRow]] = defaultdict(list)
    by_line = sorted(records_by_line(records).items())
    for (file, number), of_line in by_line:
        cells = totals(of_line, spent)
        if not any(cells):
            continue
        code = linecache.getline(file, number).strip()
        row = LineRow(number, printable(code), cells)
        found[file].append(row)
    return dict(found)


def draw_table(
    files: FileRows,
    sums: Sequence[str],
    width: int,
    headings: Sequence[str] = tuple(COLUMNS),
) -> list[str]:
    """The lines of a table, at most `width` characters wide.

    Columns without any figure are left out. `sums` are the cells of the last line, the total.
    `headings` name the cells of all rows. Raises ValueError where they lack "peak" or "ops".
    """
    return _Table(files, sums, width, headings).draw()


class _Table:
    """Rows of files to be drawn, and how wide its columns are."""

    def __init__(
        self,
        files: FileRows,
        sums: Sequence[str],
        width: int,
        headings: Sequence[str],
    ) -> None:
        """Measure the columns, and choose those that have a figure."""
        self.files = files
        self.sums = sums
        self.width = width
        self.headings = headings
        rows: list[LineRow] = []
        for rows_of_file in files.values():
            rows += rows_of_file
        last_number = max([row.number for row in rows], default=0)
        self.number_width = 2 + len(str(last_number))
        # The longest code, or the name of a file beside it.
        longest_code = _length_of_longest([row.code for row in rows])
        longest_file = _length_of_longest(files)
        self.longest = max(longest_code, longest_file - self.number_width - 2)
        # The columns with a figure are shown.
        self.column_widths: list[int] = []
        self.shown: list[int] = []
        for column, heading in enumerate(headings):
            cells = [row.cells[column] for row in rows]
            cells.append(sums[column])
            width = _length_of_longest([heading, *cells])
            self.column_widths.append(width)
            if any(cells):
                self.shown.append(column)

    def draw(self) -> list[str]:
        """The lines of the table.

        Figures stand beside the code, or below it where the code would have too little room. Drops
        the columns of DISPENSABLE from `shown` where the code needs their room. Raises ValueError
        where there is no such column.
        """
        wanted_room = min(CODE, self.longest)
        for name in DISPENSABLE:
            column = self.headings.index(name)
            if column in self.shown and self._code_room() < wanted_room:
                self.shown.remove(column)
        code_width = min(self._code_room(), self.longest)
        if code_width < min(NARROW, self.longest):
            return self._draw_narrow()
        return self._draw_wide(self.number_width + 2 + code_width)

    def _code_room(self) -> int:
        """Characters that the columns which are shown leave for code."""
        room = self.width - self.number_width - 2
        for column in self.shown:
            room -= self.column_widths[column] + 2
        return room

    def _code_line(self, row: LineRow) -> str:
        """The number and the code of a row; the number 0 is not written."""
        number = str(row.number or "")
        return f"{number.rjust(self.number_width)}  {row.code}"

    def _draw_wide(self, first_width: int) -> list[str]:
        """The lines with the figures beside the code, which is `first_width` characters wide."""
        lines = []
        for file, rows in self.files.items():
            lines.append(self._wide_line(file, self.headings, first_width))
            for row in rows:
                code = self._code_line(row)
                lines.append(self._wide_line(code, row.cells, first_width))
        lines.append(self._wide_line("total", self.sums, first_width))
        return lines

    def _wide_line(self, text: str, cells: Sequence[str], first_width: int) -> str:
        """A text, and beside it the cells of the columns that are shown."""
        line = cut(text, first_width).ljust(first_width)
        for column in self.shown:
            width = self.column_widths[column]
            line += f"  {cells[column]:>{width}}"
        return line.rstrip()

    def _draw_narrow(self) -> list[str]:
        """The lines with the figures below the code."""
        lines = []
        for file, rows in self.files.items():
            lines.append(cut(file, self.width))
            for row in rows:
                code = self._code_line(row).rstrip()
                lines.append(cut(code, self.width))
                lines += self._figure_lines(row.cells)
        lines.append("total")
        lines += self._figure_lines(self.sums, all_columns=True)
        return lines

    def _figure_lines(self, cells: Sequence[str], all_columns: bool = False) -> list[str]:
        """The cells with their headings, in indented lines.

        A line never ends between a figure and its heading. `all_columns` adds those that are not
        shown.
        """
        figures = []
        for column, heading in enumerate(self.headings):
            is_shown = all_columns or column in self.shown
            if is_shown and cells[column]:
                figure = f"{heading} {cells[column]}"
                figures.append(figure.replace(" ", "\xa0"))
        indent = " " * (self.number_width + 4)
        lines = textwrap.wrap(
            ", ".join(figures),
            width=max(self.width - len(indent), 20),
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [indent + line.replace("\xa0", " ") for line in lines]


def _length_of_longest(texts: Iterable[str]) -> int:
    """The length of the longest text; 0 where there is none."""
    return max([len(text) for text in texts], default=0)
