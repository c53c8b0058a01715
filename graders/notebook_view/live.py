"""Where does an object of a running session come from? Its code's file and lines, and whether it is a stub."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from graders.probes.loading import Submission, is_stub
from graders.probes.signs import signs

NOWHERE: Final = "<no source>"
WRAPPERS: Final = 20  # decorators inside one another, after which one gives up


@dataclass(frozen=True)
class Live:
    """A function, or a value, of the session, under the name of a task."""

    name: str
    thing: Any
    file: str  # as the code object calls it: a cell has a name, and no file
    first: int  # the line at which `source` begins; lines are counted within the cell
    source: tuple[str, ...]
    line: int | None  # of its `def`
    stub: bool

    def submission(self, namespace: dict[str, Any]) -> Submission:
        """The session, as probes know a student's file."""
        names = getattr(_function(self.thing), "__globals__", namespace)
        if names.get(self.name) is not self.thing:
            names = {**names, self.name: self.thing}
        todo = frozenset({self.name} if self.stub else ())
        lines = {} if self.line is None else {self.name: self.line}
        node = _definition(self.source)
        if node is not None:
            lines |= signs([ast.increment_lineno(node, self.first - 1)])
        return Submission(Path(self.file), names, todo=todo, lines=lines)

    def place(self, line: int) -> str:
        """A line for the reader, with the text there."""
        text = linecache.getline(self.file, line).strip()
        where = cell_name(self.file)
        return f"{where + ', ' if where else ''}line {line}" + (f"\n{line:>4} | {text}" if text else "")


def live(name: str, thing: Any) -> Live:
    function = _function(thing)
    if function is None:
        return Live(name, thing, NOWHERE, 1, (), None, False)
    code: CodeType = function.__code__
    source = tuple(_block(code))
    node = _definition(source)
    if node is None:
        return Live(name, thing, code.co_filename, code.co_firstlineno, source, code.co_firstlineno, _raises_only(code))
    line = code.co_firstlineno + node.lineno - 1
    return Live(name, thing, code.co_filename, code.co_firstlineno, source, line, is_stub(node))


def cell_name(file: str) -> str:
    """How the reader knows the place: a cell as `In[5]`, where it has a number; a file by its name."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    naming = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if naming is not None and (found := naming(file)):
        return str(found[-1])
    return Path(file).name if Path(file).is_file() else ""


def _function(thing: Any) -> FunctionType | None:
    """The student's own function behind decorators, partial applications, methods and callable objects."""
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
    """What a decorator has put its own function around, also where it did not say so."""
    named = vars(function).get("__wrapped__")
    if callable(named):
        yield named
    if function.__code__.co_freevars and function.__code__.co_filename.startswith(sys.prefix):
        for cell in function.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            if isinstance(inside, FunctionType):
                yield inside


def _block(code: CodeType) -> list[str]:
    lines = linecache.getlines(code.co_filename)
    try:
        if not lines:
            lines = inspect.getsourcelines(code)[0]  # knows where newer prompts keep what was typed
            return [line.rstrip("\n") for line in lines]
        return [line.rstrip("\n") for line in inspect.getblock(lines[code.co_firstlineno - 1 :])]
    except (OSError, SyntaxError, IndexError, TypeError):
        return []


def _definition(source: tuple[str, ...]) -> ast.FunctionDef | None:
    try:
        body = ast.parse(textwrap.dedent("\n".join(source))).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if len(body) == 1 and isinstance(body[0], ast.FunctionDef) else None


def _raises_only(code: CodeType) -> bool:
    """Whether there is nothing but `raise NotImplementedError`, where no source tells."""
    return code.co_names == ("NotImplementedError",) and code.co_nlocals == code.co_argcount + code.co_kwonlyargcount
