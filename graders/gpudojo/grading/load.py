"""Loads a student's file or notebook: reads, parses and runs it."""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import difflib
import io
import itertools
import json
import linecache
import os
import re
import sys
import tempfile
import time
import tokenize
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gpudojo.grading.executed_lines import compile_with_marks
from gpudojo.grading.machine_questions import asks_about_machine, mentions_machine
from gpudojo.grading.notebooks import NOTEBOOK_SUFFIX, NotANotebook, Notebook, read_notebook
from gpudojo.grading.source_patterns import pattern_lines
from gpudojo.model.errors import describe_error
from gpudojo.model.evidence import Raised

# Names a file with the cells of a notebook session that is being checked.
CELLS_VARIABLE: Final = "GPUDOJO_CELLS"


def leave_cells(name: str, texts: Sequence[str]) -> None:
    """Leave the texts that have to be run, in order, for the cell of this name.

    They are written to a temporary file, which an environment variable names for other processes.
    The lines of each text count from 1.
    """
    place = os.environ.get(CELLS_VARIABLE)
    if place is None or not Path(place).is_file():
        descriptor, place = tempfile.mkstemp(suffix=".json", prefix="gpudojo-cells-")
        os.close(descriptor)
        os.environ[CELLS_VARIABLE] = place
        atexit.register(Path(place).unlink, missing_ok=True)
    Path(place).write_text(json.dumps({"name": name, "texts": list(texts)}), encoding="utf-8")


