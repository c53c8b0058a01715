"""A session without a kernel: cells are compiled and remembered as in IPython."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Iterator
from typing import Any

import pytest
from gpudojo.notebook import make_report
from gpudojo.notebook.reports import CheckReport

_numbers = itertools.count(1)


class Session:
    """A namespace, and cells run in it."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "In": [""]}
        self.files: list[str] = []

    def run(self, *cells: str) -> None:
        for cell in cells:
            file = f"<cell {next(_numbers)} of a test>"
            linecache.cache[file] = (len(cell), None, cell.splitlines(True), file)
            self.files.append(file)
            self.names["In"].append(cell)
            exec(compile(cell, file, "exec"), self.names)

    def check(self, *names: str, **options: Any) -> CheckReport:
        return make_report(*(self.names[name] for name in names), namespace=self.names, **options)


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    yield made
    for file in made.files:
        linecache.cache.pop(file, None)
