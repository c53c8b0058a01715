"""Reads the sources of one submission, and chooses which definition of each function is graded."""

from __future__ import annotations

import ast
import enum
import os
import re
import stat
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from virtual_cuda.hooks import format_size

from gpudojo.grading import load
from gpudojo.model.catalogue import day_names
from gpudojo.model.exercise import Exercise
from gpudojo.submissions import archives, entries
from gpudojo.submissions.archives import Contents, ListedFile
from gpudojo.submissions.entries import (
    ReadLimits,
    ReadSubmission,
    SourceFile,
    Unreadable,
    in_order,
    shown,
    suffix,
)

# A syntax tree takes a hundred times the memory of its source, and seconds for each megabyte.
PARSED: Final = 400_000
PARSED_IN_ALL: Final = 4_000_000
CELLS: Final = 2_000
_WHOLE: Final = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.Expr)
# Not the real name: to show the line of a syntax error, Python opens the file of that name.
_NOWHERE: Final = PurePosixPath("<submission>")
_TESTS: Final = re.compile(r"test_.*|.*_tests?|conftest")


class State(enum.StrEnum):
    """What is known of a definition."""

    DEFINED = "defined"
    BROKEN = "broken"  # in a file or cell that is not valid Python
    STUB = "stub"
    MISSING = "missing"


class Candidate(msgspec.Struct, frozen=True):
    """A definition that can be chosen."""

    file: str
    line: int | None  # of the file, or of the cell
    cell: int | None  # of a notebook, among its code cells
    state: State
    imported: bool = False


class ChosenDefinition(msgspec.Struct, frozen=True):
    """The definition that is graded. Where there is none, `file` is the one that should have it, if known."""

    exercise: str
    function: str
    file: str | None
    line: int | None
    cell: int | None
    named: bool  # whether the file is named for the exercise
    state: State
    passed_over: tuple[Candidate, ...] = ()
    versions: tuple[str, ...] = ()  # other versions of its file, which have work in them, too

    @property
    def note(self) -> str:
        """What is worth knowing about the choice; empty where it is the obvious one."""
        if self.file is None or self.state is State.MISSING:
            return ""
        said = []
        if not self.named:
            said.append(f"It was taken from {shown(self.file)}.")
        if self.passed_over:
            others = [
                f"{shown(other.file)}{' (a stub)' * (other.state is State.STUB)}"
                for other in self.passed_over
            ]
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            said.append(f"It is defined in {', '.join(others[:3])}{more}, too.")
        return " ".join(said)


class Choice(msgspec.Struct, frozen=True):
    """The definitions that are graded of a submission."""

    definitions: tuple[ChosenDefinition, ...]
    unreadable: tuple[tuple[str, str], ...] = ()  # files that could not be parsed, and why
    problem: str | None = None  # why nothing could be found, where the files have it

    def of(self, function: str) -> ChosenDefinition | None:
        return next((found for found in self.definitions if found.function == function), None)


def choose(
    files: Mapping[str, bytes], exercises: Iterable[Exercise], trees: load.Trees | None = None
) -> Choice:
    """Choose a definition of every function; the same for the same files. Raises nothing.

    Syntax trees are put into `trees`, for who loads the files next.
    """
    exercises = tuple(exercises)
    names = {function.name for exercise in exercises for function in exercise.functions}
    bound: dict[str, dict[str, Candidate]] = {}
    unreadable: dict[str, str] = {}
    left = PARSED_IN_ALL
    for path in sorted(files, key=in_order):
        data = files[path]
        # A file that names none of the functions is not parsed.
        if not suffix(path, entries.SOURCES) or not (
            b"\\u" in data or any(name.encode() in data for name in names)
        ):
            continue
        left -= min(len(data), PARSED)
        if left < 0:
            unreadable[path] = "it was not read, because there is too much Python beside it"
            continue
        bound[path], reason = _bindings(path, data, names, {} if trees is None else trees)
        if reason:
            unreadable[path] = reason
    versions = _versions(bound)
    found = [
        _definition(exercise, function.name, files, bound, versions)
        for exercise in exercises
        for function in exercise.functions
    ]
    problem = None
    if unreadable and all(one.state in (State.MISSING, State.BROKEN) for one in found):
        problem = next(
            f"{shown(path)} could not be read: {reason}." for path, reason in unreadable.items()
        )
    return Choice(tuple(found), tuple(unreadable.items()), problem)


