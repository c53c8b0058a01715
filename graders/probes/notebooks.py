"""What does a notebook say as one Python file? Its code cells one below the other, without magics and shell lines.

Lines are numbered through, as if the code cells were one file, so that the ledger, tracebacks and evidence need
no other notion of a place; `Notebook.place` turns such a line into a cell and a line for the reader.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SUFFIX: Final = ".ipynb"
# `%timeit f()`, `!pip install x`, `?f`, `f?`, `files = !ls`: what IPython understands and Python does not.
MAGIC: Final = re.compile(r"\s*[%!?]|.*\?\s*$|\s*[\w.,\s]+=\s*[%!]")
# For each magic the cell is parsed once more, at a hundred times its size; and the pattern backtracks on long lines.
MAGICS: Final = 100
LARGEST: Final = 400_000
LONGEST: Final = 2000
_BOUND: Final = re.compile(r"^def (\w+)|^(\w+)\s*=", re.M)
# Cell magics below which there is Python all the same; the text below any other is not.
PYTHON: Final = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python3", "%%python")


class NotANotebook(ValueError):
    """The file cannot be read as a notebook."""


@dataclass(frozen=True)
class Cell:
    number: int  # among the code cells, from 1
    first: int  # the line of the whole at which it begins
    source: str  # with the lines that are not Python left empty


@dataclass(frozen=True)
class Notebook:
    cells: tuple[Cell, ...]

    @property
    def source(self) -> str:
        return "\n".join(cell.source for cell in self.cells) + "\n"

    def place(self, line: int) -> tuple[int, int]:
        """The code cell, and the line in it, of a line of the whole."""
        cell = next((c for c in reversed(self.cells) if c.first <= line), None)
        return (cell.number, line - cell.first + 1) if cell else (0, line)

    def defined(self) -> set[str]:
        """The names bound at the top level of its cells."""
        found: set[str] = set()
        for cell in self.cells:
            try:
                tree = ast.parse(cell.source)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                found |= {name for pair in _BOUND.findall(cell.source) for name in pair if name}
                continue
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found.add(node.name)
                elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    found |= {target.id for target in targets if isinstance(target, ast.Name)}
        return found


def read(path: Path) -> Notebook:
    """A notebook file's code; NotANotebook where it is none."""
    return parse(path.read_bytes())


def parse(data: bytes) -> Notebook:
    """A notebook's code, from its bytes; NotANotebook where they are none."""
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing cell ids and the like: nothing a student could mend
            content: Any = nbformat.reads(data.decode("utf-8-sig"), as_version=4)  # type: ignore[no-untyped-call]
        sources = [str(cell.source) for cell in content.cells if cell.cell_type == "code"]
    except UnicodeDecodeError as error:
        raise NotANotebook(f"it is not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}") from None
    except Exception as error:  # nbformat lets through what json, its validators and its converters raise
        reason = (str(error).splitlines() or [""])[0][:200]
        raise NotANotebook(f"it is not a notebook ({type(error).__name__}: {reason})") from None
    cells, line = [], 1
    for number, source in enumerate(sources, 1):
        plain = without_magics(source)
        cells.append(Cell(number, line, plain))
        line += plain.count("\n") + 1
    return Notebook(tuple(cells))


def without_magics(source: str) -> str:
    """A cell as Python, line for line; a real syntax error is left for the compiler to name."""
    lines = source.splitlines() or [""]
    head = next((i for i, text in enumerate(lines) if text.strip()), 0)
    if lines[head].startswith("%%"):
        if lines[head].split()[0] not in PYTHON:
            return "\n" * (len(lines) - 1)
        lines[head] = ""
    for _ in range(min(len(lines), MAGICS) if len(source) <= LARGEST else 0):
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # Only where Python stumbles, so that a text which looks like a magic inside a string is left alone.
            at = (error.lineno or 0) - 1
            if not (0 <= at < len(lines) and len(lines[at]) <= LONGEST and MAGIC.match(lines[at])):
                break
            text = lines[at]
            indent = text[: len(text) - len(text.lstrip())]
            lines[at] = f"{indent}pass" if indent else ""
        except (ValueError, RecursionError, MemoryError):
            break
        else:
            break
    return "\n".join(lines)
