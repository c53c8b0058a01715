"""Reads CSV files that people or platforms wrote: rosters, overrides, points."""

from __future__ import annotations

import codecs
import csv
import io
import re
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.model.errors import BadFile

UNCLOSED: Final = "is a quotation mark not closed?"
_WORKBOOKS: Final = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # how .xlsx and .ods, and .xls begin
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # Excel's "Unicode text"
_SEPARATOR_LINE: Final = re.compile(r"sep=(.)\r?\n")  # Excel writes it, for itself
_QUOTED: Final = re.compile(r'"[^"]*"')


class TableLine(NamedTuple):
    """One line of a table: its cells, and its number in the file."""

    number: int
    cells: list[str]


def read_table(path: Path) -> list[TableLine]:
    """The lines of a CSV file that are not empty.

    Cells are separated by commas, semicolons or tabs, or by what a first line `sep=;` names. Raises
    BadFile for a file that cannot be read, is no CSV or has no such line.
    """
    # A first line such as `sep=;` names the separator.
    text = _read_text(path)
    delimiter = ""
    first_number = 1
    separator_line = _SEPARATOR_LINE.match(text)
    if separator_line:
        delimiter = separator_line[1]
        text = text.removeprefix(separator_line[0])
        first_number = 2
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter or _delimiter_of(text), strict=True
    )
    lines = []
    number = first_number
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                lines.append(TableLine(number, cells))
            number = first_number + reader.line_num
    except csv.Error as error:
        raise BadFile(str(path), number, f"this is not CSV: {error}; {UNCLOSED}") from None
    if not lines:
        raise BadFile(str(path), None, "it is empty")
    return lines


def _read_text(path: Path) -> str:
    """The text of a file in UTF-8 or UTF-16.

    Raises BadFile where it cannot be read, is a workbook or is in another encoding.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFile(str(path), None, f"it cannot be read: {error.strerror}") from None
    if data[:4] in _WORKBOOKS:
        reason = "this is a workbook, not CSV; save the table as CSV in UTF-8"
        raise BadFile(str(path), None, reason)
    encoding = "utf-8-sig"
    if data[:2] in _UTF_16:
        encoding = "utf-16"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = "this is not UTF-8 text; save the table as CSV in UTF-8"
        raise BadFile(str(path), line, reason) from None


def _delimiter_of(text: str) -> str:
    """The separator that the first line has most of, outside of quotation marks."""
    first_line = text.lstrip("\r\n").partition("\n")[0]
    unquoted = _QUOTED.sub("", first_line)
    return max(",;\t", key=unquoted.count)
