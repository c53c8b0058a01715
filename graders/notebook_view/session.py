"""What of a session does a function need to run elsewhere? What cells define and it uses, without what they do."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from typing import Any, Final

from graders.notebook_view.live import NOWHERE, Live
from graders.probes.notebooks import without_magics

OTHER: Final = "<another cell>"  # its lines are not to be taken for those of the function's own cell
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definitions(live: Live, namespace: dict[str, Any]) -> list[str]:
    """The texts to run, in order: of the other cells, what the function uses; then its own, line for line."""
    if live.file == NOWHERE:
        return [f"{live.name} = {live.thing!r}"] if isinstance(live.thing, dict) else []
    own = "".join(linecache.getlines(live.file)) or "\n" * (live.first - 1) + "\n".join(live.source)
    history = namespace.get("In")
    cells = [cell for cell in history if isinstance(cell, str)] if isinstance(history, list) else []
    # A cell that was run again is in the history again, and the last time counts: so the function's own comes last.
    texts = [*(cell for cell in cells if cell.strip() != own.strip()), own]
    used = needs(live.name, texts)
    *others, last = (only_definitions(text, used) for text in texts)
    return [*(f"exec(compile({text!r}, {OTHER!r}, 'exec'))" for text in others if text.strip()), last]


def needs(name: str, texts: Iterable[str]) -> set[str]:
    """A name, and all names that what defines it uses, directly and in turn."""
    statements = [statement for text in texts for statement in _tree(text).body]
    wanted, before = {name}, 0
    while len(wanted) > before:
        before = len(wanted)
        wanted |= {use for s in statements if wanted.intersection(_bound(s)) for use in _uses(s)}
    return wanted


def only_definitions(source: str, used: set[str]) -> str:
    """A cell with nothing but its imports, and the functions, classes and values that are used.

    What is left out leaves its lines empty, so that the others keep their numbers.
    """
    plain = without_magics(source)
    lines = plain.splitlines()
    for statement in _tree(plain).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) or used.intersection(_bound(statement)):
            continue
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
        for number in range(first - 1, statement.end_lineno or statement.lineno):
            lines[number] = ""
    return "\n".join(lines)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a definition or an assignment gives something to."""
    if isinstance(statement, _SCOPES):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _uses(statement: ast.stmt) -> set[str]:
    """The names a statement reads that are not its own."""
    read: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
    return read - own if isinstance(statement, _SCOPES) else read


def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(without_magics(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
