"""Reads and writes results: JSON, CSV, and the JSON schema."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from gpudojo.model.errors import BadEvidence, BadResults, printable_text
from gpudojo.model.evidence import decoded
from gpudojo.model.results import (
    RESULTS_VERSION,
    ClassResults,
    SubmissionRow,
    SubmissionStatus,
    sum_points,
)

END: Final = b"\n]}\n"
SAME: Final = 0.5e-6  # points have 6 places, so that two sums that differ by less are one
_Kind = TypeVar("_Kind")


class _Version(msgspec.Struct):
    """What every file of results has, whatever its version."""

    version: int
    submissions: msgspec.Raw


RowWriter = Callable[[SubmissionRow], None]


def write(path: Path, header: ClassResults, rows: Iterable[SubmissionRow]) -> None:
    """Write results row by row; a file that was there stays as it is until the new one is whole."""
    with open_results(path, header) as write_row:
        for row in rows:
            write_row(row)


@contextlib.contextmanager
def open_results(path: Path, header: ClassResults) -> Iterator[RowWriter]:
    """A file of results to write to: yields a function that writes one row.

    The file takes the place of `path` at the end, and leaves no trace after an error.
    """
    fields: dict[str, Any] = {"version": RESULTS_VERSION}
    for name in ClassResults.__struct_fields__:
        if name != "submissions":
            fields[name] = getattr(header, name)
    fields["layers"] = dict(sorted(header.layers.items()))
    separator = b"\n"
    with replacing_file(path) as file:

        def write_row(row: SubmissionRow) -> None:
            nonlocal separator
            file.write(separator + encode_json(row))
            separator = b",\n"

        file.write(encode_json(fields).removesuffix(b"}") + b',"submissions":[')
        yield write_row
        file.write(END)


def read(path: Path) -> ClassResults:
    """Everything in a file of results; raises BadResults with a sentence where it is not one."""
    with _opened(path) as file:
        data = file.read().removeprefix(b"\xef\xbb\xbf")
    _check_version(path, data)
    results = _decoded(path, data, ClassResults)
    for row in results.submissions:
        _check(path, row)
    return results


def header(path: Path) -> ClassResults:
    """The file's header, without its submissions."""
    with _opened(path) as file:
        return _header(path, file.readline())


def iterate(path: Path) -> Iterator[SubmissionRow]:
    """The submissions one by one, without holding all of them; raises BadResults as `read` does."""
    with _opened(path) as file:
        if not _splits(file.readline()):
            # The same JSON in another layout: some program has written it anew.
            yield from read(path).submissions
            return
        file.seek(0)
        _header(path, file.readline())
        for line in file:
            text = line.strip().removesuffix(b",")
            if text == END.strip():
                return
            row = _decoded(path, text, SubmissionRow)
            _check(path, row)
            yield row
    raise BadResults(str(path), "it ends in the middle")


@dataclass(frozen=True)
class StoredRows:
    """Submissions that stay in their file, whatever its size; each iteration reads them anew, as `iterate` does."""

    path: Path

    def __iter__(self) -> Iterator[SubmissionRow]:
        return iterate(self.path)


