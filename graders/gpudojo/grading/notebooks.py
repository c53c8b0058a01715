"""Reads the code of notebooks: their cells as Python, without what only IPython understands."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path
from typing import Any, Final

import msgspec

NOTEBOOK_SUFFIX: Final = ".ipynb"
# `%timeit f()`, `!pip install x`, `?f`, `f?`, `files = !ls`: what IPython understands and Python
# does not.
_MAGIC: Final = re.compile(r"\s*[%!?]|.*\?\s*$|\s*[\w.,\s]+=\s*[%!]")
# Cell magics below which there is Python all the same; the text below any other is not.
_PYTHON_MAGICS: Final = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python3", "%%python")
# For each magic the cell is parsed once more, at a hundred times its size, and the pattern
# backtracks on long lines: so there are limits.
_MOST_MAGICS: Final = 100
_LARGEST_CELL: Final = 400_000  # characters
_LONGEST_LINE: Final = 2000


class NotANotebook(ValueError):
    """The file cannot be read as a notebook."""


class Cell(msgspec.Struct, frozen=True):
    """A code cell of a notebook."""

    number: int  # among the code cells, from 1
    first: int  # the line of the whole at which it begins
    source: str  # with the lines that are not Python left empty


class Notebook(msgspec.Struct, frozen=True):
    """The code cells of a notebook, which together count as one source."""

    cells: tuple[Cell, ...]

    @property
    def source(self) -> str:
        """The code of all cells, one after the other, each with a line end."""
        sources = [f"{cell.source}\n" for cell in self.cells]
        return "".join(sources) or "\n"

    def place_of_line(self, line: int) -> tuple[int, int]:
        """The number of the code cell, and the line in it, of a line of the whole.

        The number is 0 for a line before the first cell.
        """
        for cell in reversed(self.cells):
            lines_before = cell.first - 1
            if line > lines_before:
                return cell.number, line - lines_before
        return 0, line


def read_notebook(path: Path) -> Notebook:
    """The code of a notebook file. Raises NotANotebook where it is none, and OSError."""
    return parse_notebook(path.read_bytes())


def parse_notebook(data: bytes) -> Notebook:
    """The code of a notebook, from its bytes. Raises NotANotebook where they are none.

    Lines of the whole are counted from 1 over all code cells; magics of IPython are left out.
    """
    cells = []
    line = 1
    for number, source in enumerate(_sources_of_cells(data), 1):
        python = without_magics(source)
        cells.append(Cell(number, line, python))
        line += python.count("\n") + 1
    return Notebook(tuple(cells))


def _sources_of_cells(data: bytes) -> list[str]:
    """The text of each code cell, in order. Raises NotANotebook, with the reason as its text."""
    import nbformat

    sources = []
    try:
        text = data.decode("utf-8-sig")
        with warnings.catch_warnings():
            # About missing cell ids and the like: nothing a student could mend.
            warnings.simplefilter("ignore")
            content: Any = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
        for cell in content.cells:
            if cell.cell_type == "code":
                sources.append(str(cell.source))
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        where = f"byte {byte:#04x} at {error.start}"
        raise NotANotebook(f"it is not UTF-8 text: {where}") from None
    except Exception as error:
        # nbformat lets through what json, its validators and its converters raise.
        kind = type(error).__name__
        first_line, *_ = str(error).splitlines() or [""]
        raise NotANotebook(f"it is not a notebook ({kind}: {first_line[:200]})") from None
    return sources


def without_magics(source: str) -> str:
    """A cell as Python, line for line: magics are emptied, or `pass` where they are indented.

    A real syntax error is left for the compiler to name. Magics are looked for only where Python
    stumbles, so that a text in a string that looks like one is left alone.
    """
    lines = source.splitlines() or [""]
    # A magic of the whole cell, in the first line that is not empty.
    head = 0
    while head + 1 < len(lines) and not lines[head].strip():
        head += 1
    if lines[head].startswith("%%"):
        magic = lines[head].split()[0]
        if magic not in _PYTHON_MAGICS:
            return "\n" * (len(lines) - 1)
        lines[head] = ""
    if len(source) > _LARGEST_CELL:
        return "\n".join(lines)
    for _ in range(min(len(lines), _MOST_MAGICS)):
        index = _line_of_syntax_error(lines)
        if index is None or not _is_magic(lines[index]):
            break
        magic = lines[index].lstrip()
        indent = lines[index].removesuffix(magic)
        lines[index] = ""
        if indent:
            lines[index] = f"{indent}pass"
    return "\n".join(lines)


def _line_of_syntax_error(lines: list[str]) -> int | None:
    """The index of the line at which Python stumbles.

    Returns None where it does not, or tells no line.
    """
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        index = (error.lineno or 0) - 1
        if 0 <= index < len(lines):
            return index
    except (ValueError, RecursionError, MemoryError):
        pass  # it tells no line
    return None


def _is_magic(line: str) -> bool:
    """True for a line that only IPython understands. A very long one is not looked at."""
    if len(line) > _LONGEST_LINE:
        return False
    return _MAGIC.match(line) is not None
