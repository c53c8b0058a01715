"""Questions about the syntax tree of a student's source: its nodes, statements and names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BODIES: Final = ("body", "handlers", "orelse", "finalbody", "cases")
# Methods and attributes that are a view of the tensor.
_VIEWS: Final = frozenset(
    "unbind view reshape permute transpose movedim moveaxis swapaxes squeeze unsqueeze select "
    "narrow split chunk flatten unflatten expand detach values items T mT data".split()
)
# Nodes, and fields of nodes, that hold nothing a pattern is read from.
_LEAVES: Final = frozenset({ast.Name, ast.Constant, ast.Pass, ast.Break, ast.Continue})
_SKIPPED_FIELDS: Final = frozenset(
    {"ctx", "op", "ops", "id", "attr", "name", "lineno", "type_comment", "returns"}
)


def nodes_in(top: ast.AST) -> list[ast.AST]:
    """Every node of a source that a pattern may be read from, in order, beginning with `top`.

    Every file of a class is read here: nodes that hold nothing else are not opened, and operators
    and contexts, half of all nodes, are left out; so are annotations of results.
    """
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [top]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if type(node) not in _LEAVES:
            waiting += reversed(_nodes_directly_in(node))
    return found


def _nodes_directly_in(node: ast.AST) -> list[ast.AST]:
    """The children of a node, in order, without those in fields that are skipped."""
    inside: list[ast.AST] = []
    for field in node._fields:
        if field in _SKIPPED_FIELDS:
            continue
        value = getattr(node, field, None)
        parts = [value]
        if isinstance(value, list):
            parts = value
        for part in parts:
            if isinstance(part, ast.AST):
                inside.append(part)
    return inside


def statements_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield statements and those inside them, in order.

    Handlers and cases count as statements. What a function or class among them holds is left out.
    """
    waiting: list[ast.AST] = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting += reversed(parts_of_statement(node))


def parts_of_statement(statement: ast.AST) -> list[ast.AST]:
    """The statements, handlers and cases directly inside a statement, in order."""
    parts: list[ast.AST] = []
    for field in _BODIES:
        parts += getattr(statement, field, ())
    return parts


def viewed_name(node: ast.AST) -> str | None:
    """The name of the tensor that an expression is, or is a view of. Otherwise None.

    `x`, `x[:, 0]` and `x.unbind(1)` are all about `x`.
    """
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        match node:
            case ast.Subscript(value=viewed):
                node = viewed
            case ast.Attribute(value=viewed, attr=attribute) if attribute in _VIEWS:
                node = viewed
            case _:
                return None
    return node.id


def first_name(node: ast.AST) -> str | None:
    """The name that a chain of attributes begins with: `torch` of `torch.cuda.is_available`.

    None where it begins with something other than a name, such as a call.
    """
    while isinstance(node, ast.Attribute):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id
    return None


def names_among(nodes: Iterable[ast.AST]) -> list[str]:
    """The nodes that are names, such as targets of an assignment. What is in others is left out."""
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def names_in(node: ast.AST) -> list[str]:
    """All names in an expression, each as often as it stands there."""
    return names_among(ast.walk(node))


def words_in(test: ast.AST) -> Iterator[str]:
    """Yield the names, attributes and texts in a condition."""
    for node in ast.walk(test):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                yield word


def called_names(node: ast.AST) -> Iterator[str]:
    """Yield the functions that an expression calls by name."""
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Name(id=name)):
                yield name


def gives_value(statement: ast.AST) -> bool:
    """True for a `return` of something other than None, and for a `yield`."""
    match statement:
        case ast.Return(value=None | ast.Constant(value=None)):
            return False
        case ast.Return():
            return True
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            return True
        case ast.Assign(value=ast.Yield() | ast.YieldFrom()):
            return True
    return False


def boolean_defaults(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, bool]]:
    """Yield the parameters whose default is True or False, with it.

    Those by position come first, then those by keyword alone.
    """
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    # The defaults are those of the last parameters; one by keyword has None where it has none.
    without_default = len(positional) - len(arguments.defaults)
    parameters = positional[without_default:] + arguments.kwonlyargs
    defaults = arguments.defaults + arguments.kw_defaults
    for parameter, default in zip(parameters, defaults, strict=True):
        match default:
            case ast.Constant(value=bool(value)):
                yield parameter, value


def single_assignments(function: ast.FunctionDef) -> dict[str, ast.Assign]:
    """The variables that a function sets exactly once, by `name = …`, with that statement.

    Parameters are left out, and what loops and others set.
    """
    assigned: dict[str, ast.Assign] = {}
    times: dict[str, int] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                assigned[name] = node
            case ast.arg(arg=name):
                times[name] = 2
            case ast.Name(id=name) if not isinstance(node.ctx, ast.Load):
                times[name] = times.get(name, 0) + 1
    return {name: node for name, node in assigned.items() if times.get(name) == 1}


