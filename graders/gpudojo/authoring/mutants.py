"""Makes mutants of a solution by its syntax tree: wrong solutions, each by one change."""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from types import CodeType
from typing import Any, Final, NamedTuple

from gpudojo.authoring.variants import (
    Variant,
    changed_lines,
    digest_of,
    is_text,
    names_bound_by,
    names_in,
    parse_solution,
    text_of_tree,
)

OPPOSITES: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Names that are taken for one another.
CONFUSED_PAIRS: Final = (
    ("train", "eval"),
    ("parameters", "buffers"),
    ("named_parameters", "named_buffers"),
    ("sum", "mean"),
    ("argmin", "argmax"),
    ("min", "max"),
    ("no_grad", "enable_grad"),
    ("inference_mode", "enable_grad"),
    ("append", "extend"),
    ("keys", "values"),
    ("all", "any"),
    ("floor", "ceil"),
    ("max_memory_allocated", "memory_allocated"),
    ("memory_reserved", "memory_allocated"),
    ("list", "tuple"),
    ("split", "splitlines"),
)
# Methods that must be called in order, though no name shows it.
ORDERED_METHODS: Final = frozenset(
    {
        "backward",
        "step",
        "update",
        "unscale_",
        "zero_grad",
        "clip_grad_norm_",
        "synchronize",
        "reset_peak_memory_stats",
        "all_reduce",
    }
)
DEVICES: Final = ("cuda", "cpu")
MODULES: Final = frozenset(
    {"torch", "nn", "F", "dist", "time", "gc", "np", "itertools", "functools", "copy"}
)
UNTOUCHED_FIELDS: Final = frozenset(
    {"annotation", "returns", "ctx", "decorator_list", "type_params", "names"}
)
IMPORTS: Final = (ast.Import, ast.ImportFrom)
NEVER_MOVED: Final = (*IMPORTS, ast.Pass, ast.Return, ast.Global, ast.Nonlocal)
FOR_PEOPLE: Final = (
    *IMPORTS,
    ast.Raise,
    ast.Assert,
    ast.JoinedStr,
    ast.Global,
    ast.Nonlocal,
)


class Replacement(NamedTuple):
    """What may stand in place of a node."""

    kind: str  # of change: "comparison"
    other: Any  # a node, or a list of statements


def _confused_names() -> dict[str, str]:
    """Each name of CONFUSED_PAIRS with the one that it is taken for, both ways."""
    names = {}
    for one, other in CONFUSED_PAIRS:
        names[one] = other
        names[other] = one
    return names


CONFUSED: Final = _confused_names()


def make_mutants(
    source: str, solution: str, functions: Sequence[str], stub: str = ""
) -> list[Variant]:
    """Return the wrong solutions that one change makes of a right one.

    `source` is the right one's text, `solution` its name, and `functions` are those that students
    write. Changes that compile to the same code are left out. Statements that also stand in `stub`,
    the source that students get, are left as they are. Raises SyntaxError for a text that is no
    Python.
    """
    statements = parse_solution(source).body
    statements_of_stub = parse_solution(stub).body
    given = {ast.unparse(statement) for statement in statements_of_stub}
    variants = []
    for index, statement in enumerate(statements):
        original = _write_statement(statement)
        if isinstance(statement, IMPORTS) or original.text in given:
            continue
        concern = _concern_of(statements, statement, functions)
        before = _write_needed(statements[:index], concern.needed)
        after = _write_needed(statements[index + 1 :], concern.needed)
        # A variant is the file with one changed statement.
        for kind, changed in _changes_of(statement):
            file = [*before, changed, *after]
            texts = [each.text for each in file]
            forms = [each.form for each in file]
            variant = Variant(
                solution,
                kind,
                concern.functions,
                diff=changed_lines(original.text, changed.text),
                source="\n\n".join(texts) + "\n",
                digest=digest_of(*forms),
            )
            variants.append(variant)
    return variants


class _WrittenStatement(NamedTuple):
    """A statement as text: as Python, and in the form that digests are made of."""

    text: str
    form: str


def _write_statement(statement: ast.stmt) -> _WrittenStatement:
    """Return a statement as text, as it is now: it may be changed afterwards."""
    return _WrittenStatement(ast.unparse(statement), text_of_tree(statement))


def _write_needed(
    statements: Sequence[ast.stmt], needed: Container[str]
) -> list[_WrittenStatement]:
    """Return statements as texts; functions that are not needed would be run for nothing."""
    written = []
    for statement in statements:
        if not isinstance(statement, ast.FunctionDef) or statement.name in needed:
            written.append(_write_statement(statement))
    return written


class _Change(NamedTuple):
    """A changed statement."""

    kind: str
    statement: _WrittenStatement


