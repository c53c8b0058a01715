"""Which misconceptions does the code of a check name? Read from its syntax, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def keys_in(source: str) -> list[tuple[str, int]]:
    """The misconception keys a module's checks name, given by position or by name."""
    tree = ast.parse(source)
    places = {"Failed": 3}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            if "misconception" in names:
                places[node.name] = names.index("misconception")
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        place = places.get(called)
        given = [keyword.value for keyword in node.keywords if keyword.arg == "misconception"]
        if place is not None and len(node.args) > place:
            given.append(node.args[place])
        for value in given:
            found += [(text, value.lineno) for text in _texts(value)]
    return found


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts an expression may come out as."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)
