"""What does a student's file define? It is run once, as a module, and its functions are taken from it."""

from __future__ import annotations

import ast
import linecache
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graders.evidence import Raised


@dataclass
class Submission:
    """A student's file after it has run."""

    path: Path
    names: dict[str, Any] = field(default_factory=dict)
    todo: frozenset[str] = frozenset()
    broken: Raised | None = None  # why the file itself could not be run


def load(path: Path) -> Submission:
    source = path.read_text(encoding="utf-8")
    found = Submission(path)
    try:
        tree = ast.parse(source, str(path))
        code = compile(tree, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        found.broken = Raised(type(error).__name__, str(error), getattr(error, "lineno", None))
        return found
    found.todo = frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and is_stub(node))
    module = types.ModuleType(f"exercise_{path.stem}")
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        found.broken = raised(error, path)
    found.names = module.__dict__
    return found


def is_stub(node: ast.FunctionDef) -> bool:
    """Whether nothing but a docstring and `raise NotImplementedError` (or `...`) is there yet."""
    body = node.body
    if (
        body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        body = body[1:]
    if not body:
        return True
    if len(body) > 1:
        return False
    only = body[0]
    if isinstance(only, ast.Raise):
        called = only.exc.func if isinstance(only.exc, ast.Call) else only.exc
        return isinstance(called, ast.Name) and called.id == "NotImplementedError"
    return isinstance(only, ast.Pass) or (isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant))


def raised(error: BaseException, path: Path) -> Raised:
    """An exception as evidence, with the last line of the student's file it passed through."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return Raised(type(error).__name__, str(error)[:2000], line)