def asked_name(test: ast.expr) -> str | None:
    """The variable that a condition is: `there` of `if there:` and `if not there:`; else None."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Name):
        return test.id
    return None


def zeroes_gradients(node: ast.AST) -> bool:
    """True for code that zeroes or removes gradients: `zero_grad()`, `p.grad = None`, …"""
    match node:
        case ast.Call(func=ast.Attribute(attr="zero_grad" | "zero_" | "_foreach_zero_")):
            return True
        case ast.Call(
            func=ast.Attribute(attr="mul_" | "fill_" | "_foreach_mul_", value=owner),
            args=[*_, ast.Constant(value=0)],
        ):
            return "grad" in words_in(owner) or isinstance(owner, ast.Name)
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="grad"), value]):
            return _is_nothing(value)
        case ast.Assign(targets=targets, value=value):
            return any(map(_is_gradient, targets)) and _is_nothing(value)
        case ast.AugAssign(target=target, op=ast.Mult(), value=ast.Constant(value=0)):
            return "grad" in words_in(target)
        case ast.Delete(targets=targets):
            return any(map(_is_gradient, targets))
    return False


def _is_gradient(target: ast.expr) -> bool:
    """True for `p.grad`, `p.grad.data` and `p.grad[…]`, where something is assigned to them."""
    match target:
        case ast.Attribute(attr="grad"):
            return True
        case ast.Attribute(value=owner) | ast.Subscript(value=owner):
            return _is_gradient(owner)
    return False


def _is_nothing(value: ast.expr) -> bool:
    """True for None, 0 and new zeros."""
    match value:
        case ast.Constant(value=None | 0):
            return True
        case ast.Call(func=ast.Attribute(attr="zeros_like" | "zeros" | "new_zeros")):
            return True
    return False


def missing_parameters(call: ast.Call, callee: ast.FunctionDef) -> list[str]:
    """The parameters that a call does not pass. There are none where it may pass anything."""
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            return []
    passed_by_name = [keyword.arg for keyword in call.keywords]
    if None in passed_by_name:  # `**options`
        return []
    parameters = callee.args
    positional = parameters.posonlyargs + parameters.args
    not_by_position = positional[len(call.args) :] + parameters.kwonlyargs
    missing = []
    for parameter in not_by_position:
        if parameter.arg not in passed_by_name:
            missing.append(parameter.arg)
    return missing


def lines_of_returns(function: ast.FunctionDef) -> list[int]:
    """The lines of all `return`s, each once. Without any, the line of the last statement.

    Those of functions inside are left out.
    """
    lines: list[int] = []
    for node in statements_in(function.body):
        if isinstance(node, ast.Return) and node.lineno not in lines:
            lines.append(node.lineno)
    return lines or [_line_of_last_statement(function)]


def _line_of_last_statement(statement: ast.AST) -> int:
    """The line of the last statement inside a statement, at any depth; of a simple one, its own
    line.
    """
    inside = parts_of_statement(statement)
    if inside:
        return _line_of_last_statement(inside[-1])
    assert isinstance(statement, ast.stmt)  # handlers and cases have statements inside
    return statement.lineno


def lines_leaving_loops(body: list[ast.stmt]) -> Iterator[int]:
    """Yield the lines in loops that leave them, by `return` or `break`.

    A line in several loops is yielded for each of them.
    """
    for node in statements_in(body):
        if not isinstance(node, ast.For | ast.While):
            continue
        for part in statements_in(node.body):
            if isinstance(part, ast.Return | ast.Break):
                yield part.lineno


def guarded_lines(body: list[ast.stmt]) -> Iterator[tuple[int, int]]:
    """Yield each line that a condition or a loop may leave out, and the line of that condition.

    An inner condition comes after those around it. Of a statement that has statements inside, only
    the lines before those are given.
    """
    for node in statements_in(body):
        if not isinstance(node, ast.If | ast.For | ast.While):
            continue
        condition = node.lineno
        for part in node.body + node.orelse:
            first = max(part.lineno, condition + 1)
            last = max(part.lineno, _last_line_of_header(part))
            for line in range(first, last + 1):
                yield line, condition


def _last_line_of_header(statement: ast.stmt) -> int:
    """The last line before the statements inside; of a simple statement, its last line."""
    inside = getattr(statement, "body", None)
    if inside:
        return int(inside[0].lineno) - 1
    return statement.end_lineno or 0
