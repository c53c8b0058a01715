"""Chooses which definition of each function is graded."""

from __future__ import annotations

import ast
import enum
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from gpudojo.grading import load
from gpudojo.model.catalogue import days
from gpudojo.model.exercise import Exercise
from gpudojo.submissions.entries import ASIDE, SOURCES, copy_number, in_order, plain, shown, suffix

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A definition that can be chosen."""

    file: str
    line: int | None  # of the file, or of the cell
    cell: int | None  # of a notebook, among its code cells
    state: State
    imported: bool = False


@dataclass(frozen=True, slots=True)
class ChosenDefinition:
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
            others = [f"{shown(other.file)}{' (a stub)' * (other.state is State.STUB)}" for other in self.passed_over]
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            said.append(f"It is defined in {', '.join(others[:3])}{more}, too.")
        return " ".join(said)


@dataclass(frozen=True, slots=True)
class Choice:
    """The definitions that are graded of a submission."""

    definitions: tuple[ChosenDefinition, ...]
    unreadable: tuple[tuple[str, str], ...] = ()  # files that could not be parsed, and why
    problem: str | None = None  # why nothing could be found, where the files have it

    def of(self, function: str) -> ChosenDefinition | None:
        return next((found for found in self.definitions if found.function == function), None)


def choose(files: Mapping[str, bytes], exercises: Iterable[Exercise], trees: load.Trees | None = None) -> Choice:
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
        if not suffix(path, SOURCES) or not (b"\\u" in data or any(name.encode() in data for name in names)):
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
        problem = next(f"{shown(path)} could not be read: {reason}." for path, reason in unreadable.items())
    return Choice(tuple(found), tuple(unreadable.items()), problem)


def _versions(bound: dict[str, dict[str, Candidate]]) -> dict[str, tuple[str, ...]]:
    """By file that is one of several versions, `day8.py` and `day8 (1).py`: the others with work in them.

    Of these one is graded, the one with most work in it, or else the latest: what counts is never put together of two
    attempts. It is the file that comes first in the result.
    """
    work = {path: sum(c.state is State.DEFINED for c in names.values()) for path, names in bound.items()}
    alike: dict[tuple[str, str], list[str]] = {}
    for path in work:
        if work[path] and not _aside(path):
            alike.setdefault((plain(path), suffix(path, SOURCES)), []).append(path)
    found: dict[str, tuple[str, ...]] = {}
    for group in alike.values():
        best, *others = sorted(group, key=lambda path: (-work[path], -copy_number(path), in_order(path)))
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
        return older, _aside(one.file), _STATES.index(one.state), *named, one.imported, *in_order(one.file)

    candidates = sorted((names[function] for names in bound.values() if function in names), key=rank)
    if not candidates:
        should = min(files, key=lambda path: (_aside(path), *_named(path, exercise), *in_order(path)), default=None)
        # With other names, the file that should have it is only known if there is one file.
        if should is not None and (_aside(should) or (_named(should, exercise)[0] == 2 and len(files) > 1)):
            should = None
        named = should is not None and _named(should, exercise)[0] == 0
        return ChosenDefinition(exercise.stem, function, should, None, None, named, State.MISSING)

    best, *others = candidates
    named = _named(best.file, exercise)[0] == 0
    place = best.file, best.line, best.cell
    other_versions = tuple(path for path in versions.get(best.file, ()) if path != best.file)
    return ChosenDefinition(exercise.stem, function, *place, named, best.state, tuple(others), other_versions)


_STATES: Final = (State.DEFINED, State.BROKEN, State.STUB)


def _named(path: str, exercise: Exercise) -> tuple[int, bool]:
    """A rank by name: for the exercise, for the day, or other; and Python files before notebooks."""
    name = plain(path)
    rank = 0 if name == exercise.stem.casefold() else 1 if name in days() else 2
    return rank, bool(suffix(path, (load.SUFFIX,)))


def _aside(path: str) -> bool:
    """Whether its definitions are probably not meant to be graded."""
    pure = PurePosixPath(path)
    return any(part.casefold() in ASIDE for part in pure.parts[:-1]) or bool(_TESTS.fullmatch(plain(path)))


def _bindings(path: str, data: bytes, names: set[str], trees: load.Trees) -> tuple[dict[str, Candidate], str]:
    """The last binding of each name in a file, and what is wrong with the file."""
    found: dict[str, Candidate] = {}
    broken: dict[str, Candidate] = {}
    reason = ""
    try:
        for source, first, cell in parts(path, data):
            try:
                if len(source) > PARSED:
                    raise load.Unparsable(f"its Python is longer than {PARSED // 1000} kB", None)
                with warnings.catch_warnings(record=True) as warned:  # about escapes and comparisons in student code
                    warnings.simplefilter("always")
                    tree = load.parse(source, _NOWHERE, first)
                if not warned:  # which belong to the output of the student's file, and come when it is parsed again
                    trees[source, first] = tree
            except load.Unparsable as error:
                at = None if error.evidence.line is None else error.evidence.line - first + 1
                place = "" if at is None else f" in line {at}" + (f" of cell {cell}" if cell else "")
                reason = reason or f"{error}{place}"
                broken |= {name: Candidate(path, at, cell, State.BROKEN) for name in _looks_bound(source, names)}
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
    if not suffix(path, (load.SUFFIX,)):
        return [(load.decode(data), 1, None)]
    if data.count(b'"cell_type"') > CELLS:
        raise load.NotANotebook(f"it has more than {CELLS} cells")
    return [(cell.source, cell.first, cell.number) for cell in load.parse_cell(data).cells]


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
            elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_unfilled(node.value):
                unfilled.add(node.lineno)
    return imported, unfilled


def _is_unfilled(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(_is_unfilled(one) for one in value.values)
    return value is None or (isinstance(value, ast.Constant) and value.value in (None, ...))
