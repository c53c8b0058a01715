"""How is a measurement shown? One table: title, date, machine, columns, notes; in a terminal or as Markdown.

Every benchmark prints through here, so that its table can be pasted into the README as it is.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table as Drawn


def cores() -> int:
    """Processors this process may use; not every system lets one ask for its own."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> str:
    """What the figures were measured on, without a name that says whose machine it is."""
    architecture = {"aarch64": "ARM", "arm64": "ARM", "x86_64": "x86", "AMD64": "x86"}.get(
        platform.machine()
    )
    found = f"{cores()}-core {architecture or platform.machine()}, {platform.system()}"
    return f"{found}, Python {platform.python_version()}, torch {importlib.metadata.version('torch').split('+')[0]}"


def today() -> str:
    return datetime.date.today().isoformat()


def times(ratio: float) -> str:
    """A ratio in three digits or so: 0.05 ×, 1.17 ×, 18.7 ×, 240 ×."""
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"{ratio:.{digits}f} ×"


@dataclass
class Table:
    """Rows of text under a title; the first column says what was measured, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    words: tuple[str, ...] = ()  # columns that hold words and are set to the left, as the first is

    def add(self, *cells: str) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(
                f"{len(cells)} cells for the {len(self.columns)} columns of {self.title!r}"
            )
        self.rows.append(cells)

    def markdown(self, date: str, where: str) -> str:
        """The table as a README shows it, with date and machine below."""
        lines = [
            f"{self.title}:",
            "",
            _line(self.columns),
            _line("---" if self._left(c) else "---:" for c in self.columns),
        ]
        lines += [_line(row) for row in self.rows]
        lines += ["", " ".join([f"{date}, {where}.", *self.notes])]
        return "\n".join(lines)

    def drawn(self) -> Drawn:
        table = Drawn(title=self.title, title_justify="left")
        for column in self.columns:
            table.add_column(
                column, justify="left" if self._left(column) else "right", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table

    def _left(self, column: str) -> bool:
        return column == self.columns[0] or column in self.words

    def show(self, markdown: bool) -> None:
        if markdown:
            print(self.markdown(today(), machine()))
        else:
            # Without a terminal there is no width to keep to: a file is read by scrolling.
            console = Console(width=None if Console().is_terminal else 160, highlight=False)
            console.print(self.drawn())
            for line in (f"{today()}, {machine()}", *self.notes):
                console.print(line, markup=False)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what all benchmarks have: the file's own sentences as help, and `--markdown`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the table as Markdown, as in the README"
    )
    return parser