def _changes_of(statement: ast.stmt) -> Iterator[_Change]:
    """Yield the statement with one change after another, each that compiles to new code.

    The statement is changed meanwhile, and put back before each is yielded.
    """
    known_codes = {_code_of(statement)}
    for kind, undo_change in _apply_changes(statement):
        ast.fix_missing_locations(statement)
        written = _write_statement(statement)
        try:
            code = _code_of(statement)
        except (SyntaxError, ValueError):
            # A `yield` outside a function, or a name that is now nonlocal of nothing.
            code = None
        undo_change()
        if code is not None and code not in known_codes:
            known_codes.add(code)
            yield _Change(kind, written)


def _code_of(statement: ast.stmt) -> Any:
    """Return what is the same for two statements that run alike."""
    with warnings.catch_warnings():
        # A mutant may compare by `is` with a constant, or call a tuple.
        warnings.simplefilter("ignore")
        code = compile(ast.Module([statement], []), "", "exec")
    return _code_without_lines(code)


def _code_without_lines(code: CodeType) -> Any:
    """Return the parts of a code object that do not depend on lines, constants included."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_code_without_lines(constant))
        else:
            constants.append((type(constant), repr(constant)))
    return (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_exceptiontable,
        *constants,
    )


class _Concern(NamedTuple):
    """What a top-level statement may change."""

    functions: tuple[str, ...]  # of the exercise
    needed: set[str]  # all names that those need


def _concern_of(
    statements: Sequence[ast.stmt], changed: ast.stmt, functions: Sequence[str]
) -> _Concern:
    """Return the functions that a changed statement may concern, and the names they need.

    Where none uses it, all functions that are there are concerned.
    """
    used_by = {}
    for statement in statements:
        for name in names_bound_by(statement):
            used_by[name] = names_in(statement)
    own_names = set(names_bound_by(changed))
    present = [name for name in functions if name in used_by]
    needed_by = {name: _reachable_from(name, used_by) for name in present}
    concerned = []
    for name in present:
        if not own_names.isdisjoint(needed_by[name]):
            concerned.append(name)
    if not concerned:
        concerned = present
    needed = set(own_names)
    for name in concerned:
        needed |= needed_by[name]
    return _Concern(tuple(concerned), needed)


def _reachable_from(name: str, used_by: dict[str, set[str]]) -> set[str]:
    """Return the name, what it uses, what that uses, and so on.

    `used_by` has, by name, the names that it uses.
    """
    reached = {name}
    waiting = [name]
    while waiting:
        user = waiting.pop()
        new = used_by.get(user, set()) - reached
        reached |= new
        waiting += new
    return reached


class _Place(NamedTuple):
    """Where a node stands: in a field of its parent, in a list if it has a position."""

    parent: ast.AST
    field: str
    position: int | None
    node: ast.AST


class _AppliedChange(NamedTuple):
    """A change that was made in a tree."""

    kind: str
    undo: Callable[[], None]


def _apply_changes(root: ast.stmt) -> Iterator[_AppliedChange]:
    """Make one change after another in the tree, and yield its kind and what undoes it.

    Each must be undone before the next.
    """
    for place in list(_places_in(root)):
        replacements = list(_replacements_of(place.node))
        replacements += _replacements_by_place(place)
        for kind, other in replacements:
            yield _AppliedChange(kind, _replace_node(place, other))
    for owner in ast.walk(root):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(owner, field, None)
            if not isinstance(body, list):
                continue
            for kind, other in _other_orders(body):
                yield _AppliedChange(kind, _set_field(owner, field, other))


def _replace_node(place: _Place, other: Any) -> Callable[[], None]:
    """Replace a node by another one, or by the statements of a list. Returns what undoes it."""
    if place.position is None:
        return _set_field(place.parent, place.field, other)
    others = other if isinstance(other, list) else [other]
    siblings = getattr(place.parent, place.field)
    before = siblings[: place.position]
    after = siblings[place.position + 1 :]
    changed = [*before, *others, *after]
    return _set_field(place.parent, place.field, changed)


def _set_field(node: ast.AST, field: str, value: Any) -> Callable[[], None]:
    """Set a field of a node. Returns what sets it back."""
    before = getattr(node, field)
    setattr(node, field, value)
    return lambda: setattr(node, field, before)


def _places_in(node: ast.AST) -> Iterator[_Place]:
    """Yield where something can be changed: no texts for people, no type hints."""
    if isinstance(node, FOR_PEOPLE) or _is_call_for_people(node):
        return
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED_FIELDS:
            continue
        children: list[tuple[int | None, Any]] = [(None, value)]
        if isinstance(value, list):
            children = list(enumerate(value))
        for index, child in children:
            if not isinstance(child, ast.AST) or is_text(child):
                continue
            if isinstance(child, ast.expr | ast.stmt | ast.comprehension):
                yield _Place(node, field, index, child)
            yield from _places_in(child)


def _is_call_for_people(node: ast.AST) -> bool:
    """True for a call of `print` or `warn`, whatever they belong to."""
    match node:
        case ast.Call(func=ast.Name(id="print" | "warn")):
            return True
        case ast.Call(func=ast.Attribute(attr="print" | "warn")):
            return True
    return False


def _other_orders(body: list[Any]) -> Iterator[Replacement]:
    """Yield a list of statements with one of them dropped, or two neighbours exchanged."""
    for index, statement in enumerate(body):
        if not isinstance(statement, ast.stmt):
            continue
        if isinstance(statement, NEVER_MOVED) or is_text(statement):
            continue
        shorter = _without_item(body, index) or [ast.Pass()]
        yield Replacement("statement dropped", shorter)
        neighbours = body[index : index + 2]
        if len(neighbours) == 2 and _order_may_matter(*neighbours):
            yield Replacement("statements exchanged", _exchange_neighbours(body, index))


def _order_may_matter(one: ast.stmt, other: ast.stmt) -> bool:
    """True if two statements may do something else in the other order.

    One uses a name that the other binds, or both call methods that must be called in order.
    """
    for statement in (one, other):
        if isinstance(statement, ast.Return | ast.FunctionDef | ast.ClassDef):
            return False
    if names_in(other).intersection(names_bound_by(one)):
        return True
    if names_in(one).intersection(names_bound_by(other)):
        return True
    return _calls_ordered_method(one) and _calls_ordered_method(other)


def _calls_ordered_method(statement: ast.stmt) -> bool:
    """True if a method is named anywhere in it that must be called in order."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and node.attr in ORDERED_METHODS:
            return True
    return False


