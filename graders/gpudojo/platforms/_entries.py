"""What exporters share: entries, file names, tables."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from gpudojo.model.errors import CannotExport
from gpudojo.model.results import CheckRow, ExerciseRow, Outcome, SubmissionRow, SubmissionStatus
from gpudojo.model.results_file import number, replacing
from gpudojo.platforms import Options, Part, Results

MILLION: Final = 1_000_000
NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Entry:
    """One test, as other programs call it."""

    name: str  # "04_modifying_training_loop_gpu::train_epoch::runs"
    kind: str  # an Outcome, or the Status of a submission that was not graded
    parts: int  # points in millionths
    max_parts: int
    exercise: str = ""
    function: str = ""
    claim: str = ""
    message: str = ""
    text: str = ""  # all there is to say, on several lines
    file: str = ""
    line: int = 0

    @property
    def good(self) -> bool:
        """Whether it costs the student nothing."""
        return self.kind in (Outcome.PASSED, Outcome.ERROR)

    @property
    def ours(self) -> bool:
        return self.kind == Outcome.ERROR


def parts(points: float) -> int:
    return round(points * MILLION)


def points(parts: int) -> float:
    return parts / MILLION


def chosen(results: Results, options: Options) -> Iterator[SubmissionRow]:
    """The submissions to export."""
    return (row for row in results.submissions if options.submission in (None, row.submission))


def whole(row: SubmissionRow, known: Iterable[Part]) -> list[ExerciseRow]:
    """Its exercises, with those of the day that were not reached where their points are what is missing."""
    have = {exercise.exercise for exercise in row.exercises}
    missing = [
        ExerciseRow(each.exercise, each.title, 0.0, each.max_score) for each in known if each.exercise not in have
    ]
    left = parts(row.max_score) - sum(parts(exercise.max_score) for exercise in row.exercises)
    if sum(parts(exercise.max_score) for exercise in missing) != left:
        return list(row.exercises)
    return sorted([*row.exercises, *missing], key=lambda exercise: exercise.exercise)


def of_exercise(exercise: ExerciseRow, row: SubmissionRow) -> list[Entry]:
    entries = [_entry(check, exercise.exercise) for check in exercise.checks]
    left = parts(exercise.max_score) - sum(entry.max_parts for entry in entries)
    if left or not entries:
        entries.append(_left(exercise.exercise, row, left, exercise.exercise))
    return entries


def of_submission(row: SubmissionRow, known: Iterable[Part]) -> list[Entry]:
    """All entries of a submission, in the order of its exercises."""
    exercises = whole(row, known)
    entries = [entry for exercise in exercises for entry in of_exercise(exercise, row)]
    left = parts(row.max_score) - sum(entry.max_parts for entry in entries)
    told = any(entry.kind == row.status for entry in entries)
    if left or not entries or (row.status is not SubmissionStatus.GRADED and not told):
        entries.append(_left("submission", row, left))
    return entries


def sentence(row: SubmissionRow) -> str:
    """What became of the submission, for its student: never what only a teacher should read."""
    got = f"{number(row.score)} of {number(row.max_score)} points"
    return got if row.status is SubmissionStatus.GRADED else f"{got}: {_reason(row)}"


def verdict(row: SubmissionRow, entries: list[Entry]) -> str:
    """pass, fail or error (ours), as several formats call them."""
    if row.status is not SubmissionStatus.GRADED or not all(entry.good for entry in entries):
        return "fail"
    return "error" if any(entry.ours for entry in entries) else "pass"


def printable(text: str) -> str:
    """The text without characters that neither XML nor a terminal should get."""
    return NOT_XML.sub("\ufffd", text.replace("\x1b", "\ufffd"))


def one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _reason(row: SubmissionRow) -> str:
    return row.reason or f"this submission was not graded: {row.status.value}."


def _left(name: str, row: SubmissionRow, left: int, exercise: str = "") -> Entry:
    """What no check of a submission accounts for."""
    if row.status is not SubmissionStatus.GRADED:
        reason = _reason(row)
        return Entry(name, row.status.value, 0, left, exercise, message=reason, text=reason)
    if not left:
        return Entry(name, Outcome.PASSED.value, 0, 0, exercise)
    reason = "nothing that earns these points was graded."
    return Entry(name, Outcome.TODO.value, 0, left, exercise, message=reason, text=reason)


def _entry(check: CheckRow, exercise: str) -> Entry:
    return Entry(
        name=check.id,
        kind=check.outcome.value,
        parts=parts(check.points),
        max_parts=parts(check.max_points),
        exercise=exercise,
        function=check.function,
        claim=check.claim,
        message=check.message,
        text="\n".join(_lines(check)),
        file=check.file or "",
        line=check.line or 0,
    )


def _lines(check: CheckRow) -> Iterator[str]:
    if check.outcome is not Outcome.FAILED:
        if check.message:
            yield check.message
        return
    place = f"line {check.line}" if check.line else ""
    if place and check.cell:
        place = f"code cell {check.cell}, {place}"
    where = ", ".join(part for part in (check.file, place) if part)
    labelled = {
        "happened": check.happened or check.message,
        "expected": check.expected,
        "where": where,
        "mistake": check.why,
        "hint": check.hint,
    }
    for label, text in labelled.items():
        if text:
            yield f"{label}: {text}"


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