def cells_left_for(path: Path) -> list[str] | None:
    """The texts that `leave_cells` left for the cell of this name, or None."""
    place = os.environ.get(CELLS_VARIABLE)
    if place is None:
        return None
    try:
        left = json.loads(Path(place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return list(left["texts"]) if left["name"] == str(path) else None


_BOUND: Final = re.compile(r"^def (\w+)|^(\w+)\s*=", re.M)
_DEFINES: Final = re.compile(r"^\s*(def|class) ", re.M)
_COMPILED: Final = re.compile(
    r"torch\.compile\b|\.compile\(\)|\bfrom torch import .*\bcompile\b|\b_dynamo\b"
)
SOLUTION = "# BEGIN SOLUTION"  # what stubs are made without
_numbers = itertools.count(1)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)


@dataclass
class Submission:
    """A student's file after it has run."""

    path: Path
    names: dict[str, Any] = field(default_factory=dict)
    todo: frozenset[str] = frozenset()
    # Why the file itself, or a cell of it, could not be run.
    broken: Raised | None = None
    # Where each name is bound last, and the lines of patterns in the source.
    lines: dict[str, int] = field(default_factory=dict)
    reference: bool = False  # whether it is a reference solution, by its marks
    # Whether it asks which machine this is when it is run, and not only when it is called.
    asks: bool = False
    # Of a notebook: the line at which each code cell begins.
    cells: list[int] = field(default_factory=list)
    # Its text, or the texts of its cells, with the line at which each begins.
    parts: list[tuple[str, int]] = field(default_factory=list)
    # The code of each part by its number, or why there is none.
    codes: dict[int, types.CodeType | Raised] = field(default_factory=dict)
    warned: set[tuple[str, str, str, int]] = field(default_factory=set)  # warnings that were shown


Trees = dict[tuple[str, int], ast.Module]  # by the source and the line at which it begins


def load_submission(
    path: Path,
    ours: Callable[[BaseException], bool] = lambda error: False,
    trees: Trees | None = None,
) -> Submission:
    """Run a student's file and return what it defines.

    What it defines before it fails still counts; the error is in `broken`. `ours` tells which
    exceptions are not the student's: those are raised. What is found in `trees` is taken out and
    not parsed again.
    """
    found = Submission(path)
    try:
        found.parts = _read_parts(path)
    except Unparsable as error:
        found.broken = error.evidence
        return found
    if path.suffix == NOTEBOOK_SUFFIX:
        found.cells = [first for _, first in found.parts]
    # What was typed in a session is the student's, whatever it was copied from.
    if cells_left_for(path) is None:
        found.reference = any(SOLUTION in source for source, _ in found.parts)
    # Everything is read before anything runs: afterwards names may mean something else, also those
    # that we use.
    parsed = _parse_parts(found, trees)
    statements: list[ast.stmt] = []
    is_stub_by_name: dict[str, bool] = {}
    for tree in parsed.values():
        statements += [statement for statement in tree.body if not is_demo(statement)]
        for name, line, stub in bindings(tree):
            is_stub_by_name[name] = stub
            found.lines[name] = line
    if any(mentions_machine(found.parts[number][0]) for number in parsed):
        found.asks = asks_about_machine(statements)
    found.lines |= pattern_lines(statements)
    found.todo = frozenset(name for name, stub in is_stub_by_name.items() if stub)
    _run_parts(found, parsed, ours)
    return found


def _parse_parts(found: Submission, trees: Trees | None) -> dict[int, ast.Module]:
    """The syntax tree of each part, by its number.

    Why a part cannot be parsed is noted in `found.codes`. Takes what it uses out of `trees`.
    """
    parsed = {}
    for number, part in enumerate(found.parts):
        if trees and part in trees:
            parsed[number] = trees.pop(part)
            continue
        source, first = part
        try:
            with _warnings_are_no_errors():
                parsed[number] = parse_source(source, found.path, first)
        except Unparsable as error:
            found.codes[number] = error.evidence
    return parsed


def load_again(submission: Submission) -> Submission:
    """Run a file anew, as it was read: on another machine it may find other answers.

    The cells of a notebook in use are read from where they were left.
    """
    if not submission.parts:
        return load_submission(submission.path)
    found = replace(submission, names={}, broken=None)
    _run_parts(found, {})
    return found


def _run_parts(
    found: Submission,
    parsed: Mapping[int, ast.Module],
    ours: Callable[[BaseException], bool] = lambda error: False,
) -> None:
    """Run the code of a submission in a module of its own.

    Fills in `names`, `codes` and `broken` of `found`. Trees of what is not compiled yet are in
    `parsed`. Raises exceptions that are `ours`.
    """
    path = found.path
    module = types.ModuleType(f"exercise_{path.stem}_{next(_numbers)}")
    module.__file__ = str(path)
    # dataclasses and pickle look a class's module up by its name.
    sys.modules[module.__name__] = module
    found.names = module.__dict__
    # Those of Python, and not those of this frame, which are ours alone in the sandbox.
    found.names["__builtins__"] = vars(builtins)
    sys.path.insert(0, str(path.parent))  # as when the file is run as a script
    failures: dict[int, Raised] = {}  # by the number of the part
    try:
        for number in range(len(found.parts)):
            try:
                with _warnings_are_no_errors(), _clocks_restored():
                    code = _code_of_part(found, parsed, number)
                    if isinstance(code, Raised):
                        failures[number] = code
                    else:
                        exec(code, module.__dict__)
            except BaseException as error:  # whatever student code may raise
                if ours(error):
                    raise
                failures[number] = describe_exception(error, path)
                found.codes.setdefault(number, failures[number])  # it cannot be compiled
    finally:
        with contextlib.suppress(ValueError):  # the student may have taken it out
            sys.path.remove(str(path.parent))
        _forget_modules_beside(path, module.__name__)
    found.broken = _failure_to_show(found, failures)


def _code_of_part(
    found: Submission, parsed: Mapping[int, ast.Module], number: int
) -> types.CodeType | Raised:
    """The code of a part, compiled once, or the error of a part that cannot be parsed.

    Notes the code in `found.codes`. Raises what `compile` raises.
    """
    if number not in found.codes:
        source, _ = found.parts[number]
        name = str(found.path)
        # A reference's lines are shown to nobody, and torch's compiler does not understand marks.
        if found.reference or _names_torchs_compiler(source):
            found.codes[number] = compile(parsed[number], name, "exec")
        else:
            found.codes[number] = compile_with_marks(parsed[number], name)
    return found.codes[number]


def _forget_modules_beside(path: Path, first: str) -> None:
    """Remove modules of the student's own folder that were imported after the module `first`.

    The next student's folder may have others of the same name.
    """
    later = list(itertools.takewhile(lambda name: name != first, reversed(sys.modules)))
    for name in later:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).parent == path.parent:
            del sys.modules[name]