def _replacements_by_place(place: _Place) -> Iterator[Replacement]:
    """Yield changes that depend on where the node stands."""
    parent = place.parent
    node = place.node
    is_called = isinstance(parent, ast.Call) and place.field == "func"
    may_be_confused = is_called or isinstance(parent, ast.Tuple | ast.Attribute)
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name.endswith("device") and not is_called:
            for device in DEVICES:
                yield Replacement("device constant", ast.Constant(device))
        case ast.Attribute(attr=name) if name in CONFUSED and may_be_confused:
            attribute = copy.copy(node)
            attribute.attr = CONFUSED[name]
            yield Replacement("other name", attribute)
        case ast.Name(id=name, ctx=ast.Load()) if name in CONFUSED and may_be_confused:
            other = ast.Name(CONFUSED[name], ast.Load())
            yield Replacement("other name", other)
        case ast.Constant(value=str() as text):
            if text and isinstance(parent, ast.expr | ast.keyword | ast.comprehension):
                constant = ast.Constant(_other_text(text))
                yield Replacement("constant", constant)


def _other_text(text: str) -> str:
    """Return another text for a string: the other kind of device, or one letter more."""
    if text.startswith("cuda"):
        return "cpu"
    if text.startswith("cpu"):
        return "cuda"
    return f"{text}_"


def _opposite_operator(operator: ast.AST) -> Any:
    """Return the operator that OPPOSITES has for this one. Raises KeyError where it has none."""
    return OPPOSITES[type(operator)]()


