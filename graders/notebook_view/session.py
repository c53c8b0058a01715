"""What of a session does a function need to run elsewhere? What cells define, without what they do."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from typing import Any

from graders.notebook_view.live import NOWHERE, Live
from graders.probes.notebooks import without_magics

_DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definitions(live: Live, namespace: dict[str, Any]) -> list[str]:
    """The texts to run, in order: of the cells before, what the function may use; then its own, line for line."""
    if live.file == NOWHERE:
        return [f"{live.name} = {live.thing!r}"] if isinstance(live.thing, dict) else []
    own = "".join(linecache.getlines(live.file)) or "\n" * (live.first - 1) + "\n".join(live.source)
    used = {node.id for node in ast.walk(_tree(own)) if isinstance(node, ast.Name)}
    history = namespace.get("In")
    cells = [cell for cell in history if isinstance(cell, str)] if isinstance(history, list) else []
    # A cell that was run again is in the history again: the last time counts, and the function's own cell comes last.
    return [*(text for cell in cells if (text := only_definitions(cell, used)).strip()), only_definitions(own, None)]


def only_definitions(source: str, used: set[str] | None) -> str:
    """A cell with nothing but imports, functions, classes and values; those of other cells only if they are `used`.

    What is left out leaves its lines empty, so that the others keep their numbers.
    """
    plain = without_magics(source)
    lines = plain.splitlines()
    for statement in _tree(plain).body:
        if isinstance(statement, _DEFINING) or (
            isinstance(statement, (ast.Assign, ast.AnnAssign)) and _wanted(statement, used)
        ):
            continue
        for number in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
            lines[number] = ""
    return "\n".join(lines)


def _wanted(statement: ast.Assign | ast.AnnAssign, used: set[str] | None) -> bool:
    targets: Sequence[ast.expr] = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return used is None or bool(names & used)


def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
