"""How is a table that a learning platform gave out filled in? Read as it is, its people found, and written likewise."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graders.errors import CannotExport
from graders.results import SubmissionRow

MARK: Final = "\ufeff"
DELIMITERS: Final = (",", ";", "\t")


@dataclass(frozen=True)
class Table:
    """A CSV file: what it holds, and how it was written."""

    headings: list[str]
    rows: list[list[str]]
    delimiter: str
    mark: str  # a byte order mark, or nothing


def read_table(path: Path, format_: str) -> Table:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CannotExport(format_, f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CannotExport(format_, f"{path} is not UTF-8 text; download it as CSV and do not edit it") from error
    mark = MARK if text.startswith(MARK) else ""
    text = text.removeprefix(MARK)
    if "\0" in text:
        raise CannotExport(format_, f"{path} is not a table; download it as CSV, not as a workbook")
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=lambda each: len(next(csv.reader([first], delimiter=each), [])))
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(line)]
    except csv.Error as error:
        raise CannotExport(format_, f"{path} is not a table: {error}") from error
    if not lines:
        raise CannotExport(format_, f"{path} is empty")
    width = max(len(line) for line in lines)
    padded = [line + [""] * (width - len(line)) for line in lines]
    return Table(padded[0], padded[1:], delimiter, mark)


def plain(name: str) -> str:
    """A name without accents, case, spaces and punctuation, which platforms change in names of files."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in letters if letter.isalnum())


def spellings(name: str) -> set[str]:
    """The ways in which files name a person: `Lovelace, Ada`, `Ada Lovelace`, `lovelaceada`."""
    words = name.replace(",", " ").split()
    turns = [words[turn:] + words[:turn] for turn in range(len(words))]
    return {plain(name), *(plain("".join(turn)) for turn in turns)} - {""}


def people(
    rows: Mapping[int, tuple[str, str]],
    submissions: Iterable[SubmissionRow],
    identified: Callable[[SubmissionRow], str | None],
    say: Callable[[str], None],
) -> Iterator[tuple[int, SubmissionRow]]:
    """Which line of the table each submission belongs to: by the platform's id, without one by the name.

    `rows` gives a line's id and name. A submission that fits no line, or several, is left out and said.
    """
    by_id: dict[str, set[int]] = {}
    by_name: dict[str, set[int]] = {}
    for place, (id_, name) in rows.items():
        by_id.setdefault(id_, set()).add(place)
        for spelling in spellings(name):
            by_name.setdefault(spelling, set()).add(place)
    found: dict[int, str] = {}
    for submission in submissions:
        own = identified(submission)
        wanted = {plain(submission.student or ""), plain(submission.submission)}
        lines = by_id.get(own, set()) if own else set().union(*(by_name.get(name, set()) for name in wanted))
        if len(lines) != 1:
            fits = "nobody" if not lines else f"{len(lines)} people"
            say(f"{submission.submission!r} fits {fits} in the table and is left out.")
            continue
        (line,) = lines
        if line in found:
            say(f"{submission.submission!r} is of the same person as {found[line]!r} and is left out.")
            continue
        found[line] = submission.submission
        yield line, submission


def digits(text: str) -> str:
    """The number at the end of `Participant 1234567`, in whatever language."""
    match = re.search(r"([0-9]+)\s*$", text)
    return match[1] if match else ""


def value(cell: str) -> float | None:
    """A number as the platform wrote it, with a decimal point or comma."""
    try:
        return float(cell.strip().replace(",", "."))
    except ValueError:
        return None