def _failure_to_show(found: Submission, failures: Mapping[int, Raised]) -> Raised | None:
    """The error that is shown to the student. Returns None where there is none.

    It is that of the first part that was to define something, else that of the first part. A part
    that only tried something out says less.
    """
    for number in sorted(failures):
        if _DEFINES.search(found.parts[number][0]):
            return failures[number]
    for number in sorted(failures):
        return failures[number]
    return None


def _names_torchs_compiler(source: str) -> bool:
    # The words first: the pattern takes longer, and most sources have neither.
    if "compile" not in source and "_dynamo" not in source:
        return False
    return _COMPILED.search(source) is not None


@contextlib.contextmanager
def _clocks_restored() -> Iterator[None]:
    """Put the functions of `time` back after running a file, which may have replaced them."""
    before = dict(vars(time))
    try:
        yield
    finally:
        vars(time).update(before)


@contextlib.contextmanager
def _warnings_are_no_errors() -> Iterator[None]:
    """Around student code: a warning in it is no error, whatever the run says."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def solved_names(path: Path) -> frozenset[str]:
    """The names that a file binds, without those that are stubs. The file is not run."""
    is_stub_by_name: dict[str, bool] = {}
    with contextlib.suppress(Unparsable), _warnings_are_no_errors():
        for source, first in _read_parts(path):
            for name, _, stub in bindings(parse_source(source, path, first)):
                is_stub_by_name[name] = stub
    return frozenset(name for name, stub in is_stub_by_name.items() if not stub)


def names_in_notebook(notebook: Notebook) -> set[str]:
    """The names bound at the top level of its cells, also of cells that are no valid Python."""
    names: set[str] = set()
    for cell in notebook.cells:
        try:
            tree = ast.parse(cell.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            for function, variable in _BOUND.findall(cell.source):
                names.add(function or variable)
            continue
        names.update(name for name, _, _ in bindings(tree))
    return names


class Unparsable(Exception):
    """The file is no Python."""

    def __init__(self, message: str, line: int | None, kind: str = "SyntaxError") -> None:
        super().__init__(message)
        self.evidence = Raised(kind, message, line)


def _read_parts(path: Path) -> list[tuple[str, int]]:
    """The file's text, or each of a notebook's cells, with the line at which it begins.

    Raises Unparsable where there is no text to read.
    """
    texts = cells_left_for(path)
    if texts is not None:
        return [(text, 1) for text in texts]
    if path.suffix == NOTEBOOK_SUFFIX:
        try:
            notebook = read_notebook(path)
        except (NotANotebook, OSError) as error:
            raise Unparsable(str(error), None, "ValueError") from None
        source = notebook.source
        linecache.cache[str(path)] = (len(source), None, source.splitlines(True), str(path))
        return [(cell.source, cell.first) for cell in notebook.cells]
    linecache.checkcache(str(path))
    try:
        return [(decode_source(path.read_bytes()), 1)]
    except OSError as error:
        raise Unparsable(
            f"the file cannot be read: {error.strerror}", None, type(error).__name__
        ) from None


def decode_source(data: bytes) -> str:
    """A Python file's text, as Python itself would decode it.

    Raises Unparsable, with the line and what to do, for a file that has no such text.
    """

    def line_at(position: int) -> int:
        return data.count(b"\n", 0, position) + 1

    # What no Python file begins with or holds.
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Unparsable("the file is UTF-16 text; save it as UTF-8 in your editor", 1)
    if b"\0" in data:
        raise Unparsable(
            "there is a null byte here, which no Python file may have", line_at(data.index(b"\0"))
        )
    encoding = "utf-8"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        with warnings.catch_warnings():
            # Some encodings find fault with a text and decode it all the same.
            warnings.simplefilter("ignore")
            return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x}"
        raise Unparsable(
            f"{byte} is not {encoding} text; save the file as UTF-8", line_at(error.start)
        ) from None
    except (LookupError, UnicodeError):  # "hex" and "undefined" are encodings too, but not of texts
        raise Unparsable(
            f"the encoding that its first lines name, {encoding}, is none of a text", 1
        ) from None
    except SyntaxError as error:  # from the first two lines, which may name an encoding
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as wrong:
            byte = f"byte {data[wrong.start]:#04x}"
            raise Unparsable(
                f"{byte} is not UTF-8 text; save the file as UTF-8", line_at(wrong.start)
            ) from None
        raise Unparsable(error.msg, 1) from None


def parse_source(source: str, path: Path | PurePosixPath, first: int = 1) -> ast.Module:
    """The syntax tree of a source that begins at line `first` of its file.

    Raises Unparsable for a source that is no valid Python.
    """
    try:
        tree = ast.parse(source, str(path))
    except SyntaxError as error:
        line = None if error.lineno is None else error.lineno + first - 1
        raise Unparsable(error.msg, line, type(error).__name__) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unparsable(
            str(error) or "this is nested too deeply", None, type(error).__name__
        ) from None
    return ast.increment_lineno(tree, first - 1) if first > 1 else tree


def bindings(tree: ast.Module) -> list[tuple[str, int, bool]]:
    """Each name bound at the top level, in order, with its line and whether it is a stub.

    Of several bindings of a name the last one counts.
    """
    found: list[tuple[str, int, bool]] = []
    for node in (
        node for statement in tree.body if not is_demo(statement) for node in in_scope(statement)
    ):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append((node.id, node.lineno, False))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.append(
                (node.name, node.lineno, isinstance(node, ast.FunctionDef) and is_stub(node))
            )
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found += [
                ((n.asname or n.name).partition(".")[0], node.lineno, False) for n in node.names
            ]
    return found


def in_scope(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and the nodes in it, in order.

    The insides of functions, classes and whatever else has names of its own are left out.
    """
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += reversed(list(ast.iter_child_nodes(node)))


