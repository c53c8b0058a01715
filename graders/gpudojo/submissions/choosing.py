"""Chooses which definition of each function is graded."""

from __future__ import annotations

import ast
import enum
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeGuard

import msgspec

from gpudojo.grading import notebooks, sources
from gpudojo.grading.bindings import (
    bindings_of_statement,
    find_bindings,
    is_demo,
    nodes_of_scope,
)
from gpudojo.model.catalogue import day_names
from gpudojo.model.exercise import Exercise
from gpudojo.submissions.names import (
    ASIDE,
    SOURCES,
    copy_number,
    curriculum_name,
    depth_key,
    ending_of,
    name_in_text,
)

# A syntax tree takes a hundred times the memory of its source, and seconds for each megabyte.
PARSED_CHARACTERS: Final = 400_000
PARSED_IN_ALL: Final = 4_000_000
CELLS_AT_MOST: Final = 2_000
TOO_MUCH_BESIDE: Final = "it was not read, because there is too much Python beside it"
OTHERS_SHOWN: Final = 3  # definitions that were passed over
_WITHOUT_STATEMENTS: Final = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.Expr)
# Not the real name: to show the line of a syntax error, Python opens the file of that name.
_NOWHERE: Final = PurePosixPath("<submission>")
# Of a release, with a folder for each day.
_RELEASED_FOLDERS: Final = ("exercises", "notebooks")
_TEST_FILE: Final = re.compile(r"test_.*|.*_tests?|conftest")


class State(enum.StrEnum):
    """What is known of a definition."""

    DEFINED = "defined"
    BROKEN = "broken"  # in a file or cell that is not valid Python
    STUB = "stub"
    MISSING = "missing"


_STATES_IN_ORDER: Final = (State.DEFINED, State.BROKEN, State.STUB)  # the best first


class Candidate(msgspec.Struct, frozen=True):
    """A definition that can be chosen."""

    file: str
    line: int | None  # of the file, or of the cell
    cell: int | None  # of a notebook, among its code cells
    state: State
    imported: bool = False


# The last binding of each function's name, by file.
_Bindings = Mapping[str, Mapping[str, Candidate]]


class ChosenDefinition(msgspec.Struct, frozen=True):
    """The definition that is graded.

    If there is none, `file` is the one that should have it, if known.
    """

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
        """Sentences about the choice; empty if it is the obvious one.

        That is the only definition, in the file that is named for the exercise.
        """
        if self.file is None or self.state is State.MISSING:
            return ""
        sentences = []
        if not self.named:
            sentences.append(f"It was taken from {name_in_text(self.file)}.")
        if self.passed_over:
            sentences.append(f"It is defined in {self._others_in_words()}, too.")
        return " ".join(sentences)

    def _others_in_words(self) -> str:
        """The files of the first definitions that were passed over, and how many more there are."""
        others = []
        for other in self.passed_over[:OTHERS_SHOWN]:
            name = name_in_text(other.file)
            if other.state is State.STUB:
                name += " (a stub)"
            others.append(name)
        text = ", ".join(others)
        left_out = len(self.passed_over) - len(others)
        if left_out:
            text += f" and {left_out} more"
        return text


class UnreadableFile(NamedTuple):
    """A file that could not be parsed, and why."""

    path: str
    reason: str


class Choice(msgspec.Struct, frozen=True):
    """The definitions that are graded of a submission."""

    definitions: tuple[ChosenDefinition, ...]
    unreadable: tuple[UnreadableFile, ...] = ()
    problem: str | None = None  # why nothing could be found, if the files have it

    def definition_of(self, function: str) -> ChosenDefinition | None:
        """The definition of a function; None for one that no exercise has."""
        for definition in self.definitions:
            if definition.function == function:
                return definition
        return None


