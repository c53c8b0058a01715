"""The files that exporters write: names that every system allows, text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpudojo.classes.store import write_file
from gpudojo.model.results import SubmissionRow
from gpudojo.model.results_file import encode_json

FORBIDDEN: Final = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
RESERVED: Final = re.compile(
    r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE
)
BYTE_ORDER_MARK: Final = "\ufeff"
LONGEST_NAME: Final = 120  # bytes; a name may have 255 with its endings


def safe_name(name: str) -> str:
    """Return a file name as close to the given one as Linux, macOS and Windows allow."""
    text = FORBIDDEN.sub("_", unicodedata.normalize("NFC", name)).strip()
    cut = text.encode("utf-8")[:LONGEST_NAME]
    text = cut.decode("utf-8", "ignore").rstrip(". ")
    if not text or text.startswith((".", "-", "~")) or RESERVED.fullmatch(text):
        text = f"_{text}"
    return text


def new_name(wanted: str, used: set[str]) -> str:
    """Return a safe name that is not in `used`, and put it there.

    Names that differ in upper and lower case alone are one name.
    """
    first = safe_name(wanted)
    name = first
    number = 1
    while _comparable_name(name) in used:
        number += 1
        name = f"{first}-{number}"
    used.add(_comparable_name(name))
    return name


def _comparable_name(name: str) -> str:
    """Return a name as file systems compare it that ignore case."""
    return unicodedata.normalize("NFC", name.casefold())


def file_names(rows: Iterable[SubmissionRow]) -> list[str]:
    """Return a file name for each submission of a class."""
    used: set[str] = set()
    return [new_name(row.submission, used) for row in rows]


def save_text(path: Path, text: str) -> Path:
    """Write a text file, whole or not at all, and return its path. Raises OSError."""
    write_file(path, text.encode("utf-8", "backslashreplace"), lasting=False)
    return path


def save_json(path: Path, value: Any) -> Path:
    """Write a value as indented JSON, and return the path. Raises OSError."""
    text = msgspec.json.format(encode_json(value), indent=1).decode()
    return save_text(path, f"{text}\n")


def save_csv(
    path: Path, rows: Iterable[Sequence[str]], delimiter: str = ",", mark: str = ""
) -> Path:
    """Write a table, and return its path. Raises OSError.

    `mark` is a byte order mark: Excel needs one, and platforms get what their own table had.
    """
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return save_text(path, mark + text.getvalue())
