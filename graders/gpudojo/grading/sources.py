"""Reads the source of a student's file or notebook, and parses it. Nothing is run here."""

from __future__ import annotations

import ast
import atexit
import contextlib
import io
import json
import linecache
import os
import tempfile
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from gpudojo.grading.notebooks import NOTEBOOK_SUFFIX, NotANotebook, read_notebook
from gpudojo.model.evidence import Raised

# Names a file with the cells of a notebook session that is being checked.
CELLS_VARIABLE: Final = "GPUDOJO_CELLS"


class SourceText(NamedTuple):
    """The text of a file, or of one cell of a notebook."""

    text: str
    first_line: int  # the line of the whole at which it begins


Trees = dict[tuple[str, int], ast.Module]  # by `SourceText`


class Unparsable(Exception):
    """The file is no Python."""

    def __init__(self, message: str, line: int | None, kind: str = "SyntaxError") -> None:
        """`line` is the line that is wrong, if it is known; `kind` the name of Python's error."""
        super().__init__(message)
        self.evidence = Raised(kind, message, line)


def leave_cells(name: str, texts: Sequence[str]) -> None:
    """Leave the texts that have to be run, in order, for the cell of this name.

    They are written to a temporary file, which an environment variable names for other processes;
    it is removed when this process ends. The lines of each text count from 1. Raises OSError if it
    cannot be written.
    """
    place = os.environ.get(CELLS_VARIABLE)
    if place is None or not Path(place).is_file():
        descriptor, place = tempfile.mkstemp(suffix=".json", prefix="gpudojo-cells-")
        os.close(descriptor)
        os.environ[CELLS_VARIABLE] = place
        atexit.register(Path(place).unlink, missing_ok=True)
    content = {"name": name, "texts": list(texts)}
    Path(place).write_text(json.dumps(content), encoding="utf-8")


def cells_left_for(path: Path) -> list[str] | None:
    """The texts that `leave_cells` left in a file for the cell whose name is this path.

    Returns None where nothing was left, it was for another cell, or the file cannot be read.
    """
    place = os.environ.get(CELLS_VARIABLE)
    if place is None:
        return None
    try:
        content = json.loads(Path(place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if content["name"] != str(path):
        return None
    return list(content["texts"])


def read_texts(path: Path) -> list[SourceText]:
    """The file's text, or each of a notebook's cells.

    Cells that were left by `leave_cells` come first. The lines of a notebook are put into
    `linecache`, where tracebacks look for them; of a file that has changed they are forgotten
    there. Raises Unparsable, with the reason, if there is none to read.
    """
    cells = cells_left_for(path)
    if cells is not None:
        return [SourceText(cell, 1) for cell in cells]
    if path.suffix == NOTEBOOK_SUFFIX:
        return _read_cells(path)
    linecache.checkcache(str(path))
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror}"
        raise Unparsable(reason, None, type(error).__name__) from None
    return [SourceText(decode_source(data), 1)]


def _read_cells(path: Path) -> list[SourceText]:
    """The code cells of a notebook. Raises Unparsable where it cannot be read.

    Its lines are put into `linecache`, where tracebacks look for them.
    """
    try:
        notebook = read_notebook(path)
    except (NotANotebook, OSError) as error:
        raise Unparsable(str(error), None, "ValueError") from None
    name = str(path)
    source = notebook.source
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    return [SourceText(cell.source, cell.first) for cell in notebook.cells]


def decode_source(data: bytes) -> str:
    """A Python file's text, as Python itself would decode it.

    Raises Unparsable, with the line and what to do, for a file that has no such text.
    """
    # What no Python file begins with or holds.
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Unparsable("the file is UTF-16 text; save it as UTF-8 in your editor", 1)
    if b"\0" in data:
        line = _line_at(data, data.index(b"\0"))
        raise Unparsable("there is a null byte here, which no Python file may have", line)
    # The encoding that its first two lines name, or UTF-8.
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise _wrong_encoding(data, error.msg) from None
    try:
        with warnings.catch_warnings():
            # Some encodings find fault with a text and decode it all the same.
            warnings.simplefilter("ignore")
            text = data.decode(encoding)
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x}"
        message = f"{byte} is not {encoding} text; save the file as UTF-8"
        raise Unparsable(message, _line_at(data, error.start)) from None
    except (LookupError, UnicodeError):  # "hex" and "undefined" are encodings too, but not of texts
        message = f"the encoding that its first lines name, {encoding}, is none of a text"
        raise Unparsable(message, 1) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _line_at(data: bytes, position: int) -> int:
    """The number of the line, from 1, in which a byte stands."""
    line_ends_before = data.count(b"\n", 0, position)
    return line_ends_before + 1


def _wrong_encoding(data: bytes, message: str) -> Unparsable:
    """The error of a file whose first lines name an encoding that there is not, or are no UTF-8.

    It is returned, not raised. `message` is that of Python.
    """
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x}"
        reason = f"{byte} is not UTF-8 text; save the file as UTF-8"
        return Unparsable(reason, _line_at(data, error.start))
    return Unparsable(message, 1)


def parse_source(source: str, path: Path | PurePosixPath, first: int = 1) -> ast.Module:
    """The syntax tree of a source that begins at line `first` of its file.

    Raises Unparsable for a source that is no valid Python.
    """
    try:
        tree = ast.parse(source, str(path))
    except SyntaxError as error:
        line = error.lineno
        if line is not None:
            line += first - 1
        raise Unparsable(error.msg, line, type(error).__name__) from None
    except (ValueError, RecursionError, MemoryError) as error:
        message = str(error) or "this is nested too deeply"
        raise Unparsable(message, None, type(error).__name__) from None
    if first > 1:
        ast.increment_lineno(tree, first - 1)
    return tree


@contextlib.contextmanager
def warnings_are_no_errors() -> Iterator[None]:
    """Around student code: a warning in it is no error, whatever the run says."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield
