"""Finds the line of a source that a failure is about."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from gpudojo.model.exercise import pattern_key

MOST: Final = 80  # of one function
DEVICES: Final = ("cuda", "mps", "cpu")
Found = Iterator[tuple[str, int]]
_OWN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BODIES = ("body", "handlers", "orelse", "finalbody", "cases")
_LEAVES = frozenset({ast.Name, ast.Constant, ast.Pass, ast.Break, ast.Continue})
_NOTHING = frozenset({"ctx", "op", "ops", "id", "attr", "name", "lineno", "type_comment", "returns"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SIGNS: Final[dict[type[ast.operator], str]] = {
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Sub: "-",
    ast.Mult: "*",
}
SHORT: Final = 12  # characters of a text that is compared


def pattern_lines(statements: Iterable[ast.stmt]) -> dict[str, int]:
    """The line of each pattern that a function's source has, itself or in a helper that it names; of a dict, its keys.

    Patterns are, for example, `to(` for a call, `.shape` for an attribute, `.grad =` for one that is set, `"cuda"`,
    `for`, `except`, `raise`, `lambda`, `/`, `first return`, `@` for a decorator, `device =` for a parameter that gets
    another value, `pin_memory=` for an argument: the line where its value is made.
    """
    statements = list(statements)
    functions = {s.name: s for s in statements if isinstance(s, ast.FunctionDef)}
    nodes = {s.name: _in_order(s) for s in statements if isinstance(s, ast.FunctionDef | ast.ClassDef)}
    shown = {name: _first_and_last([*_shown(inside)]) for name, inside in nodes.items()}
    found = {pattern_key(name, what): line for s in statements for name, what, line in _keys(s)}
    for name, node in functions.items():
        own = dict(_returns(node))
        for other in (name, *_helpers(name, nodes)):
            own |= {what: line for what, line in shown[other].items() if what not in own}
        found |= {pattern_key(name, what): line for what, line in [*own.items()][:MOST]}
    return found


def _keys(statement: ast.stmt) -> Iterator[tuple[str, str, int]]:
    """Of a dict that gets a name: `["key"]` is the line of each key."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.Dict):
        return
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    found = [(key.value, key.lineno) for key in statement.value.keys if isinstance(key, ast.Constant)]
    keys = [(key, line) for key, line in found if isinstance(key, str)]
    for target in targets:
        if isinstance(target, ast.Name):
            yield from ((target.id, f'["{key}"]', line) for key, line in keys[:MOST])


def _first_and_last(shown: list[tuple[str, int]]) -> dict[str, int]:
    """Where each pattern is first, and of a call or attribute that is on several lines where it is last."""
    first, last = dict(reversed(shown)), dict(shown)
    twice = (what for what in first if last[what] > first[what] and (what.endswith("(") or what.startswith(".")))
    return first | {f"last {what}": last[what] for what in twice}


def _helpers(name: str, nodes: dict[str, list[ast.AST]]) -> list[str]:
    """The functions and classes of the file that this one names, and those that they name."""
    found, waiting = [name], [name]
    while waiting:
        for each in nodes[waiting.pop()]:
            if isinstance(each, ast.Name) and each.id in nodes and each.id not in found:
                found.append(each.id)
                waiting.append(each.id)
    return found[1:]


def _shown(nodes: list[ast.AST]) -> Found:
    """In the order of the source, as far as syntax goes; the first of the same kind counts."""
    compared = {part for node in nodes for part in _compared(node)}
    made = {node.id: node.lineno for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    top = nodes[0]
    given = {each.arg for each in nodes if isinstance(each, ast.arg)}
    if isinstance(top, ast.FunctionDef):
        yield from (("@", each.lineno) for each in top.decorator_list)
    for node in nodes:
        how = "== " if node in compared else ""
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                yield f"{called.id}(", node.lineno
            elif isinstance(called, ast.Attribute):
                yield f"{called.attr}(", called.end_lineno or called.lineno
        elif isinstance(node, ast.Attribute):
            line = node.end_lineno or node.lineno
            yield f"{how}.{node.attr}", line
            if isinstance(node.ctx, ast.Store):
                yield f".{node.attr} =", line
        elif isinstance(node, ast.Name):
            if node.id in given and isinstance(node.ctx, ast.Store):
                yield f"{node.id} =", node.lineno
        elif isinstance(node, ast.keyword):
            value = node.value
            yield f"{node.arg}=", made.get(value.id, value.lineno) if isinstance(value, ast.Name) else value.lineno
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            if type(node.op) in _SIGNS:
                yield _SIGNS[type(node.op)], node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = node.value.partition(":")[0]
            if kind in DEVICES:
                yield f'{how}"{kind}"', node.lineno
            elif how and len(node.value) <= SHORT:
                yield f'{how}"{node.value}"', node.lineno
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield "[] =", node.lineno
        elif isinstance(node, _LOOPS):
            yield "for", node.lineno
        elif isinstance(node, ast.ExceptHandler):
            yield "except", node.lineno
        elif isinstance(node, ast.Raise | ast.Lambda):
            yield type(node).__name__.lower(), node.lineno
        elif isinstance(node, ast.If):
            returns = (part.lineno for part in _statements(node.body) if isinstance(part, ast.Return))
            line = next(returns, node.body[0].lineno)
            yield from ((f"if {name}", line) for name in _names(node.test))


def _compared(node: ast.AST) -> Iterator[ast.AST]:
    """What is asked about and not used: `device.type == "cuda"` hard-codes nothing, and drops no index."""
    asks = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith"
    if asks or isinstance(node, ast.Compare):
        yield from ast.walk(node)


def _returns(function: ast.FunctionDef) -> Found:
    lines = [node.lineno for node in _statements(function.body) if isinstance(node, ast.Return)]
    lines = lines or [function.body[-1].lineno]
    if len(lines) == 1:
        yield "return", lines[0]
    yield "first return", lines[0]
    yield "last return", lines[-1]


def _names(test: ast.expr) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Statements, and those inside them, in order; not those of a function or class among them."""
    waiting: list[ast.AST] = [*reversed(body)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _OWN):
            inside = [part for name in _BODIES for part in getattr(node, name, ())]
            waiting += reversed(inside)


def _in_order(top: ast.AST) -> list[ast.AST]:
    """Every node of a source that a pattern may be read from. Every file of a class is read here, so nodes that
    hold nothing else are not opened, and operators and contexts, half of all nodes, are left out."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [top]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if type(node) not in _LEAVES:
            inside: list[ast.AST] = []
            for name in node._fields:
                if name in _NOTHING:
                    continue
                value = getattr(node, name, None)
                if type(value) is list:
                    inside += [part for part in value if isinstance(part, ast.AST)]
                elif isinstance(value, ast.AST):
                    inside.append(value)
            inside.reverse()
            waiting += inside
    return found