def choose_definitions(
    files: Mapping[str, bytes],
    exercises: Iterable[Exercise],
    trees: sources.Trees | None = None,
) -> Choice:
    """Choose a definition of every function; equal files give an equal choice.

    Raises nothing. Puts syntax trees into `trees`, for who loads the files next.
    """
    exercises = tuple(exercises)
    names: set[str] = set()
    for exercise in exercises:
        names.update(function.name for function in exercise.functions)
    if trees is None:
        trees = {}
    bindings, unreadable = _bindings_in_files(files, names, trees)
    # The best definition of each function.
    versions = _versions_of_files(files, bindings)
    definitions = []
    for exercise in exercises:
        for function in exercise.functions:
            chooser = _Chooser(exercise, function.name, versions)
            definitions.append(chooser.choose_definition(files, bindings))
    # Where nothing can be graded, the first file that could not be read is the reason.
    problem = None
    states = {chosen.state for chosen in definitions}
    if unreadable and states <= {State.MISSING, State.BROKEN}:
        first = unreadable[0]
        problem = f"{name_in_text(first.path)} could not be read: {first.reason}."
    return Choice(tuple(definitions), tuple(unreadable), problem)


class _ParsedFiles(NamedTuple):
    """What files bind, by path, and those that could not be parsed."""

    bindings: dict[str, dict[str, Candidate]]
    unreadable: list[UnreadableFile]


def _bindings_in_files(
    files: Mapping[str, bytes], names: set[str], trees: sources.Trees
) -> _ParsedFiles:
    """What each file binds, the shallowest files first, up to a limit over all.

    Syntax trees are put into `trees`. Files that name none of the functions are not parsed.
    """
    parsed = _ParsedFiles({}, [])
    bytes_left = PARSED_IN_ALL
    for path in sorted(files, key=depth_key):
        data = files[path]
        if not ending_of(path, SOURCES):
            continue
        if not _may_name_any(data, names):
            continue
        bytes_left -= min(len(data), PARSED_CHARACTERS)
        if bytes_left < 0:
            parsed.unreadable.append(UnreadableFile(path, TOO_MUCH_BESIDE))
            continue
        file = _bindings_in_file(path, data, names, trees)
        parsed.bindings[path] = file.bindings
        if file.fault:
            parsed.unreadable.append(UnreadableFile(path, file.fault))
    return parsed


def _may_name_any(data: bytes, names: set[str]) -> bool:
    """False if a file names none of the functions: it is not parsed then."""
    if b"\\u" in data:  # a letter of a name may be written so in a notebook
        return True
    return any(name.encode() in data for name in names)


def _versions_of_files(files: Collection[str], bindings: _Bindings) -> dict[str, tuple[str, ...]]:
    """All versions of a file, by the path of each of them, where there are several.

    Versions are files like `day8.py` and `day8 (1).py`. Of these one is graded: the one in the
    place of the released file, else the one with most work in it, or else the latest. What counts
    is never put together of two attempts. It comes first in each tuple.
    """
    work = {}  # by file: how many functions it defines
    groups: dict[str, list[str]] = {}  # by the name that all versions share
    for path, candidates in bindings.items():
        states = [one.state for one in candidates.values()]
        work[path] = states.count(State.DEFINED)
        if work[path] == 0 or _is_test_or_backup(path):
            continue
        name = curriculum_name(path)
        ending = ending_of(path, SOURCES)
        groups.setdefault(f"{name}{ending}", []).append(path)
    versions: dict[str, tuple[str, ...]] = {}
    for group in groups.values():
        if len(group) == 1:
            continue
        # The last of these sorts counts most.
        group.sort(key=depth_key)
        group.sort(key=copy_number, reverse=True)
        group.sort(key=work.__getitem__, reverse=True)
        group.sort(key=lambda path: _is_released_place(path, files), reverse=True)
        for path in group:
            versions[path] = tuple(group)
    return versions


def _is_released_place(path: str, files: Collection[str]) -> bool:
    """True if a file lies where the released one does, under its own name.

    That is `exercises/DAY/FILE` or `notebooks/DAY/FILE`, in the folder that holds all `files`.
    """
    parts = PurePosixPath(path).parts
    *around, top, day, name = ("", "", *parts)
    around = [folder for folder in around if folder]
    if top.casefold() not in _RELEASED_FOLDERS or day.casefold() not in day_names():
        return False
    if copy_number(name) or PurePosixPath(name).stem.casefold() != curriculum_name(name):
        return False
    folder = "".join(f"{each}/" for each in around)
    return all(each.startswith(folder) for each in files)