def _versions(bound: dict[str, dict[str, Candidate]]) -> dict[str, tuple[str, ...]]:
    """By file that is one of several versions, `day8.py` and `day8 (1).py`: the others with work in them.

    Of these one is graded, the one with most work in it, or else the latest: what counts is never put together of two
    attempts. It is the file that comes first in the result.
    """
    work = {
        path: sum(c.state is State.DEFINED for c in names.values()) for path, names in bound.items()
    }
    alike: dict[tuple[str, str], list[str]] = {}
    for path in work:
        if work[path] and not _aside(path):
            alike.setdefault((entries.plain(path), suffix(path, entries.SOURCES)), []).append(path)
    found: dict[str, tuple[str, ...]] = {}
    for group in alike.values():
        best, *others = sorted(
            group, key=lambda path: (-work[path], -entries.copy_number(path), in_order(path))
        )
        found |= {path: (best, *others) for path in group if others}
    return found


def _definition(
    exercise: Exercise,
    function: str,
    files: Mapping[str, bytes],
    bound: dict[str, dict[str, Candidate]],
    versions: dict[str, tuple[str, ...]],
) -> ChosenDefinition:
    def rank(one: Candidate) -> tuple[object, ...]:
        named = _named(one.file, exercise)
        older = one.file != versions.get(one.file, (one.file,))[0]
        return (
            older,
            _aside(one.file),
            _STATES.index(one.state),
            *named,
            one.imported,
            *in_order(one.file),
        )

    candidates = sorted(
        (names[function] for names in bound.values() if function in names), key=rank
    )
    if not candidates:
        should = min(
            files,
            key=lambda path: (_aside(path), *_named(path, exercise), *in_order(path)),
            default=None,
        )
        # With other names, the file that should have it is only known if there is one file.
        if should is not None and (
            _aside(should) or (_named(should, exercise)[0] == 2 and len(files) > 1)
        ):
            should = None
        named = should is not None and _named(should, exercise)[0] == 0
        return ChosenDefinition(exercise.stem, function, should, None, None, named, State.MISSING)

    best, *others = candidates
    named = _named(best.file, exercise)[0] == 0
    place = best.file, best.line, best.cell
    other_versions = [path for path in versions.get(best.file, ()) if path != best.file]
    if (
        not named and best.state is State.DEFINED
    ):  # whichever file is meant, perhaps old.py or final.py: ask a person
        other_versions += [
            one.file for one in others if _rivals(best, one) and one.file not in other_versions
        ]
    return ChosenDefinition(
        exercise.stem, function, *place, named, best.state, tuple(others), tuple(other_versions)
    )


def _rivals(one: Candidate, other: Candidate) -> bool:
    """Whether two files each have work on a function; not where one is a notebook and the other its export."""
    work = all(
        each.state is State.DEFINED and not each.imported and not _aside(each.file)
        for each in (one, other)
    )
    return work and entries.plain(one.file) != entries.plain(other.file)


_STATES: Final = (State.DEFINED, State.BROKEN, State.STUB)


def _named(path: str, exercise: Exercise) -> tuple[int, bool]:
    """A rank by name: for the exercise, for the day, or other; and Python files before notebooks."""
    name = entries.plain(path)
    rank = 0 if name == exercise.stem.casefold() else 1 if name in day_names() else 2
    return rank, bool(suffix(path, (load.NOTEBOOK_SUFFIX,)))


def _aside(path: str) -> bool:
    """Whether its definitions are probably not meant to be graded."""
    aside = any(part.casefold() in entries.ASIDE for part in PurePosixPath(path).parts[:-1])
    return aside or bool(_TESTS.fullmatch(entries.plain(path)))


