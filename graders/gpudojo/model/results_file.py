"""Reads and writes results.json, and its JSON schema."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import msgspec

from gpudojo.model.errors import BadEvidence, BadResults
from gpudojo.model.evidence import decode_untrusted_bytes
from gpudojo.model.results import (
    RESULTS_VERSION,
    ClassResults,
    Grade,
    SubmissionRow,
    SubmissionStatus,
    round_half_up,
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
    """Write results row by row. An older file stays as it is until the new one is whole.

    Raises OSError where it cannot be written.
    """
    with open_results(path, header) as write_row:
        for row in rows:
            write_row(row)


@contextlib.contextmanager
def open_results(path: Path, header: ClassResults) -> Iterator[RowWriter]:
    """A file of results to write to: gives a function that writes one row.

    `header` is written first, without its submissions. The file takes the place of `path` at the
    end of the block, and leaves no trace after an error. Raises OSError where it cannot be written.
    """
    fields: dict[str, Any] = {"version": RESULTS_VERSION}
    for name in ClassResults.__struct_fields__:
        if name != "submissions":
            fields[name] = getattr(header, name)
    fields["layers"] = dict(sorted(header.layers.items()))
    separator = b"\n"
    with replacing_file(path) as file:

        def write_row(row: SubmissionRow) -> None:
            """Write the line of a submission."""
            nonlocal separator
            file.write(separator + encode_json(row))
            separator = b",\n"

        file.write(encode_json(fields).removesuffix(b"}") + b',"submissions":[')
        yield write_row
        file.write(END)


def read(path: Path | str) -> ClassResults:
    """Everything in a file of results. Raises BadResults with a sentence where it is not one."""
    path = Path(path)
    with _open_results_file(path) as file:
        data = file.read().removeprefix(b"\xef\xbb\xbf")
    _check_version(path, data)
    results = _decode_struct(path, data, ClassResults)
    for row in results.submissions:
        _check_sums(path, row)
    return results


def header(path: Path | str) -> ClassResults:
    """The file's header, without its submissions.

    Raises BadResults where it is no file of results.
    """
    path = Path(path)
    with _open_results_file(path) as file:
        return _decode_header(path, file.readline())


def iterate(path: Path | str) -> Iterator[SubmissionRow]:
    """Yield the submissions one by one, without holding all of them.

    Where another program has written the file anew, it is read as a whole. Raises BadResults where
    it cannot be read or is no file of results, perhaps after some submissions.
    """
    path = Path(path)
    with _open_results_file(path) as file:
        if not _ends_before_rows(file.readline()):
            # The same JSON in another layout: some program has written it anew.
            yield from read(path).submissions
            return
        file.seek(0)
        _decode_header(path, file.readline())
        for line in file:
            text = line.strip().removesuffix(b",")
            if text == END.strip():
                return
            row = _decode_struct(path, text, SubmissionRow)
            _check_sums(path, row)
            yield row
    raise BadResults(str(path), "it ends in the middle")


class PublishedRow(msgspec.Struct, frozen=True):
    """Whose a submission is, and its points to publish: a small part of its row."""

    submission: str
    status: SubmissionStatus
    score: float
    max_score: float
    student: str | None = None
    grade: Grade | None = None

    @property
    def final(self) -> Grade:
        """The points to publish."""
        return self.grade or Grade(self.score, self.max_score)


def iterate_published(path: Path) -> Iterator[PublishedRow]:
    """Yield the points to publish of each submission in a file that we wrote; fast.

    Raises BadResults where it cannot be read or is no such file, perhaps after some submissions.
    """
    with _open_results_file(path) as file:
        _decode_header(path, file.readline())
        for line in file:
            text = line.strip().removesuffix(b",")
            if text == END.strip():
                return
            yield _decode_struct(path, text, PublishedRow)


@dataclass(frozen=True)
class StoredRows:
    """Submissions that stay in their file, whatever its size: each iteration reads them anew."""

    path: Path

    def __iter__(self) -> Iterator[SubmissionRow]:
        """Yield the rows, read from the file one by one."""
        return iterate(self.path)


@contextlib.contextmanager
def replacing_file(path: Path, lasting: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when all went well.

    After an error it leaves no trace. What can be made again from another file need not be
    `lasting`: to wait for the disk takes milliseconds a file. Who may read it is `mode`, less what
    the user's settings take away. Raises OSError, which names `path`, where it cannot be written.
    """
    # It is written beside `path`, and renamed at the end.
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
    if isinstance(thing, list):
        return [without_surrogates(item) for item in thing]
    return thing


