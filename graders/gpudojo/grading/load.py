"""Loads a student's file or notebook: its functions, and whether it asks at import which machine this is."""

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

import msgspec

from gpudojo.grading.executed_lines import compile_with_marks
from gpudojo.grading.source_patterns import nodes_in, pattern_lines
from gpudojo.model.errors import describe_error
from gpudojo.model.evidence import Raised

# What torch is asked, and what asks by itself when it is made.
QUESTIONS: Final = frozenset(
    {
        "autocast",
        "current_accelerator",
        "current_device",
        "device_count",
        "get_default_device",
        "get_device_capability",
        "get_device_name",
        "get_device_properties",
        "GradScaler",
        "is_available",
        "is_bf16_supported",
    }
)
DEVICES: Final = frozenset(
    {"cuda", "mps", "accelerator"}
)  # modules of torch that are other ones on another machine
CACHES: Final = frozenset({"cache", "lru_cache"})
_WORDS: Final = re.compile(
    "|".join((*sorted(QUESTIONS), *(rf"\b{name}\b(?!['\"])" for name in sorted(DEVICES))))
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def mentions_machine(source: str) -> bool:
    """Whether there is anything to look for: most files ask nothing, and to look is most of loading them."""
    return _WORDS.search(source) is not None


def asks_about_machine(statements: list[ast.stmt]) -> bool:
    """Whether a module of these statements asks once and for all: when it is run, or in a function that remembers."""
    functions = [node for node in statements if isinstance(node, _FUNCTIONS)]
    # The functions of the file that ask when they are called, also by way of one another.
    names = {node.name: {_name(part) for part in nodes_in(node)} for node in functions}
    asking = frozenset(name for name, used in names.items() if used & QUESTIONS)
    while more := frozenset(
        name for name, used in names.items() if name not in asking and used & asking
    ):
        asking |= more
    if any(node.name in asking and _remembers(node) for node in functions):
        return True
    # The names under which a file has functions of a device: `from torch.cuda import synchronize`.
    imports = [node for node in statements if isinstance(node, ast.ImportFrom)]
    of_devices = [node for node in imports if (node.module or "").rpartition(".")[2] in DEVICES]
    taken = frozenset(name.asname or name.name for node in of_devices for name in node.names)
    return any(
        _name(node) in QUESTIONS
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in asking
        )
        or _kept(node, taken)
        for node in _run_at_once(statements)
    )


def _name(node: ast.AST) -> str:
    """What is asked or called by name here; empty if nothing is."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) and node.attr in QUESTIONS else ""


def _kept(node: ast.AST, taken: frozenset[str]) -> bool:
    """Whether a function of a device is put by, in a list or as a default: it is this machine's, for good."""
    if isinstance(node, ast.Name):
        return node.id in taken and isinstance(node.ctx, ast.Load)
    if (
        not isinstance(node, ast.Attribute)
        or not isinstance(node.ctx, ast.Load)
        or node.attr in DEVICES
    ):
        return False
    owner = node.value
    return (owner.attr if isinstance(owner, ast.Attribute) else _name(owner)) in DEVICES


def _remembers(function: ast.AST) -> bool:
    """Whether what it finds out is kept for the next call, by a decorator or in a global name."""
    return any(
        isinstance(node, ast.Global) or getattr(node, "attr", getattr(node, "id", None)) in CACHES
        for node in ast.walk(function)
    )


