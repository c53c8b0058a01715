"""Functions of a running notebook session: their source, their lines, and the cells they need."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from gpudojo.grading.bindings import is_stub
from gpudojo.grading.executed_lines import compile_with_marks
from gpudojo.grading.load import Submission
from gpudojo.grading.notebooks import without_magics
from gpudojo.grading.source_patterns import pattern_lines

NO_SOURCE: Final = "<no source>"
# So that its lines are not mistaken for those of the function's own cell.
OTHER_CELL: Final = "<another cell>"
WRAPPERS_AT_MOST: Final = 20  # nested decorators that are unwrapped
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# What parsing a student's text may raise.
_PARSING_ERRORS: Final = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class SessionFunction:
    """A function or value of the session, under the name of a task."""

    name: str
    thing: Any
    file: str  # the file name of the code object; a cell has a made-up one
    first: int  # the line at which `source` begins; lines are counted within the cell
    source: tuple[str, ...]
    line: int | None  # of its `def`
    stub: bool

    def make_submission(self, namespace: dict[str, Any]) -> Submission:
        """The session as a submission, which is what probes run.

        `namespace` is that of the notebook; a function of a module has its own.
        """
        names = getattr(_function_inside(self.thing), "__globals__", namespace)
        if names.get(self.name) is not self.thing:
            names = {**names, self.name: self.thing}
        todo = set()
        if self.stub:
            todo.add(self.name)
        lines = {}
        if self.line is not None:
            lines[self.name] = self.line
        definition = _parse_definition(self.source)
        if definition is not None:
            ast.increment_lineno(definition, self.first - 1)
            lines.update(pattern_lines([definition]))
        return Submission(Path(self.file), names, todo=frozenset(todo), lines=lines)

    def describe_line(self, line: int) -> str:
        """The place of a line, with its cell, and below it the text; for the reader."""
        place = f"line {line}"
        cell = cell_name(self.file)
        if cell:
            place = f"{cell}, line {line}"
        text = linecache.getline(self.file, line).strip()
        if not text:
            return place
        return f"{place}\n{line:>4} | {text}"

    def cell_text(self) -> str:
        """The text of its cell, or at least the function at its lines."""
        text = "".join(linecache.getlines(self.file))
        if text:
            return text
        lines_before = [""] * (self.first - 1)
        return "\n".join([*lines_before, *self.source])


def find_source(name: str, thing: Any) -> SessionFunction:
    """An object of the session with its source, as far as that is known.

    `name` is that of the task. Without source, a function that only raises is taken for a stub.
    """
    function = _function_inside(thing)
    if function is None:
        return SessionFunction(name, thing, NO_SOURCE, 1, (), None, False)
    code: CodeType = function.__code__
    source = tuple(_source_lines(code))
    first = code.co_firstlineno
    node = _parse_definition(source)
    line = first
    if node is None:
        stub = _only_raises(code)
    else:
        line = first + node.lineno - 1
        stub = is_stub(node)
    return SessionFunction(name, thing, code.co_filename, first, source, line, stub)


def _only_raises(code: CodeType) -> bool:
    """True for code that only raises NotImplementedError: without source, that is a stub."""
    variables = code.co_nlocals - code.co_argcount - code.co_kwonlyargcount
    return code.co_names == ("NotImplementedError",) and not variables


def cell_name(file: str) -> str:
    """The name of a cell, `In[5]`, or of a file. Empty if there is none."""
    # A front end, or an older version of IPython, may have none of this.
    compiler = getattr(running_shell(), "compile", None)
    format_name = getattr(compiler, "format_code_name", None)
    if format_name is not None:
        kind_and_name = format_name(file)
        if kind_and_name:
            return str(kind_and_name[-1])
    path = Path(file)
    if path.is_file():
        return path.name
    return ""


def running_shell() -> Any:
    """The shell of IPython that runs this session; None without one. Imports nothing."""
    ipython = sys.modules.get("IPython")
    get_shell = getattr(ipython, "get_ipython", None)
    if get_shell is None:  # it is not imported, or not completely
        return None
    return get_shell()


def _function_inside(thing: Any) -> FunctionType | None:
    """The student's own function inside decorators, partials, methods and callable objects.

    Returns None if there is none.
    """
    for _ in range(WRAPPERS_AT_MOST):
        inner: Any = None
        if isinstance(thing, functools.partial):
            inner = thing.func
        elif isinstance(thing, MethodType):
            inner = thing.__func__
        elif isinstance(thing, FunctionType):
            inner = next(_inner_functions(thing), None)
            if inner is None:
                return thing
        elif not isinstance(thing, type):
            method = inspect.getattr_static(type(thing), "__call__", None)
            if isinstance(method, FunctionType):
                inner = method
        if inner is None:
            return None
        thing = inner
    return None


def _inner_functions(function: FunctionType) -> Iterator[Any]:
    """Yield the functions inside a decorator's wrapper, also if there is no `__wrapped__`.

    A wrapper of an installed package is known by where its code is; one that is elsewhere is taken
    for the student's own function.
    """
    named = vars(function).get("__wrapped__")
    if callable(named):
        yield named
    code = function.__code__
    if not code.co_freevars or not code.co_filename.startswith(sys.prefix):
        return
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not bound yet
            if isinstance(cell.cell_contents, FunctionType):
                yield cell.cell_contents


def _source_lines(code: CodeType) -> list[str]:
    """The lines of a function; none if its source is not known."""
    cell_lines = linecache.getlines(code.co_filename)
    lines_before = code.co_firstlineno - 1
    try:
        if cell_lines:
            lines = inspect.getblock(cell_lines[lines_before:])
        else:  # this knows where newer prompts keep what was typed
            lines, _ = inspect.getsourcelines(code)
    except (OSError, SyntaxError, IndexError, TypeError):
        return []
    return [line.rstrip("\n") for line in lines]


def _parse_definition(source: tuple[str, ...]) -> ast.FunctionDef | None:
    """The syntax tree of a function. Returns None if the text is anything else."""
    text = textwrap.dedent("\n".join(source))
    try:
        tree = ast.parse(text)
    except _PARSING_ERRORS:
        return None
    match tree.body:
        case [ast.FunctionDef() as function]:
            return function
    return None


@contextlib.contextmanager
def recording_lines(function: SessionFunction, names: Mapping[str, Any]) -> Iterator[None]:
    """During the block, the functions of the cell record the lines that they execute.

    `names` are those of the notebook. The code of functions is exchanged, if their source is known,
    and restored at the end.
    """
    marked_codes = _codes_with_marks(function)
    code_before: dict[FunctionType, CodeType] = {}
    for thing in (_function_inside(function.thing), *names.values()):
        if not isinstance(thing, FunctionType) or thing in code_before:
            continue
        code = thing.__code__
        if code.co_filename != function.file:
            continue
        new_code = marked_codes.get((code.co_qualname, code.co_firstlineno))
        if new_code is not None and new_code.co_freevars == code.co_freevars:
            code_before[thing] = code
            thing.__code__ = new_code
    try:
        yield
    finally:
        for thing, code in code_before.items():
            thing.__code__ = code


def _codes_with_marks(function: SessionFunction) -> dict[tuple[str, int], CodeType]:
    """The code of all functions in a cell, which records lines, by name and first line.

    Empty for a cell that Python cannot parse.
    """
    codes: dict[tuple[str, int], CodeType] = {}
    try:
        tree = ast.parse(function.cell_text())
        waiting = [compile_with_marks(tree, function.file)]
    except _PARSING_ERRORS:
        return {}
    for code in waiting:  # the list grows meanwhile
        codes[code.co_qualname, code.co_firstlineno] = code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                waiting.append(constant)
    return codes


# The cells that a function needs in another process


def code_of_cells(function: SessionFunction, namespace: dict[str, Any]) -> list[str]:
    """The code to run in another process: what the function uses of other cells, then its own.

    The function's own cell keeps its lines.
    """
    if function.file == NO_SOURCE:
        if not isinstance(function.thing, dict):
            return []
        return [f"{function.name} = {function.thing!r}"]
    own_cell = function.cell_text()
    other_cells = _cells_except(own_cell, namespace)
    used = needed_names(function.name, [*other_cells, own_cell])
    code = []
    for cell in other_cells:
        definitions = only_definitions(cell, used)
        if definitions.strip():
            code.append(f"exec(compile({definitions!r}, {OTHER_CELL!r}, 'exec'))")
    code.append(only_definitions(own_cell, used))
    return code


def _cells_except(own_cell: str, namespace: dict[str, Any]) -> list[str]:
    """The texts of other cells, in the order in which they ran.

    A cell is there once for each time it ran, and the last time counts. They are read from `In` of
    the notebook's `namespace`; without it there are none.
    """
    history = namespace.get("In")
    if not isinstance(history, list):
        return []
    cells = []
    for cell in history:
        if isinstance(cell, str) and cell.strip() != own_cell.strip():
            cells.append(cell)
    return cells


def needed_names(name: str, texts: Iterable[str]) -> set[str]:
    """A name, and all names that its definition uses, directly or indirectly."""
    statements: list[ast.stmt] = []
    for text in texts:
        statements += _parse_cell(text).body
    needed = {name}
    count = 0
    while len(needed) > count:  # until nothing is added
        count = len(needed)
        for statement in statements:
            bound = _names_bound_by(statement)
            if not needed.isdisjoint(bound):
                needed |= _names_used_by(statement)
    return needed


def only_definitions(source: str, used: set[str]) -> str:
    """A cell with only its imports and the functions, classes and values that are used.

    Removed lines are left empty, so that the others keep their numbers.
    """
    text = without_magics(source)
    lines = text.splitlines()
    for statement in _parse_cell(text).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        bound = _names_bound_by(statement)
        if not used.isdisjoint(bound):
            continue
        first = statement.lineno
        for decorator in getattr(statement, "decorator_list", ()):
            first = min(first, decorator.lineno)
        last = statement.end_lineno or first
        for number in range(first, last + 1):
            lines[number - 1] = ""
    return "\n".join(lines)


def _names_bound_by(statement: ast.stmt) -> set[str]:
    """The names that a definition or an assignment binds; none for other statements."""
    targets: list[ast.expr] = []
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign():
            targets = statement.targets
        case ast.AnnAssign():
            targets = [statement.target]
    names = set()
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def _names_used_by(statement: ast.stmt) -> set[str]:
    """The names a statement reads that are not its own."""
    read: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                own.add(name)
    if isinstance(statement, _SCOPES):
        return read - own
    return read


def _parse_cell(source: str) -> ast.Module:
    """The syntax tree of a cell; an empty one if it is not valid Python."""
    try:
        return ast.parse(without_magics(source))
    except _PARSING_ERRORS:
        return ast.Module([], [])
