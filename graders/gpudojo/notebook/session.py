"""Functions of a running notebook session: their source, and the definitions they need in another process."""

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

from gpudojo.grading.load import Submission, is_stub, without_magics
from gpudojo.grading.source_locator import marked, pattern_lines

NOWHERE: Final = "<no source>"
WRAPPERS: Final = 20  # nested decorators that are unwrapped


@dataclass(frozen=True)
class Live:
    """A function or value of the session, under the name of a task."""

    name: str
    thing: Any
    file: str  # the file name of the code object; a cell has a made-up one
    first: int  # the line at which `source` begins; lines are counted within the cell
    source: tuple[str, ...]
    line: int | None  # of its `def`
    stub: bool

    def submission(self, namespace: dict[str, Any]) -> Submission:
        """The session as a submission, which is what probes run."""
        names = getattr(_function(self.thing), "__globals__", namespace)
        if names.get(self.name) is not self.thing:
            names = {**names, self.name: self.thing}
        todo = frozenset({self.name} if self.stub else ())
        lines = {} if self.line is None else {self.name: self.line}
        node = _definition(self.source)
        if node is not None:
            lines |= pattern_lines([ast.increment_lineno(node, self.first - 1)])
        return Submission(Path(self.file), names, todo=todo, lines=lines)

    def place(self, line: int) -> str:
        """A line and its text, for the reader."""
        text = linecache.getline(self.file, line).strip()
        where = cell_name(self.file)
        return f"{where + ', ' if where else ''}line {line}" + (f"\n{line:>4} | {text}" if text else "")


def live(name: str, thing: Any) -> Live:
    function = _function(thing)
    if function is None:
        return Live(name, thing, NOWHERE, 1, (), None, False)
    code: CodeType = function.__code__
    source, line = tuple(_block(code)), code.co_firstlineno
    node = _definition(source)
    if node is not None:
        line, stub = line + node.lineno - 1, is_stub(node)
    else:  # code without source is a stub where it only raises NotImplementedError
        variables = code.co_nlocals - code.co_argcount - code.co_kwonlyargcount
        stub = code.co_names == ("NotImplementedError",) and not variables
    return Live(name, thing, code.co_filename, code.co_firstlineno, source, line, stub)


def cell_name(file: str) -> str:
    """The name of a cell, `In[5]`, or of a file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    naming = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if naming is not None and (found := naming(file)):
        return str(found[-1])
    return Path(file).name if Path(file).is_file() else ""


def _function(thing: Any) -> FunctionType | None:
    """The student's own function inside decorators, partials, methods and callable objects."""
    for _ in range(WRAPPERS):
        inner: Any = None
        if isinstance(thing, functools.partial):
            inner = thing.func
        elif isinstance(thing, MethodType):
            inner = thing.__func__
        elif isinstance(thing, FunctionType):
            inner = next(_wrapped(thing), None)
            if inner is None:
                return thing
        elif not isinstance(thing, type):
            call = inspect.getattr_static(type(thing), "__call__", None)
            inner = call if isinstance(call, FunctionType) else None
        if inner is None:
            return None
        thing = inner
    return None


def _wrapped(function: FunctionType) -> Iterator[Any]:
    """The function inside a decorator's wrapper, also where there is no `__wrapped__`."""
    named = vars(function).get("__wrapped__")
    if callable(named):
        yield named
    if function.__code__.co_freevars and function.__code__.co_filename.startswith(sys.prefix):
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # not bound yet
                if isinstance(cell.cell_contents, FunctionType):
                    yield cell.cell_contents


def _block(code: CodeType) -> list[str]:
    lines = linecache.getlines(code.co_filename)
    try:
        # The latter knows where newer prompts keep what was typed.
        found = inspect.getblock(lines[code.co_firstlineno - 1 :]) if lines else inspect.getsourcelines(code)[0]
    except (OSError, SyntaxError, IndexError, TypeError):
        return []
    return [line.rstrip("\n") for line in found]


def _definition(source: tuple[str, ...]) -> ast.FunctionDef | None:
    try:
        body = ast.parse(textwrap.dedent("\n".join(source))).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if len(body) == 1 and isinstance(body[0], ast.FunctionDef) else None


def _cell(live: Live) -> str:
    """The text of the cell, or at least the function at its lines."""
    return "".join(linecache.getlines(live.file)) or "\n" * (live.first - 1) + "\n".join(live.source)


@contextlib.contextmanager
def recording_lines(live: Live, names: Mapping[str, Any]) -> Iterator[None]:
    """While it is open, the functions of the cell record the lines that they execute, if their source is known."""
    codes: dict[tuple[str, int], CodeType] = {}
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        waiting = [marked(ast.parse(_cell(live)), live.file)]
        for code in waiting:  # which grows meanwhile
            codes[code.co_qualname, code.co_firstlineno] = code
            waiting += (each for each in code.co_consts if isinstance(each, CodeType))
    before: dict[FunctionType, CodeType] = {}
    for each in (_function(live.thing), *names.values()):
        if isinstance(each, FunctionType) and each.__code__.co_filename == live.file:
            made = codes.get((each.__code__.co_qualname, each.__code__.co_firstlineno))
            if each not in before and made is not None and made.co_freevars == each.__code__.co_freevars:
                before[each], each.__code__ = each.__code__, made
    try:
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


OTHER: Final = "<another cell>"  # so that its lines are not mistaken for those of the function's own cell
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definitions(live: Live, namespace: dict[str, Any]) -> list[str]:
    """The code to run in another process: what the function uses of other cells, then its own cell, with its lines."""
    if live.file == NOWHERE:
        return [f"{live.name} = {live.thing!r}"] if isinstance(live.thing, dict) else []
    own = _cell(live)
    history = namespace.get("In")
    cells = [cell for cell in history if isinstance(cell, str)] if isinstance(history, list) else []
    # The history has a cell once for each time it ran; the last one counts, so the function's own cell comes last.
    texts = [*(cell for cell in cells if cell.strip() != own.strip()), own]
    used = needs(live.name, texts)
    *others, last = (only_definitions(text, used) for text in texts)
    return [*(f"exec(compile({text!r}, {OTHER!r}, 'exec'))" for text in others if text.strip()), last]


def needs(name: str, texts: Iterable[str]) -> set[str]:
    """A name, and all names that its definition uses, directly or indirectly."""
    statements = [statement for text in texts for statement in _tree(text).body]
    wanted, before = {name}, 0
    while len(wanted) > before:
        before = len(wanted)
        wanted |= {use for s in statements if wanted.intersection(_bound(s)) for use in _uses(s)}
    return wanted


def only_definitions(source: str, used: set[str]) -> str:
    """A cell with only its imports and the functions, classes and values that are used.

    Removed lines are left empty, so that the others keep their numbers.
    """
    plain = without_magics(source)
    lines = plain.splitlines()
    for statement in _tree(plain).body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)) and used.isdisjoint(_bound(statement)):
            first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
            for number in range(first - 1, statement.end_lineno or statement.lineno):
                lines[number] = ""
    return "\n".join(lines)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a definition or an assignment binds."""
    if isinstance(statement, _SCOPES):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _uses(statement: ast.stmt) -> set[str]:
    """The names a statement reads that are not its own."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    if not isinstance(statement, _SCOPES):
        return read
    arguments = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    return read - arguments - {name.id for name in names if not isinstance(name.ctx, ast.Load)}


def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(without_magics(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