def _replacements_of(node: ast.AST) -> Iterator[Replacement]:
    """Yield what a node may be replaced by; a list of statements in place of one."""
    match node:
        case ast.Constant():
            yield from _other_constants(node.value)
        case ast.Call():
            yield from _other_calls(node)
        case ast.stmt():
            yield from _other_statements(node)
        case ast.BoolOp():
            yield from _other_conditions(node)
        case ast.Compare(left=left, ops=[operator], comparators=comparators):
            opposite = ast.Compare(left, [_opposite_operator(operator)], comparators)
            yield Replacement("comparison", opposite)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield Replacement("sign dropped", operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPPOSITES:
            opposite_sum = ast.BinOp(left, _opposite_operator(operator), right)
            yield Replacement("operator", opposite_sum)
            yield Replacement("operand dropped", left)
            if isinstance(operator, ast.Sub | ast.Div | ast.FloorDiv):
                exchanged = ast.BinOp(right, operator, left)
                yield Replacement("operands exchanged", exchanged)
        case ast.IfExp(body=body, orelse=orelse):
            yield Replacement("branch dropped", body)
            yield Replacement("branch dropped", orelse)
        case ast.comprehension(ifs=[_, *_]):
            unconditional = ast.comprehension(node.target, node.iter, [], node.is_async)
            yield Replacement("condition dropped", unconditional)
        case ast.Subscript(value=value, slice=ast.Slice()):
            yield Replacement("slice dropped", value)


def _other_statements(statement: ast.stmt) -> Iterator[Replacement]:
    """Yield what a statement may be replaced by: another one, or a list of others."""
    match statement:
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in OPPOSITES:
            opposite = ast.AugAssign(target, _opposite_operator(operator), value)
            yield Replacement("operator", opposite)
            yield Replacement("sum forgotten", ast.Assign([target], value))
        case ast.Return(value=ast.expr() as value):
            yield Replacement("return forgotten", ast.Expr(value))
        case ast.With(body=body):
            yield Replacement("with unwrapped", body)
        case ast.If(test=test, body=body, orelse=orelse):
            negation = ast.UnaryOp(ast.Not(), test)
            negated = ast.If(negation, body, orelse)
            yield Replacement("condition negated", negated)
            yield Replacement("condition dropped", body)
            if orelse:
                yield Replacement("branch dropped", ast.If(test, body, []))
        case ast.Try(body=body):
            yield Replacement("try unwrapped", body)


def _other_conditions(condition: ast.BoolOp) -> Iterator[Replacement]:
    """Yield `a or b` for `a and b`, and the condition with one part less."""
    opposite = ast.BoolOp(_opposite_operator(condition.op), condition.values)
    yield Replacement("and, or", opposite)
    for index in range(len(condition.values)):
        rest = _without_item(condition.values, index)
        if len(rest) == 1:
            shorter = rest[0]
        else:
            shorter = ast.BoolOp(condition.op, rest)
        yield Replacement("condition dropped", shorter)


def _other_constants(value: Any) -> Iterator[Replacement]:
    """Yield other values for a constant: the opposite, one more, one less."""
    if isinstance(value, bool):
        yield Replacement("constant", ast.Constant(not value))
    elif isinstance(value, int):
        more = ast.Constant(value + 1)
        less = ast.parse(str(value - 1), mode="eval").body
        yield Replacement("off by one", more)
        yield Replacement("off by one", less)
    elif isinstance(value, float):
        yield Replacement("constant", ast.Constant(value * 1.5 + 0.5))


def _other_calls(call: ast.Call) -> Iterator[Replacement]:
    """Yield a call with an argument less, with two exchanged, or its object alone."""
    name = ast.unparse(call.func)
    if name in ("isinstance", "hasattr", "getattr"):
        yield from _fewer_types(call)
        return
    owner, *_ = name.split(".")
    if isinstance(call.func, ast.Attribute) and owner not in MODULES:
        yield Replacement("call dropped", call.func.value)
    elif len(call.args) == 1 and not call.keywords:
        yield Replacement("call dropped", call.args[0])
    if name == "range":
        yield from _other_ranges(call)
        return
    arguments = call.args
    for index in range(len(arguments)):
        rest = _without_item(arguments, index)
        fewer = ast.Call(call.func, rest, call.keywords)
        yield Replacement("argument dropped", fewer)
    for index in range(len(arguments) - 1):
        exchanged = _exchange_neighbours(arguments, index)
        other = ast.Call(call.func, exchanged, call.keywords)
        yield Replacement("arguments exchanged", other)
    for index in range(len(call.keywords)):
        other_keywords = _without_item(call.keywords, index)
        fewer = ast.Call(call.func, arguments, other_keywords)
        yield Replacement("keyword dropped", fewer)


def _fewer_types(call: ast.Call) -> Iterator[Replacement]:
    """Yield `isinstance(x, (A, B))` with one type less."""
    match call.args:
        case [value, ast.Tuple(elts=types)]:
            for index in range(len(types)):
                rest = _without_item(types, index)
                fewer = ast.Tuple(rest, ast.Load())
                other = ast.Call(call.func, [value, fewer], [])
                yield Replacement("type dropped", other)


def _other_ranges(call: ast.Call) -> Iterator[Replacement]:
    """Yield `range(n)` that ends one earlier, and that begins at 1."""
    *before, stop = call.args
    one = ast.Constant(1)
    earlier_stop = ast.BinOp(stop, ast.Sub(), one)
    shorter = ast.Call(call.func, [*before, earlier_stop], [])
    yield Replacement("off by one", shorter)
    if not before:
        later = ast.Call(call.func, [one, stop], [])
        yield Replacement("off by one", later)


def _without_item(items: Sequence[Any], index: int) -> list[Any]:
    """A new list without the item at this index."""
    rest = list(items)
    del rest[index]
    return rest


def _exchange_neighbours(items: Sequence[Any], index: int) -> list[Any]:
    """A new list in which the item at this index and the next one have changed places."""
    exchanged = list(items)
    exchanged[index] = items[index + 1]
    exchanged[index + 1] = items[index]
    return exchanged