def is_demo(statement: ast.stmt) -> bool:
    """True for `if __name__ == "__main__":`, which does not run here."""
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Compare)
        and isinstance(statement.test.left, ast.Name)
        and statement.test.left.id == "__name__"
    )


def is_stub(node: ast.FunctionDef) -> bool:
    """True if a function has only a docstring and `raise NotImplementedError`, `...` or `pass`."""
    body = node.body if ast.get_docstring(node, clean=False) is None else node.body[1:]
    if len(body) != 1:
        return not body
    only = body[0]
    if isinstance(only, ast.Raise):
        called = only.exc.func if isinstance(only.exc, ast.Call) else only.exc
        return isinstance(called, ast.Name) and called.id == "NotImplementedError"
    return isinstance(only, ast.Pass) or (
        isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant)
    )


def describe_exception(error: BaseException, path: Path) -> Raised:
    """An exception as evidence, with the last line of the student's file it passed through.

    Of an endless recursion it is the line that it passed through most often, which is the call.
    """
    lines: list[int] = []
    names: list[str] = []  # that can be used where it was raised, if that is in the student's file
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
            if trace.tb_next is None:
                names = [*frame.f_locals, *frame.f_globals, *vars(builtins)]
        trace = trace.tb_next
    line = lines[-1] if lines else None
    if isinstance(error, RecursionError) and lines:
        line = Counter(lines).most_common(1)[0][0]
    kind, message = describe_error(error)
    similar = _similar_name(error, names)
    if similar:
        message += f". Did you mean: '{similar}'?"
    return Raised(kind, message, line)


def _similar_name(error: BaseException, names: list[str]) -> str:
    """The name that is spelt most like one that does not exist. It is empty if there is none.

    Python suggests one in a traceback, too.
    """
    if not isinstance(error, AttributeError | NameError) or type(error.name) is not str:
        return ""
    if isinstance(error, AttributeError):
        owner = error.obj
        if type(owner) is types.ModuleType:
            names = list(vars(owner))
        else:
            names = list(type.__dir__(type(owner)))
    public = [name for name in names if type(name) is str and not name.startswith("_")]
    similar = difflib.get_close_matches(error.name, public, 1, 0.75)
    return similar[0] if similar else ""