@contextlib.contextmanager
def replacing_file(path: Path, lasting: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` when all went well, and otherwise leaves no trace.

    What can be made again from another file need not be `lasting`: to wait for the disk takes milliseconds a file.
    Who may read it is `mode`, less what the user's settings take away.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    whole = False
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        whole = True
    except OSError as error:
        if str(error.filename) == str(part):  # a name that only this function knows
            error.filename = str(path)
        raise
    finally:
        if not whole:
            with contextlib.suppress(OSError):  # the error that led here says more
                part.unlink()


def encode_json(thing: Any) -> bytes:
    """JSON on one line, the same bytes for the same thing."""
    try:
        return msgspec.json.encode(thing)
    except UnicodeEncodeError:
        # Names from a file system, and what a student printed, may hold halves of characters.
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(thing)))


def without_surrogates(thing: Any) -> Any:
    """Plain data without halves of characters, which cannot be encoded."""
    if isinstance(thing, str):
        return thing.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(thing, dict):
        return {without_surrogates(key): without_surrogates(value) for key, value in thing.items()}
    return [without_surrogates(item) for item in thing] if isinstance(thing, list) else thing


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise BadResults(str(path), f"it cannot be read: {error.strerror}") from error


def _splits(line: bytes) -> bool:
    return line.rstrip().endswith(b'"submissions":[')


def _header(path: Path, line: bytes) -> ClassResults:
    if not _splits(line):
        return msgspec.structs.replace(read(path), submissions=[])
    data = line.rstrip() + b"]}"
    _check_version(path, data)
    return _decoded(path, data, ClassResults)


def _check_version(path: Path, data: bytes) -> None:
    try:
        found = msgspec.json.decode(data, type=_Version).version
    except msgspec.ValidationError:
        raise BadResults(str(path), "it is JSON, but not what `dojo grade` writes") from None
    except Exception as error:  # whatever decoding raises: DecodeError, UnicodeDecodeError, RecursionError, MemoryError
        raise BadResults(str(path), f"it is not JSON: {error}") from None
    if found != RESULTS_VERSION:
        raise BadResults(
            str(path), f"it has version {found}, and this gpudojo reads version {RESULTS_VERSION}"
        )


def _decoded(path: Path, data: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return decoded(msgspec.json.Decoder(kind).decode, data)
    except BadEvidence as error:
        raise BadResults(str(path), error.reason) from None


def _check(path: Path, row: SubmissionRow) -> None:
    """Every total is told again by what it is made of; where both differ, programs would read different grades."""
    parts: list[tuple[str, float, float, float, float]] = []
    for exercise in row.exercises:
        for check in exercise.checks:
            parts.append((check.id, check.points, check.max_points, check.points, check.max_points))
        own = sum_points(c.points for c in exercise.checks)
        worth = sum_points(c.max_points for c in exercise.checks)
        if exercise.override or exercise.by_hand:
            own = exercise.override.points if exercise.override else 0.0
            worth = exercise.max_score
        parts.append((exercise.exercise, exercise.score, exercise.max_score, own, worth))
    extra = sum_points(exercise.score for exercise in row.exercises if exercise.extra)
    own = sum_points(exercise.score for exercise in row.exercises)
    worth = sum_points(exercise.max_score for exercise in row.exercises if not exercise.extra)
    parts.append(("the submission", row.score - extra, row.max_score, own - extra, worth))
    for name, score, max_score, sum_, worth in parts:
        if abs(score - sum_) > SAME:
            reason = f"the score of {name} is {score:g}, but its parts add up to {sum_:g}"
        elif score > max_score + SAME or worth > max_score + SAME:
            reason = f"{name} has {score:g} of {max_score:g} points, and parts worth {worth:g}"
        else:
            continue
        raise BadResults(str(path), f"in the submission {row.submission!r}: {reason}")


def spreadsheet_safe(cell: str) -> str:
    """The text with an apostrophe before what a spreadsheet would take for a formula; numbers stay numbers."""
    # Tab and carriage return count too: some programs drop them and run what follows. So do full-width signs.
    if not cell.startswith(
        ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
    ):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell


def format_points(points: float) -> str:
    """Points without a needless `.0` or exponent: 14, 0.25, 0.000001."""
    return f"{points:.6f}".rstrip("0").rstrip(".")


@contextlib.contextmanager
def open_table(path: Path, exercises: Iterable[str]) -> Iterator[RowWriter]:
    """A CSV file to write to: yields a function that writes the line of one submission.

    There is a column for each of the exercises (`04_…`), empty where it was not graded. The file
    takes the place of `path` at the end, and leaves no trace after an error.
    """
    columns = list(exercises)
    with replacing_file(path) as file:
        # A name from a file system may hold halves of characters that UTF-8 cannot write.
        text = io.TextIOWrapper(
            file, encoding="utf-8", errors="backslashreplace", newline="", write_through=True
        )
        writer = csv.writer(text)

        def write_row(row: SubmissionRow) -> None:
            scores = {
                exercise.exercise: format_points(exercise.score) for exercise in row.exercises
            }
            names = [
                printable_text(without_surrogates(name))
                for name in (row.submission, row.student or "")
            ]
            cells = [
                *names,
                row.status.value,
                format_points(row.score),
                format_points(row.max_score),
            ]
            cells += [scores.get(column, "") for column in columns]
            cells += [cell(row) for cell in MORE_COLUMNS.values()]
            cells.append("; ".join(row.needs_human))
            writer.writerow(
                [
                    spreadsheet_safe(printable_text(without_surrogates(cell), keep="\n"))
                    for cell in cells
                ]
            )

        writer.writerow([*FIRST_COLUMNS, *columns, *MORE_COLUMNS, LAST_COLUMN])
        yield write_row
        text.detach()


def _late(row: SubmissionRow) -> str:
    """Hours where they are known, and below one minutes or seconds."""
    if row.timing is None or not row.timing.late:
        return ""
    if (seconds := row.timing.late_seconds) is None:
        return "late"
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds // 60} min"
        if seconds >= 60
        else f"{seconds} s"
    )


FIRST_COLUMNS: Final = ("submission", "student", "status", "score", "max_score")
MORE_COLUMNS: Final[dict[str, Callable[[SubmissionRow], str]]] = {
    "identifier": lambda row: row.identifier or "",
    "section": lambda row: row.section,
    "group": lambda row: row.group,
    "points": lambda row: format_points(row.final.points),
    "out_of": lambda row: format_points(row.final.max_points),
    "submitted": lambda row: row.timing.submitted if row.timing else "",
    "late": _late,
    "penalty": lambda row: (
        format_points(row.timing.penalty) if row.timing and row.timing.penalty else ""
    ),
    "extended_to": lambda row: row.timing.deadline if row.timing and row.timing.extended else "",
    "attempts": lambda row: str(
        len(row.attempts) or int(row.status is not SubmissionStatus.ABSENT)
    ),
    "overrides": lambda row: "; ".join(
        f"{name}: {format_points(one.points)}" for name, one in row.overrides
    ),
    "to_grade": lambda row: "; ".join(row.to_grade),
    "reason": lambda row: row.reason,
    "notes": lambda row: "; ".join(row.notes),
}
LAST_COLUMN: Final = "needs_human"
COLUMNS: Final = frozenset(
    (*FIRST_COLUMNS, *MORE_COLUMNS, LAST_COLUMN)
)  # names that no exercise may have


SCHEMA_PATH: Final = Path(__file__).with_name("results.schema.json")


def results_schema() -> dict[str, Any]:
    """The schema of a whole file."""
    made = msgspec.json.schema(ClassResults)
    # The structs have defaults for these so that a header is easily made; a file without them is refused.
    made["$defs"]["ClassResults"]["required"] += ["version", "submissions"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpudojo class results",
        **made,
    }


def schema_text() -> str:
    return msgspec.json.format(msgspec.json.encode(results_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