class _NameRank(NamedTuple):
    """How well a file's name fits an exercise; less is better."""

    rank: int  # one of the three below
    is_notebook: bool


_FOR_EXERCISE: Final = 0
_FOR_DAY: Final = 1
_FOR_NEITHER: Final = 2


class _Chooser:
    """Chooses the definition of one function."""

    def __init__(
        self, exercise: Exercise, function: str, versions: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Choose nothing yet. `versions` is what `_versions_of_files` returns."""
        self._exercise = exercise
        self._function = function
        self._versions = versions  # by file that has several: all, the one that is graded first

    def choose_definition(
        self, files: Mapping[str, bytes], bindings: _Bindings
    ) -> ChosenDefinition:
        """The best definition in all files; with `State.MISSING` if there is none.

        It names the others that were passed over, and versions of its file that a person should
        look at.
        """
        candidates = []
        for names in bindings.values():
            if self._function in names:
                candidates.append(names[self._function])
        if not candidates:
            return self._missing_definition(files)
        # The best one, and other versions of its file.
        best, *others = sorted(candidates, key=self._rank_candidate)
        named = self._is_named_for_exercise(best.file)
        versions = list(self._versions.get(best.file, ()))
        if best.file in versions:
            versions.remove(best.file)
        # Whichever file is meant, perhaps old.py or final.py: ask a person.
        for other in others:
            if other.file in versions or not _have_both_work(best, other):
                continue
            one_name = curriculum_name(best.file) == curriculum_name(other.file)
            if (not named and not one_name) or _differ(best, other, self._function, files):
                versions.append(other.file)
        return ChosenDefinition(
            exercise=self._exercise.stem,
            function=self._function,
            file=best.file,
            line=best.line,
            cell=best.cell,
            named=named,
            state=best.state,
            passed_over=tuple(others),
            versions=tuple(versions),
        )

    def _rank_candidate(self, one: Candidate) -> tuple[object, ...]:
        """Return a sort key that puts the best candidate first.

        Best is what stands in the version that is graded, not in a test file or a backup folder;
        then by state, by the name of the file, defined rather than only imported, and least deep.
        """
        is_older_version = False
        if one.file in self._versions:
            is_older_version = one.file != self._versions[one.file][0]
        return (
            is_older_version,
            _is_test_or_backup(one.file),
            _STATES_IN_ORDER.index(one.state),
            *self._rank_name(one.file),
            one.imported,
            *depth_key(one.file),
        )

    def _rank_name(self, path: str) -> _NameRank:
        """How well the name of a file fits the exercise; a Python file before a notebook."""
        name = curriculum_name(path)
        rank = _FOR_NEITHER
        if name == self._exercise.stem.casefold():
            rank = _FOR_EXERCISE
        elif name in day_names():
            rank = _FOR_DAY
        return _NameRank(rank, _is_notebook(path))

    def _is_named_for_exercise(self, path: str) -> bool:
        """True if the name of a file is that of the exercise."""
        return self._rank_name(path).rank == _FOR_EXERCISE

    def _missing_definition(self, files: Mapping[str, bytes]) -> ChosenDefinition:
        """A definition that says there is none.

        It names the file that should have it, if that is known.
        """
        file = self._file_that_should_have_it(files)
        named = file is not None and self._is_named_for_exercise(file)
        return ChosenDefinition(
            exercise=self._exercise.stem,
            function=self._function,
            file=file,
            line=None,
            cell=None,
            named=named,
            state=State.MISSING,
        )

    def _file_that_should_have_it(self, files: Collection[str]) -> str | None:
        """The file whose name fits the exercise or the day, or the only one; else None."""
        paths = [path for path in files if not _is_test_or_backup(path)]
        if not paths:
            return None
        paths.sort(key=depth_key)
        best = min(paths, key=self._rank_name)
        fits = self._rank_name(best).rank != _FOR_NEITHER
        if fits or len(files) == 1:
            return best
        return None


def _have_both_work(one: Candidate, other: Candidate) -> bool:
    """True if two files each have work on a function that may be meant to be graded."""
    for each in (one, other):
        if each.state is not State.DEFINED:
            return False
        if each.imported or _is_test_or_backup(each.file):
            return False
    return True


def _differ(one: Candidate, other: Candidate, function: str, files: Mapping[str, bytes]) -> bool:
    """True if two files define a function by different code; not for a notebook and its export."""
    codes = [_code_of(each, function, files[each.file]) for each in (one, other)]
    return codes[0] != codes[1]


def _code_of(candidate: Candidate, function: str, data: bytes) -> str:
    """The last definition of a function in a file, without comments and layout.

    Empty where it is not found. The file could be parsed before.
    """
    for part in source_parts(candidate.file, data):
        if part.cell != candidate.cell:
            continue
        for statement in reversed(_parse_part(part, {}).body):
            if any(each.name == function for each in bindings_of_statement(statement)):
                return ast.dump(statement)
    return ""


def _is_test_or_backup(path: str) -> bool:
    """True if a file's definitions are probably not meant to be graded."""
    folders = PurePosixPath(path).parts[:-1]
    if any(folder.casefold() in ASIDE for folder in folders):
        return True
    return bool(_TEST_FILE.fullmatch(curriculum_name(path)))


def _is_notebook(path: str) -> bool:
    """True if the name of a file is that of a notebook."""
    return bool(ending_of(path, (notebooks.NOTEBOOK_SUFFIX,)))


class SourcePart(NamedTuple):
    """The text of a Python file, or of a code cell of a notebook."""

    source: str
    first_line: int  # counted over all cells
    cell: int | None  # its number


def source_parts(path: str, data: bytes) -> list[SourcePart]:
    """The text of a file, or of each code cell of a notebook.

    Raises sources.Unparsable, notebooks.NotANotebook, RecursionError or MemoryError.
    """
    if not _is_notebook(path):
        return [SourcePart(sources.decode_source(data), 1, None)]
    if data.count(b'"cell_type"') > CELLS_AT_MOST:
        raise notebooks.NotANotebook(f"it has more than {CELLS_AT_MOST} cells")
    parts = []
    for cell in notebooks.parse_notebook(data).cells:
        parts.append(SourcePart(cell.source, cell.first, cell.number))
    return parts


class _ParsedFile(NamedTuple):
    """The last binding of each name in a file, and what is wrong with the file, or ""."""

    bindings: dict[str, Candidate]
    fault: str


def _bindings_in_file(path: str, data: bytes, names: set[str], trees: sources.Trees) -> _ParsedFile:
    """What a file binds, and its first fault. Syntax trees are put into `trees`.

    Raises nothing: a file that cannot be read binds nothing.
    """
    reader = _BindingsReader(path, names, trees)
    try:
        for part in source_parts(path, data):
            reader.read_part(part)
    except (sources.Unparsable, notebooks.NotANotebook) as error:
        return _ParsedFile({}, str(error))
    except (RecursionError, MemoryError):
        return _ParsedFile({}, "it is nested too deeply")
    return _ParsedFile(reader.all_bindings(), reader.fault)


class _BindingsReader:
    """Collects what the parts of one file bind."""

    def __init__(self, path: str, names: set[str], trees: sources.Trees) -> None:
        """Read nothing yet; `path` is that of the file.

        `names` are the functions to look for; syntax trees are put into `trees`.
        """
        self.fault = ""  # of the first part that is not Python
        self._path = path
        self._names = names
        self._trees = trees
        self._bindings: dict[str, Candidate] = {}
        self._broken: dict[str, Candidate] = {}  # what parts bind that are not Python

    def read_part(self, part: SourcePart) -> None:
        """Add what a part binds; one that is not Python does not spoil the other cells.

        Raises RecursionError or MemoryError for what is nested too deeply.
        """
        try:
            tree = _parse_part(part, self._trees)
        except sources.Unparsable as error:
            self._note_broken_part(part, error)
            return
        self._bindings |= _bindings_in_tree(self._path, part, tree, self._names)

    def _note_broken_part(self, part: SourcePart, error: sources.Unparsable) -> None:
        """Note the fault of a part, if it is the first, and the names it seems to define."""
        line = error.evidence.line
        if line is not None:
            line -= part.first_line - 1
        if not self.fault:
            self.fault = f"{error}{_place_in_words(line, part.cell)}"
        candidate = Candidate(self._path, line, part.cell, State.BROKEN)
        for name in _names_that_look_bound(part.source, self._names):
            self._broken[name] = candidate

    def all_bindings(self) -> dict[str, Candidate]:
        """The last binding of each name.

        A broken definition is better than none, and than a stub.
        """
        bindings = dict(self._bindings)
        for name, candidate in self._broken.items():
            if name not in bindings or bindings[name].state is State.STUB:
                bindings[name] = candidate
        return bindings


def _parse_part(part: SourcePart, trees: sources.Trees) -> ast.Module:
    """The syntax tree of a text, which is also put into `trees`.

    Not if there are warnings, about escapes and comparisons: they belong to the output of the
    student's file, and come when it is parsed again. Raises sources.Unparsable for a text that is
    no Python or too long.
    """
    if len(part.source) > PARSED_CHARACTERS:
        size = f"{PARSED_CHARACTERS // 1000} kB"
        raise sources.Unparsable(f"its Python is longer than {size}", None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tree = sources.parse_source(part.source, _NOWHERE, part.first_line)
    if not warned:
        trees[part.source, part.first_line] = tree
    return tree


def _place_in_words(line: int | None, cell: int | None) -> str:
    """Where something is, for the end of a sentence. Empty where that is not known."""
    if line is None:
        return ""
    if cell:
        return f" in line {line} of cell {cell}"
    return f" in line {line}"


def _bindings_in_tree(
    path: str, part: SourcePart, tree: ast.Module, names: set[str]
) -> dict[str, Candidate]:
    """The last binding of each of these names in a syntax tree.

    Lines are counted within the part: in a notebook, within the cell.
    """
    marked = _find_marked_lines(tree)
    bindings = {}
    for name, line, is_stub in find_bindings(tree):
        if name not in names:
            continue
        state = State.DEFINED
        if is_stub or line in marked.unfilled:
            state = State.STUB
        bindings[name] = Candidate(
            file=path,
            line=line - part.first_line + 1,
            cell=part.cell,
            state=state,
            imported=line in marked.imported,
        )
    return bindings


def _names_that_look_bound(source: str, names: set[str]) -> set[str]:
    """The names that a text which is not valid Python seems to define."""
    patterns = [re.escape(name) for name in sorted(names)]
    any_name = "|".join(patterns)
    definition = rf"(?:async[ \t]+)?(?:def|class)[ \t]+({any_name})\b"
    assignment = rf"({any_name})[ \t]*[:=]"
    bound = re.compile(rf"^(?:{definition}|{assignment})", re.M)
    return {head[1] or head[2] for head in bound.finditer(source)}


class _MarkedLines(NamedTuple):
    """Lines of imports, and of assignments in which there is nothing but None yet."""

    imported: set[int]
    unfilled: set[int]


def _find_marked_lines(tree: ast.Module) -> _MarkedLines:
    """The lines of imports and of unfilled assignments in a file, without its demo."""
    marked = _MarkedLines(set(), set())
    for statement in tree.body:
        if is_demo(statement):
            continue
        # An assignment has no statements inside, and may be a long table.
        nodes: Iterable[ast.AST] = (statement,)
        if not isinstance(statement, _WITHOUT_STATEMENTS):
            nodes = nodes_of_scope(statement)
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                marked.imported.add(node.lineno)
            elif _is_unfilled_assignment(node):
                marked.unfilled.add(node.lineno)
    return marked


def _is_unfilled_assignment(node: ast.AST) -> TypeGuard[ast.Assign | ast.AnnAssign]:
    """True if a node assigns nothing but None."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return is_unfilled(node.value)
    return False


def is_unfilled(value: ast.expr | None) -> bool:
    """True if there is nothing in a value but None yet, as in the answers of a stub."""
    if value is None:
        return True
    if isinstance(value, ast.Dict):
        if not value.values:
            return False
        return all(is_unfilled(one) for one in value.values)
    if not isinstance(value, ast.Constant):
        return False
    return value.value in (None, ...)
