"""Finds where returned values come from, in the source of a function.

`keys_of_returns` gives lines under keys beside those of `gpudojo.grading.source_patterns`.
`origin_of_returned` in `gpudojo.model.exercise` reads them:

    assigned 1 for 8          the first line that sets the variable which line 8 returns
    assigned 1 for 8 part 2   the same for the second item of a tuple that line 8 returns
    fixed 8                   line 8 returns or assigns a fixed value, such as True

Nothing is said of a variable of which the last assignment may not be all: one that is changed in
place, or set by a loop or in two places of one loop. Nor of one that is also used for something
else: then it may be right, and only not what was to be returned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from gpudojo.grading.syntax import SCOPES, first_name, names_in, parts_of_statement
from gpudojo.model.exercise import PLACES

# What only changes the type or the device of a value, not the value.
_CONVERSIONS: Final = frozenset({"float", "int", "item", "cpu", "detach"})
_Loops = tuple[ast.AST, ...]


def keys_of_returns(function: ast.FunctionDef) -> dict[str, int]:
    """The lines that set what a function returns, and those with fixed values, by key."""
    # Its simple statements, each with the loops around it
    returns: list[tuple[ast.Return, _Loops]] = []
    assignments: dict[str, list[tuple[int, _Loops]]] = {}
    found = {}
    for statement, loops in _statements_with_loops(function.body):
        match statement:
            case ast.Return(value=value):
                returns.append((statement, loops))
            case ast.Assign(value=value) | ast.AnnAssign(value=value):
                for name in _names_set(statement):
                    assignments.setdefault(name, []).append((statement.lineno, loops))
            case _:
                continue
        if _is_fixed(value):
            found[f"fixed {statement.lineno}"] = statement.lineno
    # The assignments behind each `return`
    doubtful = {*_names_changed_otherwise(function), *_names_used_otherwise(function)}
    for statement, loops in returns:
        for suffix, value in _returned_parts(statement):
            returned = _converted_name(value)
            places = assignments.get(returned or "", [])
            if returned in doubtful or _may_be_set_later(places, statement.lineno, loops):
                continue
            for number, (line, _) in enumerate(places[:PLACES], 1):
                found[f"assigned {number} for {statement.lineno}{suffix}"] = line
    return found


def _statements_with_loops(
    body: list[ast.stmt], loops: _Loops = ()
) -> Iterator[tuple[ast.stmt, _Loops]]:
    """Yield statements at any depth, in order, each with the loops around it.

    What functions and classes inside hold is left out.
    """
    for node in body:
        if isinstance(node, ast.stmt):
            yield node, loops
        if isinstance(node, SCOPES):
            continue
        inside = loops
        if isinstance(node, ast.For | ast.While):
            inside = (*loops, node)
        yield from _statements_with_loops(parts_of_statement(node), inside)  # type: ignore[arg-type]


def _names_set(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    """Yield the variables that an assignment sets, also several at once."""
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _is_fixed(value: ast.expr | None) -> bool:
    """True for a number, a text, True, False or None that is written there."""
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Constant)


def _names_changed_otherwise(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names that may change by more than plain assignments: in place, or by a loop."""
    assigned: set[ast.AST] = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                assigned.update(_targets_in(node))
            case ast.Expr(value=value):
                yield from names_in(value)  # `found.append(x)`, `helper(found)`
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=changed):
                yield first_name(changed) or ""
            case ast.Attribute(ctx=ast.Store() | ast.Del(), value=changed):
                yield first_name(changed) or ""
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
    # Set by a loop, a `with`, `+=` and others
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node not in assigned and _is_set(node):
            yield node.id


def _is_set(name: ast.Name) -> bool:
    """True where a name gets a value or is deleted, and is not read."""
    return not isinstance(name.ctx, ast.Load)


def _names_used_otherwise(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names that are read in other statements than a `return` and their own assignments.

    What a compound statement, such as a loop, holds is looked at by itself.
    """
    for node in ast.walk(function):
        match node:
            case ast.Return():
                continue
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                yield from set(names_in(value)) - set(_names_set(node))
            case ast.stmt():
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr | ast.withitem | ast.arguments):
                        yield from names_in(part)


def _targets_in(statement: ast.Assign | ast.AnnAssign) -> Iterator[ast.AST]:
    """Yield all nodes in the targets of an assignment."""
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
    for target in targets:
        yield from ast.walk(target)


def _returned_parts(statement: ast.Return) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a statement returns, and each item of a tuple, with the end of its key."""
    if statement.value is None:
        return
    yield "", statement.value
    if isinstance(statement.value, ast.Tuple):
        for number, item in enumerate(statement.value.elts, 1):
            yield f" part {number}", item


def _converted_name(value: ast.expr) -> str | None:
    """The variable that an expression is, perhaps converted: `x` of `float(x)` and `x.cpu()`.

    None for any other expression.
    """
    while not isinstance(value, ast.Name):
        match value:
            case ast.Call(func=ast.Name(id=name), args=[inside], keywords=[]):
                value = inside
            case ast.Call(func=ast.Attribute(attr=name, value=inside), args=[], keywords=[]):
                value = inside
            case _:
                return None
        if name not in _CONVERSIONS:
            return None
    return value.id


def _may_be_set_later(
    places: list[tuple[int, _Loops]], returned: int, loops_of_return: _Loops
) -> bool:
    """True if the assignment that comes last in the source may not be the last one to run.

    `places` are the lines of the assignments, with the loops around each.
    """
    seen: set[ast.AST] = set()
    for line, loops in places:
        if line > returned or seen.intersection(loops) or set(loops).intersection(loops_of_return):
            return True
        seen.update(loops)
    return False