def _run_at_once(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """Everything that is run with the file: of a function its decorators and defaults, and not its body."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            waiting += [
                default
                for default in (*node.args.defaults, *node.args.kw_defaults)
                if default is not None
            ]
            waiting += [] if isinstance(node, ast.Lambda) else node.decorator_list
        elif not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
            waiting += ast.iter_child_nodes(
                node
            )  # who replaces a function of torch's does not keep it


VARIABLE: Final = "GPUDOJO_CELLS"


def leave_cells(name: str, texts: Sequence[str]) -> None:
    """Say what has to be run, in order, for the cell of this name; each text counts its lines from 1."""
    place = os.environ.get(VARIABLE)
    if place is None or not Path(place).is_file():
        descriptor, place = tempfile.mkstemp(suffix=".json", prefix="gpudojo-cells-")
        os.close(descriptor)
        os.environ[VARIABLE] = place
        atexit.register(Path(place).unlink, missing_ok=True)
    Path(place).write_text(json.dumps({"name": name, "texts": list(texts)}), encoding="utf-8")


def cells_left_for(path: Path) -> list[str] | None:
    """The texts of a cell; None if it is none."""
    place = os.environ.get(VARIABLE)
    if place is None:
        return None
    try:
        kept = json.loads(Path(place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return list(kept["texts"]) if kept["name"] == str(path) else None


NOTEBOOK_SUFFIX: Final = ".ipynb"
# `%timeit f()`, `!pip install x`, `?f`, `f?`, `files = !ls`: what IPython understands and Python does not.
MAGIC: Final = re.compile(r"\s*[%!?]|.*\?\s*$|\s*[\w.,\s]+=\s*[%!]")
# For each magic the cell is parsed once more, at a hundred times its size; and the pattern backtracks on long lines.
MAGICS: Final = 100
LARGEST: Final = 400_000
LONGEST: Final = 2000
_BOUND: Final = re.compile(r"^def (\w+)|^(\w+)\s*=", re.M)
_COMPILED: Final = re.compile(
    r"torch\.compile\b|\.compile\(\)|\bfrom torch import .*\bcompile\b|\b_dynamo\b"
)
# Cell magics below which there is Python all the same; the text below any other is not.
PYTHON: Final = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python3", "%%python")


class NotANotebook(ValueError):
    """The file cannot be read as a notebook."""


class Cell(msgspec.Struct, frozen=True):
    number: int  # among the code cells, from 1
    first: int  # the line of the whole at which it begins
    source: str  # with the lines that are not Python left empty


class Notebook(msgspec.Struct, frozen=True):
    cells: tuple[Cell, ...]

    @property
    def source(self) -> str:
        return "\n".join(cell.source for cell in self.cells) + "\n"

    def place(self, line: int) -> tuple[int, int]:
        """The code cell, and the line in it, of a line of the whole."""
        cell = next((c for c in reversed(self.cells) if c.first <= line), None)
        return (cell.number, line - cell.first + 1) if cell else (0, line)

    def defined(self) -> set[str]:
        """The names bound at the top level of its cells."""
        found: set[str] = set()
        for cell in self.cells:
            try:
                tree = ast.parse(cell.source)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                found |= {name for pair in _BOUND.findall(cell.source) for name in pair if name}
                continue
            found |= {name for name, _, _ in bindings(tree)}
        return found


def read_notebook(path: Path) -> Notebook:
    """A notebook file's code; NotANotebook where it is none."""
    return parse_notebook(path.read_bytes())


def parse_notebook(data: bytes) -> Notebook:
    """A notebook's code, from its bytes; NotANotebook where they are none."""
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about missing cell ids and the like: nothing a student could mend
            content: Any = nbformat.reads(data.decode("utf-8-sig"), as_version=4)  # type: ignore[no-untyped-call]
        sources = [str(cell.source) for cell in content.cells if cell.cell_type == "code"]
    except UnicodeDecodeError as error:
        raise NotANotebook(
            f"it is not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}"
        ) from None
    except (
        Exception
    ) as error:  # nbformat lets through what json, its validators and its converters raise
        reason = (str(error).splitlines() or [""])[0][:200]
        raise NotANotebook(f"it is not a notebook ({type(error).__name__}: {reason})") from None
    cells = []
    line = 1
    for number, source in enumerate(sources, 1):
        plain = without_magics(source)
        cells.append(Cell(number, line, plain))
        line += plain.count("\n") + 1
    return Notebook(tuple(cells))


def without_magics(source: str) -> str:
    """A cell as Python, line for line; a real syntax error is left for the compiler to name."""
    lines = source.splitlines() or [""]
    head = next((i for i, text in enumerate(lines) if text.strip()), 0)
    if lines[head].startswith("%%"):
        if lines[head].split()[0] not in PYTHON:
            return "\n" * (len(lines) - 1)
        lines[head] = ""
    for _ in range(min(len(lines), MAGICS) if len(source) <= LARGEST else 0):
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # Only where Python stumbles, so that a text which looks like a magic inside a string is left alone.
            at = (error.lineno or 0) - 1
            if not (0 <= at < len(lines) and len(lines[at]) <= LONGEST and MAGIC.match(lines[at])):
                break
            text = lines[at]
            indent = text[: len(text) - len(text.lstrip())]
            lines[at] = f"{indent}pass" if indent else ""
        except (ValueError, RecursionError, MemoryError):
            break
        else:
            break
    return "\n".join(lines)


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
    broken: Raised | None = None  # why the file itself, or a cell of it, could not be run
    lines: dict[str, int] = field(
        default_factory=dict
    )  # where each name is bound last, and what its source shows
    reference: bool = False  # whether it is a reference solution, by its marks
    asks: bool = False  # whether it asks which machine this is when it is run, and not only when it is called
    cells: list[int] = field(
        default_factory=list
    )  # of a notebook: the line at which each code cell begins
    parts: list[tuple[str, int]] = field(
        default_factory=list
    )  # its text, or its cells', with the line of each
    codes: dict[int, types.CodeType | Raised] = field(
        default_factory=dict
    )  # of each part; or why there is none
    warned: set[tuple[str, str, str, int]] = field(default_factory=set)  # warnings that were shown


Trees = dict[tuple[str, int], ast.Module]  # by the source and the line at which it begins


def load_submission(
    path: Path,
    ours: Callable[[BaseException], bool] = lambda error: False,
    trees: Trees | None = None,
) -> Submission:
    """Run a file; what it defines before it fails still counts. `ours` tells which exceptions are not the student's.

    What is found in `trees` is taken out and not parsed again.
    """
    found = Submission(path)
    try:
        found.parts = parts = _parts(path)
    except Unparsable as error:
        found.broken = error.evidence
        return found
    if path.suffix == NOTEBOOK_SUFFIX:
        found.cells = [first for _, first in parts]
    # What was typed in a session is the student's, whatever it was copied from.
    found.reference = cells_left_for(path) is None and any(
        SOLUTION in source for source, _ in parts
    )
    parsed: dict[int, ast.Module] = {}
    # Everything is read before anything runs: afterwards names may mean something else, also those that we use.
    for number, (source, first) in enumerate(parts):
        try:
            with _warning():
                key = source, first
                parsed[number] = (
                    trees.pop(key) if trees and key in trees else parse_source(source, path, first)
                )
        except Unparsable as error:
            found.codes[number] = error.evidence
    statements = [
        statement for tree in parsed.values() for statement in tree.body if not is_demo(statement)
    ]
    found.asks = any(
        mentions_machine(parts[number][0]) for number in parsed
    ) and asks_about_machine(statements)
    bound: dict[str, bool] = {}
    for tree in parsed.values():
        for name, line, stub in bindings(tree):
            bound[name] = stub
            found.lines[name] = line
    found.lines |= pattern_lines(statements)
    found.todo = frozenset(name for name, stub in bound.items() if stub)
    _run(found, parsed, ours)
    return found


def load_again(submission: Submission) -> Submission:
    """The same file, as it was read, run anew: on another machine it may find other answers.

    The cells of a notebook in use are read from where they were left.
    """
    if not submission.parts:
        return load_submission(submission.path)
    found = replace(submission, names={}, broken=None)
    _run(found, {})
    return found


def _run(
    found: Submission,
    parsed: Mapping[int, ast.Module],
    ours: Callable[[BaseException], bool] = lambda error: False,
) -> None:
    """Run the code of a submission in a module of its own; trees of what is not compiled yet are in `parsed`."""
    path = found.path
    module = types.ModuleType(f"exercise_{path.stem}_{next(_numbers)}")
    module.__file__ = str(path)
    # dataclasses and pickle look a class's module up by its name
    sys.modules[module.__name__] = module
    found.names = module.__dict__
    found.names["__builtins__"] = vars(
        builtins
    )  # and not those of this frame, which are ours alone in the sandbox
    sys.path.insert(0, str(path.parent))  # as when the file is run as a script
    failures: dict[int, Raised] = {}  # by the number of the cell
    try:
        for number in range(len(found.parts)):
            try:
                with _warning(), _keep_clocks():
                    if number not in found.codes:
                        tree = parsed[number]
                        # A reference's lines are shown to nobody, and torch's compiler does not understand the marks.
                        plain = found.reference or _compiled(found.parts[number][0])
                        found.codes[number] = (
                            compile(tree, str(path), "exec")
                            if plain
                            else compile_with_marks(tree, str(path))
                        )
                    code = found.codes[number]
                    if isinstance(code, Raised):
                        failures[number] = code
                    else:
                        exec(code, module.__dict__)
            except BaseException as error:
                if ours(error):
                    raise
                failures[number] = describe_exception(error, path)
                found.codes.setdefault(number, failures[number])  # it cannot be compiled
    finally:
        with contextlib.suppress(ValueError):  # the student may have taken it out
            sys.path.remove(str(path.parent))
        # Modules from the student's own folder: the next student's folder may have others of the same name.
        for name in [
            *itertools.takewhile(lambda name: name != module.__name__, reversed(sys.modules))
        ]:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent == path.parent:
                del sys.modules[name]
    # Of several cells that fail, one that was to define something says more than one that only tried it out.
    defining = re.compile(r"^\s*(def|class) ", re.M)
    worst = min(
        failures,
        key=lambda number: (not defining.search(found.parts[number][0]), number),
        default=None,
    )
    found.broken = None if worst is None else failures[worst]


def _compiled(source: str) -> bool:
    """Whether a source names torch's compiler."""
    return ("compile" in source or "_dynamo" in source) and _COMPILED.search(source) is not None


@contextlib.contextmanager
def _keep_clocks() -> Iterator[None]:
    """Restore the functions of `time` after a file was run that replaces them: other code needs them."""
    before = dict(vars(time))
    try:
        yield
    finally:
        vars(time).update(before)


@contextlib.contextmanager
def _warning() -> Iterator[None]:
    """A warning in student code is no error, whatever the run says."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def solved_names(path: Path) -> frozenset[str]:
    """The names that a file binds, without those still to do; it is not run."""
    bound: dict[str, bool] = {}
    with contextlib.suppress(Unparsable), _warning():
        for source, first in _parts(path):
            bound |= {name: stub for name, _, stub in bindings(parse_source(source, path, first))}
    return frozenset(name for name, stub in bound.items() if not stub)


class Unparsable(Exception):
    """The file is no Python."""

    def __init__(self, message: str, line: int | None, kind: str = "SyntaxError") -> None:
        super().__init__(message)
        self.evidence = Raised(kind, message, line)


def _parts(path: Path) -> list[tuple[str, int]]:
    """The file's text, or each of a notebook's cells, with the line at which it begins."""
    if (texts := cells_left_for(path)) is not None:
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
    """A Python file's text, as Python itself would decode it."""

    def line_at(position: int) -> int:
        return data.count(b"\n", 0, position) + 1

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
            warnings.simplefilter(
                "ignore"
            )  # some encodings find fault with a text and decode it all the same
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
    """The tree of a source that begins at this line; Unparsable where it has none."""
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
    """Each name bound at the top level, in order: the line, and whether it is a stub. The last one counts."""
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
    """A statement and what is in it, in order, without the insides of what has names of its own."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += reversed(list(ast.iter_child_nodes(node)))


def is_demo(statement: ast.stmt) -> bool:
    """`if __name__ == "__main__":`, which does not run here."""
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Compare)
        and isinstance(statement.test.left, ast.Name)
        and statement.test.left.id == "__name__"
    )


def is_stub(node: ast.FunctionDef) -> bool:
    """Whether nothing but a docstring and `raise NotImplementedError` (or `...`) is there yet."""
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

    Of an endless recursion the line that it passed through most often, which is the call.
    """
    lines: list[int] = []
    trace = error.__traceback__
    names = list[str]()
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
            names = (
                []
                if trace.tb_next
                else [*trace.tb_frame.f_locals, *trace.tb_frame.f_globals, *vars(builtins)]
            )
        trace = trace.tb_next
    often = isinstance(error, RecursionError) and lines
    kind, message = describe_error(error)
    if nearest := _nearest(error, names):
        message += f". Did you mean: '{nearest}'?"
    return Raised(
        kind,
        message,
        Counter(lines).most_common(1)[0][0] if often else lines[-1] if lines else None,
    )


def _nearest(error: BaseException, names: list[str]) -> str:
    """The name that is spelt most like one that does not exist, as Python suggests it in a traceback; else ""."""
    if not isinstance(error, AttributeError | NameError) or type(error.name) is not str:
        return ""
    if isinstance(error, AttributeError):
        of = error.obj
        names = list(vars(of)) if type(of) is types.ModuleType else list(type.__dir__(type(of)))
    public = [name for name in names if type(name) is str and not name.startswith("_")]
    return next(iter(difflib.get_close_matches(error.name, public, 1, 0.75)), "")
