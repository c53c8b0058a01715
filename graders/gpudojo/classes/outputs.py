"""What was made of results: exports, pages, feedback; and whose results have changed since.

It is kept in `.dojo/outputs.json` beside the results, by the command and the folder it wrote to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpudojo.classes.class_state import utc_now
from gpudojo.classes.store import FOLDER, write_file
from gpudojo.model.errors import BadEvidence
from gpudojo.model.evidence import decode_untrusted_bytes
from gpudojo.model.results import Grade, SubmissionRow
from gpudojo.model.results_file import encode_json, first_names

NAME: Final = f"{FOLDER}/outputs.json"
MOST_NAMES: Final = 5  # of who is gone, in a sentence


# None, False and no paths: not given
GivenOptions = Mapping[str, str | Path | tuple[Path, ...] | bool | None]


class WrittenRow(msgspec.Struct, frozen=True):
    """What was written of a submission."""

    points: float
    max_points: float
    digest: str  # of all that a student sees


class Output(msgspec.Struct):
    """What one command has written to one folder."""

    command: str  # "report", "feedback" or "export --to canvas"
    folder: str  # relative to that of the results
    at: str  # ISO 8601, UTC
    is_whole: bool = True  # of the class; False where only single students were ever asked for
    rows: dict[str, WrittenRow] = {}  # by submission
    left_out: list[str] = []  # submissions that are not in the table that was filled in
    written: list[str] = []  # the files, relative to the folder
    # Of the last time, with their values; files are relative to the folder of the results.
    options: dict[str, str] = {}
    files: dict[str, str | list[str]] = {}

    @property
    def is_export(self) -> bool:
        """True for grades that went to a platform; False for pages."""
        return self.command.startswith("export")

    def words(self, results: Path, gone: Collection[str] = ()) -> str:
        """The command that writes it anew; `results` is the folder of the results.

        Of single students, those who are `gone` are left out; empty where nobody is left.
        """
        folder = os.path.normpath(results / self.folder)
        command, _, options = self.command.partition(" ")
        words = ["dojo", command, str(results), *options.split()]
        if command != "report" or Path(self.folder) != Path("report"):
            words += ["--out", folder]
        chosen = [name for name in self.rows if name not in gone]
        if not self.is_whole and not chosen:
            return ""
        if not self.is_whole and not self.is_export:
            for submission in chosen:
                words += ["--only", submission]
        elif not self.is_whole and len(chosen) == 1:
            words += ["--submission", *chosen]
        for option, files in self.files.items():
            for file in [files] if isinstance(files, str) else files:
                words += [option, os.path.normpath(results / file)]
        for option, value in self.options.items():
            words += filter(None, (option, value))
        return shlex.join(words)


class ChangedRow(NamedTuple):
    """A submission whose results are others than those that were written."""

    called: str
    before: Grade | None  # None where nothing was written
    after: Grade | None  # None for who is not in the class any more


def describe_row(row: SubmissionRow) -> WrittenRow:
    """What is written of a row: its points, and a digest of all that a student sees.

    Who handed in nothing and was given nothing has no page, and no points are written.
    """
    if row.is_empty:
        return WrittenRow(0.0, 0.0, "")
    shown = (row.status, row.reason, row.score, row.exercises, row.timing, row.grade)
    digest = hashlib.blake2b(encode_json(shown), digest_size=8).hexdigest()
    return WrittenRow(row.final.points, row.final.max_points, digest)


def load_outputs(results: Path) -> list[Output]:
    """What was made of the results in a folder; nothing where that was not noted."""
    with contextlib.suppress(OSError, BadEvidence):
        data = (results / NAME).read_bytes()
        return decode_untrusted_bytes(msgspec.json.Decoder(list[Output]).decode, data)
    return []


def written_files(results: Path) -> set[Path]:
    """All files that were made of the results in a folder and noted; absolute paths."""
    files: set[Path] = set()
    for output in load_outputs(results):
        folder = os.path.join(results, output.folder)
        files.update(Path(os.path.abspath(os.path.join(folder, path))) for path in output.written)
    return files


def note_output(
    results: Path,
    command: str,
    target: Path,
    rows: Iterable[SubmissionRow],
    is_whole: bool,
    options: GivenOptions,
    written: Iterable[Path],
    left_out: Iterable[str] = (),
) -> list[str]:
    """Note that a command has written these rows and files; `is_whole`: they are the class.

    `options` are the others that the command was given, and `left_out` are submissions that the
    table of an export does not have. What it wrote there of single students stays noted. Of the
    whole class, nothing stays: files that the same command wrote to the folder before, and not this
    time, are deleted, and their paths in the folder returned. Exports with other options, as of
    another section, are other commands. Where the folder of results has no `.dojo`, as that of a
    copy, nothing is noted or deleted. Raises OSError.
    """
    if not (results / FOLDER).is_dir():
        return []
    outputs = load_outputs(results)
    new = Output(command, os.path.relpath(target, results), "")
    _set_options(new, options, results)
    output = _take_over_known(outputs, new)
    files = [Path(os.path.relpath(path, target)).as_posix() for path in written]
    others = []
    for each in outputs:
        if each is not output and not _is_overwritten(each, output, files):
            others.append(each)
    # What stays noted of the last time
    deleted = []
    if is_whole:
        former = [path for path in output.written if path not in files]
        deleted = _delete_files(target, former)
        output.written = files
        output.rows = {}
        output.is_whole = True
    else:
        output.written = list(dict.fromkeys([*output.written, *files]))
    # What was written now
    output.left_out = sorted(left_out)
    output.at = utc_now("milliseconds")  # to tell which was last
    for row in rows:
        output.rows[row.submission] = describe_row(row)
    write_file(results / NAME, encode_json([*others, output]), lasting=False)
    return deleted


def _take_over_known(outputs: list[Output], new: Output) -> Output:
    """The output of the same command that is noted already, with its options of now.

    It is `new`, for single students, where there is none.
    """
    for known in outputs:
        if _is_same_command(known, new):
            known.options = new.options
            known.files = new.files
            return known
    new.is_whole = False
    return new


def _set_options(output: Output, options: GivenOptions, results: Path) -> None:
    """Put the options that were given, and their files, into an output."""
    output.options = {}
    output.files = {}
    for option, value in options.items():
        if isinstance(value, Path):
            output.files[option] = os.path.relpath(value, results)
        elif isinstance(value, tuple) and value:
            output.files[option] = [os.path.relpath(path, results) for path in value]
        elif value:
            output.options[option] = value if isinstance(value, str) else ""


def _is_same_command(known: Output, output: Output) -> bool:
    """True if both are one command to one folder; of exports, with the same options."""
    if (known.command, known.folder) != (output.command, output.folder):
        return False
    same_options = (known.options, known.files) == (output.options, output.files)
    return same_options or not output.is_export


def _is_overwritten(known: Output, output: Output, files: Collection[str]) -> bool:
    """True if all that a command wrote is now that of another one with other options."""
    if (known.command, known.folder) != (output.command, output.folder):
        return False
    return set(known.written).issubset(files)


def _delete_files(folder: Path, paths: Iterable[str]) -> list[str]:
    """Delete files below a folder, and folders that are empty then; returns the paths of files.

    What lies elsewhere, or is there no more, is left out. Raises OSError.
    """
    deleted = []
    for path in paths:
        file = folder / path
        is_below = file.parent.resolve().is_relative_to(folder.resolve())
        if not is_below or not (file.is_file() or file.is_symlink()):
            continue
        file.unlink()
        deleted.append(path)
        if file.parent != folder:
            with contextlib.suppress(OSError):  # it holds something else
                file.parent.rmdir()
    return deleted


class ComparedOutput(NamedTuple):
    """What a command wrote, compared with the results of now."""

    output: Output
    changed: list[ChangedRow]  # of the class also those who are gone
    gone: list[str]  # submissions that were written and are not in the results any more
    again: str  # the command that writes it anew


class OutputComparison:
    """Finds whose results are others than in what was made of them; `add_row` compares one."""

    def __init__(self, results: Path) -> None:
        """Compare nothing yet; `results` is the folder of the results."""
        self.results = results
        # Of a folder that was taken away, nothing is said.
        self.outputs = []
        for output in load_outputs(results):
            if output.is_export or (results / output.folder).is_dir():
                self.outputs.append(output)
        self._changed: list[list[ChangedRow]] = [[] for _ in self.outputs]
        self._names: set[str] = set()  # of the submissions that were compared

    def add_row(self, row: SubmissionRow) -> None:
        """Compare a row with what was written of it."""
        if not self.outputs:
            return
        self._names.add(row.submission)
        now = describe_row(row)
        for output, changed in zip(self.outputs, self._changed, strict=True):
            written = output.rows.get(row.submission)
            is_in_class = output.is_whole and row.submission not in output.left_out
            was_asked_for = is_in_class or written is not None
            if written == now or not was_asked_for:
                continue
            before = None
            if written is not None and written.digest:
                before = Grade(written.points, written.max_points)
            changed.append(ChangedRow(row.called, before, row.final))

    def comparisons(self) -> list[ComparedOutput]:
        """What was found, once all rows were compared: whose results changed, and who is gone."""
        compared = []
        for output, changed in zip(self.outputs, self._changed, strict=True):
            gone = [name for name in output.rows if name not in self._names]
            rows = list(changed)
            if output.is_whole:
                for name in gone:
                    row = output.rows[name]
                    rows.append(ChangedRow(name, Grade(row.points, row.max_points), None))
            again = output.words(self.results, gone)
            compared.append(ComparedOutput(output, rows, gone, again))
        return compared

    def describe_stale_pages(self) -> list[str]:
        """A sentence about each set of pages that shows other results than these.

        Another one is about pages of single students who are not in the class any more.
        """
        sentences = []
        for output, changed, gone, again in self.comparisons():
            if output.is_export:
                continue
            folder = os.path.normpath(self.results / output.folder)
            if changed:
                sentences.append(f"the pages in {folder} show earlier results: {again}")
            if gone and not output.is_whole:
                names = first_names(gone, MOST_NAMES)
                sentences.append(f"{folder} has pages of who is not in the class any more: {names}")
        return sentences
