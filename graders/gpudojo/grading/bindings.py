"""The names that a student's source binds at its top level, and which of them are stubs."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gpudojo.grading.notebooks import Notebook
from gpudojo.grading.sources import (
    Unparsable,
    parse_source,
    read_texts,
    warnings_are_no_errors,
)
from gpudojo.grading.syntax import SCOPES

_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BOUND: Final = re.compile(r"^def (\w+)|^(\w+)\s*=", re.M)


class Binding(NamedTuple):
    """A name that gets a value, a function, a class or a module."""

    name: str
    line: int
    is_stub: bool  # a function that is still to be written


def find_bindings(tree: ast.Module) -> list[Binding]:
    """Each name that is bound at the top level of a file, in order, without its demo.

    A name that is bound several times is there as often: the last one counts.
    """
    found: list[Binding] = []
    for statement in tree.body:
        found += bindings_of_statement(statement)
    return found


def bindings_of_statement(statement: ast.stmt) -> list[Binding]:
    """Each name that is bound by a statement at the top level of a file; none by its demo."""
    found: list[Binding] = []
    if not is_demo(statement):
        for node in nodes_of_scope(statement):
            found += _bindings_of_node(node)
    return found


def _bindings_of_node(node: ast.AST) -> Iterator[Binding]:
    """Yield what a definition, an assignment or an import binds; nothing for other nodes.

    Only a function may be a stub.
    """
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield Binding(name, node.lineno, False)
        case ast.FunctionDef(name=name):
            yield Binding(name, node.lineno, is_stub(node))
        case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield Binding(name, node.lineno, False)
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            for alias in aliases:
                # `import torch.nn` binds `torch`.
                name = alias.asname or alias.name
                yield Binding(name.partition(".")[0], node.lineno, False)


def nodes_of_scope(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and the nodes in it, in order.

    The insides of functions, classes and whatever else has names of its own are left out.
    """
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*SCOPES, *_COMPREHENSIONS)):
            waiting += reversed(list(ast.iter_child_nodes(node)))


def is_demo(statement: ast.stmt) -> bool:
    """True for `if __name__ == "__main__":`, which does not run here."""
    match statement:
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def is_stub(node: ast.FunctionDef) -> bool:
    """True if a function has only a docstring and `raise NotImplementedError`, `...` or `pass`."""
    body = node.body
    if ast.get_docstring(node, clean=False) is not None:
        body = body[1:]
    if len(body) > 1:
        return False
    match body:
        case [] | [ast.Pass()] | [ast.Expr(value=ast.Constant())]:
            return True
        case [ast.Raise(exc=ast.Name(id="NotImplementedError"))]:
            return True
        case [ast.Raise(exc=ast.Call(func=ast.Name(id="NotImplementedError")))]:
            return True
    return False


def solved_names(path: Path) -> frozenset[str]:
    """The names that a file binds, without those that are stubs. The file is not run.

    Of a file that cannot be read or parsed, only those before the part that is wrong.
    """
    solved = set()
    with contextlib.suppress(Unparsable), warnings_are_no_errors():
        for text, first_line in read_texts(path):
            tree = parse_source(text, path, first_line)
            for binding in find_bindings(tree):
                solved.add(binding.name)
                if binding.is_stub:  # the last binding of a name counts
                    solved.discard(binding.name)
    return frozenset(solved)


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
        names.update(binding.name for binding in find_bindings(tree))
    return names