def _open_results_file(path: Path) -> BinaryIO:
    """Open a file of results. Raises BadResults where it cannot be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise BadResults(str(path), f"it cannot be read: {error.strerror}") from error


def _ends_before_rows(line: bytes) -> bool:
    """True for the first line as we write it: all of the header, and no submission."""
    return line.rstrip().endswith(b'"submissions":[')


def _decode_header(path: Path, line: bytes) -> ClassResults:
    """The header of a file with this first line; the whole file is read if that is not enough.

    Raises BadResults where it is no file of results.
    """
    if not _ends_before_rows(line):
        return msgspec.structs.replace(read(path), submissions=[])
    data = line.rstrip() + b"]}"
    _check_version(path, data)
    return _decode_struct(path, data, ClassResults)


def _check_version(path: Path, data: bytes) -> None:
    """Raise BadResults where this is no JSON, or not of our version."""
    try:
        found = msgspec.json.decode(data, type=_Version).version
    except msgspec.ValidationError:
        raise BadResults(str(path), "it is JSON, but not what `dojo grade` writes") from None
    except Exception as error:
        # Decoding raises DecodeError, UnicodeDecodeError, RecursionError and MemoryError.
        raise BadResults(str(path), f"it is not JSON: {error}") from None
    if found != RESULTS_VERSION:
        raise BadResults(
            str(path), f"it has version {found}, and this gpudojo reads version {RESULTS_VERSION}"
        )


def _decode_struct(path: Path, data: bytes, kind: type[_Kind]) -> _Kind:
    """The struct that JSON holds. Raises BadResults with what is wrong in it."""
    try:
        return decode_untrusted_bytes(msgspec.json.Decoder(kind).decode, data)
    except BadEvidence as error:
        raise BadResults(str(path), error.reason) from None


class _Sum(NamedTuple):
    """A score and its maximum in a row, and what its parts add up to."""

    name: str
    score: float
    max_score: float
    parts: float
    max_parts: float


def _sums_in(row: SubmissionRow) -> Iterator[_Sum]:
    """Yield every score in a row with the sum of its parts: of exercises and the whole.

    A check has no parts: it is there if it has more points than it is worth.
    """
    for exercise in row.exercises:
        for check in exercise.checks:
            if check.points > check.max_points + SAME:
                yield _Sum(check.id, check.points, check.max_points, check.points, check.max_points)
        points = sum_points(check.points for check in exercise.checks)
        max_points = sum_points(check.max_points for check in exercise.checks)
        if exercise.override or exercise.by_hand:
            given = [line.override for line in exercise.rubric_lines.values()]
            if exercise.override:
                given = [exercise.override]
            points = sum_points(override.points for override in given if override)
            max_points = exercise.max_score
        yield _Sum(exercise.exercise, exercise.score, exercise.max_score, points, max_points)
    # Extra credit counts, and its maximum does not.
    usual = [exercise for exercise in row.exercises if not exercise.extra]
    extra = sum_points(exercise.score for exercise in row.exercises if exercise.extra)
    points = sum_points(exercise.score for exercise in row.exercises)
    max_points = sum_points(exercise.max_score for exercise in usual)
    yield _Sum("the submission", row.score - extra, row.max_score, points - extra, max_points)


def _check_sums(path: Path, row: SubmissionRow) -> None:
    """Raises BadResults where a total is not what its parts add up to, or is above its maximum.

    Programs that read the one or the other would find different grades.
    """
    for each in _sums_in(row):
        if abs(each.score - each.parts) > SAME:
            reason = (
                f"the score of {each.name} is {each.score:g},"
                f" but its parts add up to {each.parts:g}"
            )
        elif max(each.score, each.max_parts) > each.max_score + SAME:
            reason = (
                f"{each.name} has {each.score:g} of {each.max_score:g} points,"
                f" and parts worth {each.max_parts:g}"
            )
        else:
            continue
        raise BadResults(str(path), f"in the submission {row.submission!r}: {reason}")


def format_points(points: float) -> str:
    """Points for people, with two decimals at most: 14, 0.25, 67.55."""
    return f"{round_half_up(points):.2f}".rstrip("0").rstrip(".")


def exact_points(points: float) -> str:
    """Points for programs, with all of their decimals: 14, 0.25, 0.833333."""
    return f"{points:.6f}".rstrip("0").rstrip(".")


def count_and_noun(count: float, noun: str) -> str:
    """A number of things: 1 submission, 2 submissions, 2.5 points."""
    ending = "s"
    if count == 1:
        ending = ""
    return f"{format_points(count)} {noun}{ending}"


def first_names(names: Sequence[str], count: int) -> str:
    """So many of the names, the first, and how many more there are; for a sentence."""
    text = ", ".join(names[:count])
    if len(names) > count:
        text += f" and {len(names) - count} more"
    return text


SCHEMA_PATH: Final = Path(__file__).with_name("results.schema.json")


def results_schema() -> dict[str, Any]:
    """The JSON schema of a whole file of results, as data."""
    schema = msgspec.json.schema(ClassResults)
    # The structs have defaults for these so that a header is easily made; a file without them is
    # refused.
    schema["$defs"]["ClassResults"]["required"] += ["version", "submissions"]
    for struct in schema["$defs"].values():
        if "description" in struct:  # a docstring, which Python 3.13 does not indent
            struct["description"] = inspect.cleandoc(struct["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpudojo class results",
        **schema,
    }


def schema_text() -> str:
    """The JSON schema of results.json, as its file has it."""
    return msgspec.json.format(msgspec.json.encode(results_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