def _bindings(
    path: str, data: bytes, names: set[str], trees: load.Trees
) -> tuple[dict[str, Candidate], str]:
    """The last binding of each name in a file, and what is wrong with the file."""
    found: dict[str, Candidate] = {}
    broken: dict[str, Candidate] = {}
    reason = ""
    try:
        for source, first, cell in parts(path, data):
            try:
                if len(source) > PARSED:
                    raise load.Unparsable(f"its Python is longer than {PARSED // 1000} kB", None)
                with warnings.catch_warnings(
                    record=True
                ) as warned:  # about escapes and comparisons in student code
                    warnings.simplefilter("always")
                    tree = load.parse_source(source, _NOWHERE, first)
                if not warned:  # which belong to the output of the student's file, and come when it is parsed again
                    trees[source, first] = tree
            except load.Unparsable as error:
                at = None if error.evidence.line is None else error.evidence.line - first + 1
                place = (
                    "" if at is None else f" in line {at}" + (f" of cell {cell}" if cell else "")
                )
                reason = reason or f"{error}{place}"
                broken |= {
                    name: Candidate(path, at, cell, State.BROKEN)
                    for name in _looks_bound(source, names)
                }
                continue
            imported, unfilled = _lines(tree)
            for name, line, stub in load.bindings(tree):
                if name in names:
                    state = State.STUB if stub or line in unfilled else State.DEFINED
                    found[name] = Candidate(path, line - first + 1, cell, state, line in imported)
    except (load.Unparsable, load.NotANotebook) as error:
        return {}, str(error)
    except (RecursionError, MemoryError):
        return {}, "it is nested too deeply"
    for name, one in broken.items():
        if name not in found or found[name].state is State.STUB:
            found[name] = one
    return found, reason


def parts(path: str, data: bytes) -> list[tuple[str, int, int | None]]:
    """The text of a file, or of each code cell, with its first line and the number of the cell.

    Raises load.Unparsable, load.NotANotebook, RecursionError or MemoryError."""
    if not suffix(path, (load.NOTEBOOK_SUFFIX,)):
        return [(load.decode_source(data), 1, None)]
    if data.count(b'"cell_type"') > CELLS:
        raise load.NotANotebook(f"it has more than {CELLS} cells")
    return [(cell.source, cell.first, cell.number) for cell in load.parse_notebook(data).cells]


def _looks_bound(source: str, names: set[str]) -> set[str]:
    """The names that a text which is not valid Python seems to define."""
    any_of = "|".join(sorted(map(re.escape, names)))
    heads = rf"^(?:(?:async[ \t]+)?(?:def|class)[ \t]+({any_of})\b|({any_of})[ \t]*[:=])"
    return {head[1] or head[2] for head in re.finditer(heads, source, re.M)}


def _lines(tree: ast.Module) -> tuple[set[int], set[int]]:
    """The lines of imports, and of assignments in which there is nothing but None yet."""
    imported: set[int] = set()
    unfilled: set[int] = set()
    for statement in tree.body:
        if load.is_demo(statement):
            continue
        # an assignment has no statements inside, and may be a long table
        for node in (statement,) if isinstance(statement, _WHOLE) else load.in_scope(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported.add(node.lineno)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and is_unfilled(node.value):
                unfilled.add(node.lineno)
    return imported, unfilled


def is_unfilled(value: ast.expr | None) -> bool:
    """Whether there is nothing in a value but None yet, as in the answers of a stub."""
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(is_unfilled(one) for one in value.values)
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, ...))


_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=]", re.M)


def fault(file: SourceFile) -> str | None:
    """What is wrong with the bytes of a source, as the rest of a sentence that its name begins; or None."""
    data = file.data
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is UTF-16 text; save it as UTF-8"
    if b"\0" in data:
        return "is not text: it has a null byte in it"
    notebook = bool(suffix(file.path, (".ipynb",)))
    # A Python file may name another encoding in its first two lines.
    if notebook or not any(_CODING.match(line) for line in data.split(b"\n", 2)[:2]):
        try:
            data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return (
                f"is not UTF-8 text: byte {data[error.start]:#04x} in line {line}; save it as UTF-8"
            )
    if notebook:
        # Parsed only in the sandbox: ten megabytes of brackets take a quarter of a gigabyte.
        text = data.removeprefix(b"\xef\xbb\xbf").strip()
        if not text.startswith(b"{"):
            return "is not a notebook"
        if not text.endswith(b"}"):
            return "is not a notebook, or one that is cut off"
        if b'"cells"' not in text and b'"worksheets"' not in text:
            return "is not a notebook: it has no cells"
    return None


WRITTEN: Final = "with %%writefile; such cells are not run."
_WRITES: Final = re.compile(rb'"\s*%%(?:write)?file\s+(?:-a\s+)?([^"\\\s]+\.py)\b')


