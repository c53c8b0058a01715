"""Where is a submission's file written? Under a name that every system can hold and that no other submission has."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from graders.export import Options, Results
from graders.results import SubmissionRow
from graders.results.storing import replacing

FORBIDDEN: Final = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE)
LONGEST: Final = 120  # bytes; a name may have 255 with its endings


def safe_name(name: str) -> str:
    """A name for a file, as near to the given one as Linux, macOS and Windows allow."""
    text = FORBIDDEN.sub("_", unicodedata.normalize("NFC", name)).strip()
    text = text.encode("utf-8")[:LONGEST].decode("utf-8", "ignore").rstrip(". ")
    if not text or text.startswith((".", "-", "~")) or RESERVED.fullmatch(text):
        text = f"_{text}"
    return text


def names(results: Results) -> list[str]:
    """A name for each submission of a class, none like another even where upper and lower case are one."""
    taken: set[str] = set()
    found = []
    for row in results.submissions:
        first = name = safe_name(row.submission)
        number = 1
        while unicodedata.normalize("NFC", name.casefold()) in taken:
            number += 1
            name = f"{first}-{number}"
        taken.add(unicodedata.normalize("NFC", name.casefold()))
        found.append(name)
    return found


def named(results: Results, options: Options) -> Iterator[tuple[str, SubmissionRow]]:
    """The submissions to export, each with its name; a name does not depend on what is chosen."""
    pairs = zip(names(results), results.submissions, strict=True)
    return ((name, row) for name, row in pairs if options.submission in (None, row.submission))


def folder(target: Path, name: str, options: Options) -> Path:
    """A submission's own folder; the target itself when it was asked for alone, because there programs look for it."""
    return target if options.submission is not None else target / name


def save(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, lasting=False) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
    return path


def save_json(path: Path, value: Any) -> Path:
    clean = _clean(value)
    return save(path, msgspec.json.format(msgspec.json.encode(clean), indent=1).decode() + "\n")


def save_csv(path: Path, rows: Iterable[Sequence[str]], delimiter: str = ",", mark: str = "") -> Path:
    """A table; `mark` is a byte order mark that stood in the file it was made from."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return save(path, mark + text.getvalue())


def _clean(value: Any) -> Any:
    """The value without halves of characters, which JSON cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
