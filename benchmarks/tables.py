"""The table that a benchmark prints: title, date, machine, columns, notes; also as Markdown.

Every benchmark prints through here, so that its table can be pasted into a page as it is.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from rich.console import Console
from rich.table import Table as RichTable

_ARCHITECTURES: Final = {"aarch64": "ARM", "arm64": "ARM", "x86_64": "x86", "AMD64": "x86"}


def core_count() -> int:
    """Processors this process may use; not every system lets one ask for its own."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_machine() -> str:
    """What the figures were measured on, without a name that says whose machine it is."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    torch_version = importlib.metadata.version("torch").split("+")[0]
    hardware = f"{core_count()}-core {architecture}, {platform.system()}"
    return f"{hardware}, Python {platform.python_version()}, torch {torch_version}"


def date_of_today() -> str:
    return datetime.date.today().isoformat()


def format_ratio(ratio: float) -> str:
    """A ratio in three digits or so: 0.05 ×, 1.17 ×, 18.7 ×, 240 ×."""
    if ratio < 10:
        return f"{ratio:.2f} ×"
    if ratio < 100:
        return f"{ratio:.1f} ×"
    return f"{ratio:.0f} ×"


@dataclass
class Table:
    """Rows of text under a title.

    The first column says what was measured, the others are figures.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    words: tuple[str, ...] = ()  # columns that hold words and are set to the left, as the first is

    def add(self, *cells: str) -> None:
        """Add a row. Raises ValueError for another number of cells than of columns."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"{len(cells)} cells for the {len(self.columns)} columns of {self.title!r}"
            )
        self.rows.append(cells)

    def markdown(self, date: str, where: str) -> str:
        """The table as a README shows it, with date and machine below."""
        rules = ["---" if self._is_left_aligned(name) else "---:" for name in self.columns]
        lines = [f"{self.title}:", ""]
        for cells in (self.columns, rules, *self.rows):
            lines.append(_markdown_line(cells))
        notes = " ".join([f"{date}, {where}.", *self.notes])
        lines += ["", notes]
        return "\n".join(lines)

    def rich_table(self) -> RichTable:
        """The table as a terminal shows it, without date, machine and notes."""
        table = RichTable(title=self.title, title_justify="left")
        for column in self.columns:
            justify: Literal["left", "right"] = "right"
            if self._is_left_aligned(column):
                justify = "left"
            table.add_column(column, justify=justify, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def _is_left_aligned(self, column: str) -> bool:
        return column == self.columns[0] or column in self.words

    def show(self, markdown: bool) -> None:
        """Print the table with date, machine and notes."""
        if markdown:
            print(self.markdown(date_of_today(), describe_machine()))
            return
        # Without a terminal there is no width to keep to: a file is read by scrolling.
        width = 160
        if Console().is_terminal:
            width = None
        console = Console(width=width, highlight=False)
        console.print(self.rich_table())
        for line in (f"{date_of_today()}, {describe_machine()}", *self.notes):
            console.print(line, markup=False)


def _markdown_line(cells: Iterable[str]) -> str:
    plain_cells = [cell.replace("|", "/") for cell in cells]
    return f"| {' | '.join(plain_cells)} |"


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks have: `--markdown`, and the file's sentences as help."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the table as Markdown, as in the docs"
    )
    return parser