def written_by_cells(file: SourceFile) -> str:
    """A sentence about Python files that cells of a notebook would write; empty where there are none.

    It looks for the magic in the notebook's JSON, which is parsed only in the sandbox."""
    if not suffix(file.path, (".ipynb",)) or b"file" not in file.data:
        return ""
    found = sorted({name.decode("utf-8", "replace") for name in _WRITES.findall(file.data)})
    names = ", ".join(map(shown, found[:3])) + f" and {len(found) - 3} more" * (len(found) > 3)
    return f"A cell of {shown(file.path)} writes {names} {WRITTEN}" if found else ""


def read(entry: entries.SubmissionEntry, limits: ReadLimits | None = None) -> ReadSubmission:
    """Read an entry. What is wrong with it is in `problem` and `notes`; nothing is raised."""
    limits = limits or ReadLimits()
    reader = _SourceReader(limits)
    try:
        for name, path in entry.members or (("", entry.origin),):
            reader.take(name, path)
        reader.take_waiting()
    except Exception as error:  # one strange submission must not end the run
        return ReadSubmission(
            entry, (), f"It could not be read ({type(error).__name__}).", (), entries.digest(())
        )
    return reader.submission(entry)


class _SourceReader:
    """Collects sources as long as the limits allow."""

    def __init__(self, limits: ReadLimits) -> None:
        self.limits = limits
        self.files: dict[str, SourceFile] = {}
        self.notes: list[str] = []
        self.spent = 0  # bytes read so far
        self.unpacked = 0  # bytes of gzips
        self.others = 0
        self.too_many = 0
        self.waiting: list[ListedFile] = []  # archives inside what was handed in
        self._folders: set[str] = set()
        self._folded: set[str] = set()

    def take(self, name: str, path: Path) -> None:
        """Read a path on disk: a folder, an archive or a source."""
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):  # only a path from the command line can be a link here
                mode = os.stat(path).st_mode
                path = Path(os.path.realpath(path))
            if stat.S_ISDIR(mode):
                self.take_all(archives.folder_listing(path, self.limits), name, nested=True)
            elif not stat.S_ISREG(mode):
                raise Unreadable(archives.NOT_A_FILE)
            elif suffix(path.name, entries.ARCHIVES):
                most = self.limits.archive_bytes
                data = archives.fetch(path, most)
                if len(data) > most:
                    raise Unreadable(f"is larger than {format_size(most)}")
                self.take_all(self.unpack(data), name, nested=True)
            elif ending := suffix(path.name, entries.STRANGE_ARCHIVES):
                raise Unreadable(
                    f"is an archive of a kind that is not supported ({ending}); hand in a .zip"
                )
            else:
                alone = Contents()
                inside = alone.place(name or path.name, self.limits, on_disk=True)
                if inside is not None:
                    alone.files[name] = ListedFile(
                        inside, os.stat(path).st_size, partial(archives.fetch, path)
                    )
                self.take_all(alone, "", nested=False)
        except Unreadable as error:
            self.notes.append(f"{shown(path.name)} {error}.")
        except (OSError, ValueError) as error:
            self.notes.append(f"{shown(path.name)} cannot be read: {entries.reason(error)}.")

    def unpack(self, data: bytes) -> Contents:
        """List an archive by its content, whatever its name is."""
        if data[:2] == b"\x1f\x8b" or (data[:2] != b"PK" and archives.is_tar(data)):
            left = max(self.limits.total_bytes - self.unpacked, 0)
            contents = archives.tar_listing(
                data, msgspec.structs.replace(self.limits, total_bytes=left)
            )
            self.unpacked += contents.unpacked
            return contents
        if not data:
            raise Unreadable("is empty")
        for magic, kind in (
            (b"Rar!", "rar"),
            (b"7z\xbc\xaf", "7z"),
            (b"BZh", "bzip2"),
            (b"\xfd7zXZ", "xz"),
        ):
            if data.startswith(magic):
                raise Unreadable(f"is a {kind} archive under another name; hand in a .zip")
        return archives.zip_listing(data, self.limits)

    def take_all(self, contents: Contents, folder: str, nested: bool) -> None:
        """Read everything that can be graded in a folder or archive, the shallowest first."""
        self.notes += contents.notes
        prefix = f"{folder}/" if folder else ""
        for found in sorted(
            contents.files.values(), key=lambda found: entries.in_order(found.path)
        ):
            path = prefix + found.path
            if suffix(path, entries.SOURCES):
                self.take_source(ListedFile(path, found.size, found.fetch))
            elif suffix(path, entries.ARCHIVES) and nested:
                self.waiting.append(ListedFile(path, found.size, found.fetch))
            elif suffix(path, entries.ARCHIVES):
                self.notes.append(
                    f"{shown(path)} is an archive in an archive in an archive, which is not opened."
                )
            else:
                self.others += 1

    def take_waiting(self) -> None:
        """Read archives inside what was handed in, one level deep: platforms pack what students packed."""
        for found in self.waiting:
            try:
                contents = self.unpack(self.fetch(found, self.limits.archive_bytes))
            except Unreadable as error:
                self.notes.append(f"{shown(found.path)} {error}.")
            else:
                self.take_all(contents, found.path, nested=False)

    def take_source(self, found: ListedFile) -> None:
        if len(self.files) >= self.limits.files:
            self.too_many += 1
            return
        try:
            self.place(found.path)
            data = self.fetch(found, self.limits.file_bytes)
        except Unreadable as error:
            self.notes.append(f"{shown(found.path)} {error}.")
            return
        if not data.strip():
            self.notes.append(f"{shown(found.path)} is empty.")
            return
        self.files[found.path] = SourceFile(found.path, data)
        self._folded.add(entries.folded(found.path))
        self._folders |= _parents(entries.folded(found.path))

    def place(self, path: str) -> None:
        """Each path once, also on systems to which case does not matter; and no file where another needs a folder."""
        key = entries.folded(path)
        if len(path.encode()) > self.limits.path_length:
            raise Unreadable(f"has a path of more than {self.limits.path_length} bytes")
        if path in self.files:
            raise Unreadable("was ignored: another file has its name")
        if key in self._folded:
            raise Unreadable(
                "was ignored: its name differs from another file's only in upper and lower case"
            )
        if key in self._folders or _parents(key) & self._folded:
            raise Unreadable("was ignored: it is a file and a folder at once")

    def fetch(self, found: ListedFile, most: int) -> bytes:
        left = self.limits.total_bytes - self.spent
        if found.size > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        try:
            data = found.fetch(min(most, left)) if found.size <= left else None
        except Unreadable:
            self.spent += found.size  # to find out that it is damaged takes as long as to read it
            raise
        if data is None or len(data) > left:
            raise Unreadable(
                f"goes beyond the {format_size(self.limits.total_bytes)} that are read in total"
            )
        if len(data) > most:
            raise Unreadable(f"is larger than {format_size(most)}")
        self.spent += len(data)
        return data

    def submission(self, entry: entries.SubmissionEntry) -> ReadSubmission:
        files = tuple(sorted(self.files.values(), key=lambda file: entries.in_order(file.path)))
        faults = [f"{shown(file.path)} {found}." for file in files if (found := fault(file))]
        problem = None
        if not files:
            problem = self.notes[0] if self.notes else self._nothing()
        elif len(faults) == len(files):
            problem = faults[0]
        if (
            not problem
            and len(entries.people_of(file.path for file in files)) > 1
            and entry.kind in (entries.Kind.ZIP, entries.Kind.TAR)
        ):
            instead = (
                "give it by itself"
                if entry.kind is entries.Kind.ZIP
                else "unpack it and give the folder"
            )
            problem = f"It holds the work of several students; to grade them, {instead}: dojo grade PATH --out DIR."
        notes = [*faults, *dict.fromkeys(self.notes), *filter(None, map(written_by_cells, files))]
        if self.too_many:
            taken = (
                f"only the first {len(files)} were read"
                if len(files) > 1
                else "only the first was read"
            )
            notes.insert(
                0, f"There are {len(files) + self.too_many} Python files and notebooks; {taken}."
            )
        if self.others and files:
            several = self.others > 1
            what = (
                "files that are not exercises were"
                if several
                else "file that is not an exercise was"
            )
            notes.append(f"{self.others} {what} ignored.")
        if len(notes) > self.limits.notes:
            more = len(notes) - self.limits.notes + 1
            notes = [*notes[: self.limits.notes - 1], f"There are {more} more remarks like these."]
        return ReadSubmission(entry, files, problem, tuple(notes), entries.digest(files))

    def _nothing(self) -> str:
        if self.others:
            several = f"There is no Python file or notebook among the {self.others} files."
            return (
                several
                if self.others > 1
                else "The only file is neither a Python file nor a notebook."
            )
        return "It is empty."


def _parents(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}
