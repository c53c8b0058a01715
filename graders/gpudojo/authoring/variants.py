"""Makes variants of a solution by its syntax tree: mutants, which are wrong, and rewrites, which change nothing."""

from __future__ import annotations

import ast
import copy
import difflib
import hashlib
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from gpudojo.grading.load import is_demo


@dataclass(frozen=True)
class Variant:
    """A changed solution."""

    solution: str  # "reference", or the name of a kept solution
    kind: str  # "comparison"
    functions: tuple[str, ...]  # of the exercise, that the change may concern
    diff: str  # the changed lines, without their indentation, after "-" and "+"
    source: str
    digest: str

    @property
    def name(self) -> str:
        """A name by which it is known as long as neither the solution nor the change is another one."""
        return f"{self.solution}-{self.digest}"


OPPOSITES: Final[dict[type[ast.AST], type[ast.AST]]] = {
    **{
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
    },
    **{
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
        ast.And: ast.Or,
        ast.Or: ast.And,
    },
    **{
        ast.Add: ast.Sub,
        ast.Sub: ast.Add,
        ast.Mult: ast.Div,
        ast.Div: ast.Mult,
        ast.FloorDiv: ast.Div,
    },
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
# Names that are taken for one another.
_PAIRS: Final = (
    *(
        "train eval",
        "parameters buffers",
        "named_parameters named_buffers",
        "sum mean",
        "argmin argmax",
        "min max",
    ),
    *(
        "no_grad enable_grad",
        "inference_mode enable_grad",
        "append extend",
        "keys values",
        "all any",
        "floor ceil",
    ),
    *(
        "max_memory_allocated memory_allocated",
        "memory_reserved memory_allocated",
        "list tuple",
        "split splitlines",
    ),
)
CONFUSED: Final = {a: b for pair in _PAIRS for a, b in (pair.split(), reversed(pair.split()))}
# What must be called in order, though no name shows it.
STEPS: Final = frozenset(
    "backward step update unscale_ zero_grad clip_grad_norm_ synchronize reset_peak_memory_stats all_reduce".split()
)
DEVICES: Final = ("cuda", "cpu")
MODULES: Final = frozenset("torch nn F dist time gc np itertools functools copy".split())
_UNTOUCHED: Final = frozenset(
    {"annotation", "returns", "ctx", "decorator_list", "type_params", "names"}
)
_IMPORTS = ast.Import | ast.ImportFrom
_FIXED = _IMPORTS | ast.Pass | ast.Return | ast.Global | ast.Nonlocal
_FOR_PEOPLE = _IMPORTS | ast.Raise | ast.Assert | ast.JoinedStr | ast.Global | ast.Nonlocal


def mutants(source: str, solution: str, functions: Sequence[str], given: str = "") -> list[Variant]:
    """The wrong solutions that one change makes of a right one, without those that compile to the same code.

    What also stands in `given`, the stub that students get, is left as it is.
    """
    tree = parsed(source)
    shown = {ast.unparse(statement) for statement in parsed(given).body}
    texts = [ast.unparse(one) for one in tree.body]
    forms = [_form(one) for one in tree.body]
    found = []
    for index, statement in enumerate(tree.body):
        if isinstance(statement, _IMPORTS) or texts[index] in shown:
            continue
        concerned, needed = _concerned(tree, statement, functions)
        # The functions that are not needed would be run for nothing.
        kept = [not isinstance(one, ast.FunctionDef) or one.name in needed for one in tree.body]
        known = {_compiled(statement)}
        for kind, undo in _changes(statement):
            after = ast.unparse(ast.fix_missing_locations(statement))
            form = _form(statement)
            try:
                code = _compiled(statement)
            except (
                SyntaxError,
                ValueError,
            ):  # a `yield` outside a function, a name that is now nonlocal of nothing
                code = next(iter(known))
            undo()
            if code not in known:
                known.add(code)
                source = (
                    "\n\n".join(
                        itertools.compress([*texts[:index], after, *texts[index + 1 :]], kept)
                    )
                    + "\n"
                )
                whole = itertools.compress([*forms[:index], form, *forms[index + 1 :]], kept)
                change = difference(texts[index], after)
                found.append(Variant(solution, kind, concerned, change, source, _digest(*whole)))
    return found


def parsed(source: str) -> ast.Module:
    """The tree of a file, without its docstring and its demo."""
    tree = ast.parse(source)
    tree.body = [one for one in tree.body if not is_demo(one) and not _is_text(one)]
    return tree


def difference(before: str, after: str) -> str:
    """The lines that differ between two normalised sources, without their indentation."""
    first, second = ([line.strip() for line in text.splitlines()] for text in (before, after))
    lines = difflib.unified_diff(first, second, n=0, lineterm="")
    return "\n".join(
        line
        for line in lines
        if line[:3] not in ("---", "+++") and line[0] in "+-" and len(line) > 1
    )


def _form(node: Any) -> str:
    """A node as a text that is the same with every version of Python, which `ast.unparse` and `ast.dump` are not."""
    if isinstance(node, list):
        return f"[{' '.join(map(_form, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = (
        (name, value)
        for name, value in ast.iter_fields(node)
        if name not in ("ctx", "kind", "type_params")
    )
    return f"({type(node).__name__} {' '.join(f'{name}={_form(value)}' for name, value in fields)})"


def _digest(*forms: str) -> str:
    return hashlib.sha256("\n".join(forms).encode()).hexdigest()[:10]


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _compiled(statement: ast.stmt) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a mutant may compare by `is` with a constant, or call a tuple
        return _code(compile(ast.Module([statement], []), "", "exec"))


def _code(code: CodeType) -> Any:
    """What is the same for two sources that run alike: the bytecode without lines."""
    consts = (
        _code(one) if isinstance(one, CodeType) else (type(one), repr(one))
        for one in code.co_consts
    )
    return code.co_code, code.co_names, code.co_varnames, code.co_exceptiontable, *consts


def _concerned(
    tree: ast.Module, changed: ast.stmt, functions: Sequence[str]
) -> tuple[tuple[str, ...], set[str]]:
    """The exercise's functions that a top-level statement may concern, and all names that those need."""
    uses = {name: _used(one) for one in tree.body for name in _bound(one)}
    needs = {name: _reached(name, uses) for name in uses}
    mine = set(_bound(changed))
    concerned = tuple(
        name for name in functions if name in uses and (mine & needs[name] or name in mine)
    )
    concerned = concerned or tuple(name for name in functions if name in uses)
    return concerned, {other for name in concerned for other in needs[name]} | mine


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [statement.name]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _used(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _reached(name: str, uses: dict[str, set[str]]) -> set[str]:
    reached = {name}
    waiting = [name]
    while waiting:
        more = uses.get(waiting.pop(), set()) - reached
        reached |= more
        waiting += more
    return reached


def _changes(root: ast.stmt) -> Iterator[tuple[str, Callable[[], None]]]:
    """Make one change after another; each must be undone before the next."""
    holder = ast.Module([root], [])
    for parent, field, index, node in list(_places(root)):
        for kind, other in [*_replacements(node), *_of_parent(parent, field, node)]:
            yield kind, _put(parent, field, index, other)
    for owner in ast.walk(holder):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(owner, field, None)
            if isinstance(body, list) and owner is not holder:
                for kind, changed in _orders(body):
                    yield kind, _put(owner, field, None, changed)


def _put(parent: Any, field: str, index: int | None, other: Any) -> Callable[[], None]:
    """Replace a node by another one, or by the statements of a list. Returns what undoes it."""
    before = getattr(parent, field)
    if index is None:
        setattr(parent, field, other)
    else:
        others = other if isinstance(other, list) else [other]
        setattr(parent, field, [*before[:index], *others, *before[index + 1 :]])
    return lambda: setattr(parent, field, before)


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Where something can be changed: a node, its parent and field; no texts for people, no type hints."""
    printed = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
        "print",
        "warn",
    )
    if printed or isinstance(node, _FOR_PEOPLE):
        return
    for field, value in ast.iter_fields(node):
        if field in _UNTOUCHED:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_text(child):
                if isinstance(child, ast.expr | ast.stmt | ast.comprehension):
                    yield node, field, index, child
                yield from _places(child)


def _orders(body: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """A list of statements with one of them dropped, or two neighbours exchanged."""
    for index, one in enumerate(body):
        if not isinstance(one, ast.stmt) or isinstance(one, _FIXED) or _is_text(one):
            continue
        yield "statement dropped", [*body[:index], *body[index + 1 :]] or [ast.Pass()]
        if index + 1 < len(body) and _depend(one, body[index + 1]):
            yield "statements exchanged", [*body[:index], body[index + 1], one, *body[index + 2 :]]


def _depend(one: ast.stmt, other: ast.stmt) -> bool:
    """Whether it may matter which of two statements comes first."""
    if any(isinstance(each, ast.Return | ast.FunctionDef | ast.ClassDef) for each in (one, other)):
        return False
    if set(_bound(one)) & _used(other) or set(_bound(other)) & _used(one):
        return True
    steps = [
        any(isinstance(n, ast.Attribute) and n.attr in STEPS for n in ast.walk(each))
        for each in (one, other)
    ]
    return all(steps)


def _of_parent(parent: ast.AST, field: str, node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Changes that depend on where the node stands."""
    called = isinstance(parent, ast.Call) and field == "func"
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name.endswith("device") and not called:
            for device in DEVICES:
                yield "device constant", ast.Constant(device)
        case ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Load()) if name in CONFUSED and (
            called or isinstance(parent, ast.Tuple | ast.Attribute)
        ):
            other = copy.copy(node)
            setattr(other, "attr" if isinstance(node, ast.Attribute) else "id", CONFUSED[name])
            yield "other name", other
        case ast.Constant(value=str() as text) if text and isinstance(
            parent, ast.expr | ast.keyword | ast.comprehension
        ):
            yield (
                "constant",
                ast.Constant(
                    DEVICES[text.startswith("cuda")] if text.startswith(DEVICES) else f"{text}_"
                ),
            )


def _replacements(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """What a node may be replaced by; a list of statements in place of one."""
    match node:
        case ast.Constant(value=bool() as truth):
            yield "constant", ast.Constant(not truth)
        case ast.Constant(value=int() as number):
            yield "off by one", ast.Constant(number + 1)
            yield (
                "off by one",
                ast.UnaryOp(ast.USub(), ast.Constant(1))
                if not number
                else ast.Constant(number - 1),
            )
        case ast.Constant(value=float() as number):
            yield "constant", ast.Constant(number * 1.5 + 0.5)
        case ast.Compare(left=left, ops=[op], comparators=comparators):
            yield "comparison", ast.Compare(left, [OPPOSITES[type(op)]()], comparators)  # type: ignore[list-item]
        case ast.BoolOp(op=op, values=values):
            yield "and, or", ast.BoolOp(OPPOSITES[type(op)](), values)  # type: ignore[arg-type]
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield "condition dropped", rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign dropped", operand
        case ast.BinOp(left=first, op=op, right=second) if type(op) in OPPOSITES:
            yield "operator", ast.BinOp(first, OPPOSITES[type(op)](), second)  # type: ignore[arg-type]
            yield "operand dropped", first
            if isinstance(op, ast.Sub | ast.Div | ast.FloorDiv):
                yield "operands exchanged", ast.BinOp(second, op, first)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in OPPOSITES:
            yield "operator", ast.AugAssign(target, OPPOSITES[type(op)](), value)  # type: ignore[arg-type]
            yield "sum forgotten", ast.Assign([target], value)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "branch dropped", body
            yield "branch dropped", orelse
        case ast.comprehension(ifs=[_, *_]):
            yield "condition dropped", ast.comprehension(node.target, node.iter, [], node.is_async)
        case ast.Subscript(value=value, slice=ast.Slice()):
            yield "slice dropped", value
        case ast.Return(value=ast.expr() as value):
            yield "return forgotten", ast.Expr(value)
        case ast.With(body=body):
            yield "with unwrapped", body
        case ast.If(test=test, body=body, orelse=orelse):
            yield "condition negated", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield "condition dropped", body
            if orelse:
                yield "branch dropped", ast.If(test, body, [])
        case ast.Try(body=body):
            yield "try unwrapped", body
        case ast.Call():
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """A call with an argument less, with two exchanged, or of nothing: only its object is left."""
    func = node.func
    args = node.args
    keywords = node.keywords
    name = ast.unparse(func)
    if name in ("isinstance", "hasattr", "getattr"):
        if len(args) == 2 and isinstance(args[1], ast.Tuple):
            for index in range(len(args[1].elts)):
                fewer = ast.Tuple([*args[1].elts[:index], *args[1].elts[index + 1 :]], ast.Load())
                yield "type dropped", ast.Call(func, [args[0], fewer], [])
        return
    if isinstance(func, ast.Attribute) and name.partition(".")[0] not in MODULES:
        yield "call dropped", func.value
    elif len(args) == 1 and not keywords:
        yield "call dropped", args[0]
    if name == "range":
        stop = ast.BinOp(args[-1], ast.Sub(), ast.Constant(1))
        yield "off by one", ast.Call(func, [*args[:-1], stop], [])
        if len(args) == 1:
            yield "off by one", ast.Call(func, [ast.Constant(1), *args], [])
        return
    for index in range(len(args)):
        yield "argument dropped", ast.Call(func, [*args[:index], *args[index + 1 :]], keywords)
    for index in range(len(args) - 1):
        swapped = [*args[:index], args[index + 1], args[index], *args[index + 2 :]]
        yield "arguments exchanged", ast.Call(func, swapped, keywords)
    for index in range(len(keywords)):
        yield "keyword dropped", ast.Call(func, args, [*keywords[:index], *keywords[index + 1 :]])


_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    **{
        ast.Lt: ast.Gt,
        ast.Gt: ast.Lt,
        ast.LtE: ast.GtE,
        ast.GtE: ast.LtE,
        ast.Eq: ast.Eq,
        ast.NotEq: ast.NotEq,
    },
}


def rewrites(source: str, solution: str, functions: Sequence[str]) -> list[Variant]:
    """The solution in other words: each kind of rewrite, wherever the file has a place for it."""
    plain = ast.unparse(parsed(source)) + "\n"
    concerned = tuple(
        name for name in functions if any(name in _bound(one) for one in ast.parse(source).body)
    )
    found = [
        Variant(
            solution, "comments and layout", concerned, "", plain, _digest(_form(ast.parse(plain)))
        )
    ]
    for kind in REWRITES:
        tree = ast.fix_missing_locations(_Rewriter(kind).visit(ast.parse(plain)))
        if (changed := ast.unparse(tree) + "\n") != plain:
            change = difference(plain, changed)
            found.append(Variant(solution, kind, concerned, change, changed, _digest(_form(tree))))
    return found


class _Rewriter(ast.NodeTransformer):
    """Applies one kind of rewrite to every node, the innermost first."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def visit(self, node: ast.AST) -> Any:
        if isinstance(
            node, ast.FormattedValue
        ):  # its format is a JoinedStr too, and cannot be anything else
            return node
        node = self.generic_visit(node)
        if isinstance(node, ast.Module) and self.kind in _OF_FILES:
            _OF_FILES[self.kind](node)
        return next((other for kind, other in _in_other_words(node) if kind == self.kind), node)


def _in_other_words(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """The node, or the statements, that do the same, by the kind of rewrite; the node itself is not changed."""
    match node:
        case ast.FunctionDef(body=[first, *rest]):
            hinted = copy.deepcopy(node)
            bare = copy.copy(node)
            hinted.returns = hinted.returns or ast.Constant("object")
            for each in (*hinted.args.posonlyargs, *hinted.args.args, *hinted.args.kwonlyargs):
                each.annotation = each.annotation or ast.Constant("object")
            yield "type hints", hinted
            bare.body = rest if rest and _is_text(first) else node.body
            yield "docstring removed", bare
        case ast.Return(value=ast.expr() as value) if not _simple(value):
            yield (
                "temporary variable",
                [ast.Assign([_name("answer", ast.Store())], value), ast.Return(_name("answer"))],
            )
            if isinstance(value, ast.IfExp):
                yield (
                    "early return",
                    [ast.If(value.test, [ast.Return(value.body)], []), ast.Return(value.orelse)],
                )
            if loop := _as_loop("collected", value):
                yield "comprehension to loop", [*loop, ast.Return(_name("collected"))]
        case ast.If(test=test, body=body, orelse=[first, *_] as orelse):
            if isinstance(body[-1], ast.Return):
                yield "early return", [ast.If(test, body, []), *orelse]
            if not isinstance(first, ast.If):
                yield "branches exchanged", ast.If(ast.UnaryOp(ast.Not(), test), orelse, body)
        case ast.IfExp(test=test, body=one, orelse=other):
            yield "branches exchanged", ast.IfExp(ast.UnaryOp(ast.Not(), test), other, one)
        case ast.With(items=[item], body=[ast.With(items=items, body=body)]):
            yield "with statements", ast.With([item, *items], body)
        case ast.With(items=[item, *items], body=body) if items:
            yield "with statements", ast.With([item], [ast.With(items, body)])
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if isinstance(value, ast.Lambda):
                text = (
                    f"def {name}({ast.unparse(value.args)}):\n    return {ast.unparse(value.body)}"
                )
                yield "lambda to def", ast.parse(text).body
            if loop := _as_loop(name, value):
                yield "comprehension to loop", loop
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            if all(isinstance(value, ast.Constant) for value in values):
                pairs = zip(targets, values, strict=True)
                yield (
                    "tuple assignment split",
                    [ast.Assign([target], value) for target, value in pairs],
                )
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if _numeric(value):
            unfolded = ast.Assign([_name(name, ast.Store())], ast.BinOp(_name(name), op, value))
            yield "augmented assignment unfolded", unfolded
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=comparators):
            yield (
                "comparison turned round",
                ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Is()], comparators)),
            )
        case ast.Compare(left=left, ops=[comparison], comparators=[right]) if (
            type(comparison) in _TURNED
        ):
            if _simple(left):
                yield (
                    "comparison turned round",
                    ast.Compare(right, [_TURNED[type(comparison)]()], [left]),
                )
        case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
            pair = ast.Tuple([_name("number_", ast.Store()), target], ast.Store())
            yield (
                "loop with enumerate",
                ast.For(pair, ast.Call(_name("enumerate"), [iterated], []), body, orelse),
            )
        case ast.Call(func=func, args=args, keywords=[_, _, *_] as keywords):
            if all(each.arg and _simple(each.value) for each in keywords):
                yield "order of keywords", ast.Call(func, args, keywords[::-1])
        case ast.JoinedStr(values=parts):
            fields = [part for part in parts if isinstance(part, ast.FormattedValue)]
            if all(part.conversion == -1 and part.format_spec is None for part in fields):
                plain = (
                    str(getattr(part, "value", "")).replace("{", "{{").replace("}", "}}")
                    for part in parts
                )
                text = "".join(
                    "{}" if part in fields else text
                    for part, text in zip(parts, plain, strict=True)
                )
                values = [part.value for part in fields]
                yield (
                    "f-string to format",
                    ast.Call(ast.Attribute(ast.Constant(text), "format"), values, []),
                )


def _name(name: str, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(name, context or ast.Load())


def _simple(node: ast.AST) -> bool:
    """Whether an expression can be evaluated earlier, later or twice."""
    return isinstance(node, ast.Name | ast.Constant) or (
        isinstance(node, ast.Attribute) and _simple(node.value)
    )


def _numeric(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left=left, right=right):
            return _numeric(left) and _numeric(right)
        case ast.Call(
            func=ast.Name(id="len" | "float" | "int")
            | ast.Attribute(attr="item" | "size" | "numel")
        ):
            return True
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _as_loop(name: str, value: ast.expr) -> list[ast.stmt]:
    """Statements that append to a list of this name what a comprehension collects; none where they might differ."""
    match value:
        case ast.ListComp(
            elt=elt, generators=[ast.comprehension(target=target, ifs=ifs, is_async=0) as single]
        ):
            nodes = [copy.deepcopy(node) for node in (elt, target, *ifs)]
            own = _used(target)
            for node in (each for part in nodes for each in ast.walk(part)):
                if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and node.id == name):
                    return []  # a function in it, which sees other names; or the list that was there before
                if isinstance(node, ast.Name) and node.id in own:
                    node.id = f"each_{node.id}"
            elt, target, *ifs = nodes
            append = ast.Call(ast.Attribute(_name(name), "append"), [elt], [])
            body: list[ast.stmt] = [ast.Expr(append)]
            for condition in reversed(ifs):
                body = [ast.If(condition, body, [])]
            empty = ast.Assign([_name(name, ast.Store())], ast.List([], ast.Load()))
            return (
                []
                if name in _used(single.iter)
                else [empty, ast.For(target, single.iter, body, [])]
            )
    return []


def _own_names(function: ast.AST) -> set[str]:
    """The names that only this function binds: no parameters, functions, imports, exceptions, patterns."""
    nodes = list(ast.walk(function))
    if any(
        isinstance(node, ast.Name) and node.id in ("locals", "vars", "eval", "exec", "globals")
        for node in nodes
    ):
        return set()
    stored = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in nodes:
        match node:
            case (
                ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.ExceptHandler(name=name)
                | ast.MatchAs(name=name)
            ):
                stored.discard(name or "")
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                stored -= set(names)
            case ast.alias(name=name, asname=other):
                stored.discard(other or name)
            case ast.ClassDef():
                stored -= _used(node)
    return stored


def _rename(file: ast.Module) -> None:
    for function in file.body:
        own = _own_names(function) if isinstance(function, ast.FunctionDef) else set()
        for each in ast.walk(function):
            if isinstance(each, ast.Name) and each.id in own:
                each.id = f"my_{each.id}"


def _extract(file: ast.Module) -> None:
    """Let each function call another one that does its work."""
    functions = [
        one for one in file.body if isinstance(one, ast.FunctionDef) and not one.decorator_list
    ]
    for one in functions:
        given = one.args
        helper = copy.copy(one)
        helper.name = f"_work_of_{one.name}"
        names = [each.arg for each in (*given.posonlyargs, *given.args)]
        names += [f"*{given.vararg.arg}"] if given.vararg else []
        names += [f"{each.arg}={each.arg}" for each in given.kwonlyargs]
        names += [f"**{given.kwarg.arg}"] if given.kwarg else []
        call = ast.parse(f"{helper.name}({', '.join(names)})", mode="eval").body
        one.body = [ast.Return(call)]
        file.body.insert(file.body.index(one), helper)


def _give_by_keyword(file: ast.Module) -> None:
    # A decorator may want positions: `functools.singledispatch` does.
    plain = [
        one for one in file.body if isinstance(one, ast.FunctionDef) and not one.decorator_list
    ]
    functions = {one.name: one.args for one in plain}
    bound = Counter(
        name for one in ast.walk(file) if isinstance(one, ast.stmt) for name in _bound(one)
    )
    for call in ast.walk(file):
        match call:
            case ast.Call(func=ast.Name(id=name), args=args) if (
                name in functions and bound[name] == 1
            ):
                names = functions[name]
                if (
                    not names.vararg
                    and not names.posonlyargs
                    and not any(isinstance(a, ast.Starred) for a in args)
                ):
                    pairs = zip(names.args, args, strict=False)
                    call.keywords = [
                        *(ast.keyword(each.arg, value) for each, value in pairs),
                        *call.keywords,
                    ]
                    call.args = []
            case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Name(id="device") as device]):
                call.args, call.keywords = [], [ast.keyword("device", device), *call.keywords]


_OF_FILES: Final[dict[str, Callable[[ast.Module], None]]] = {
    "local names": _rename,
    "helper function": _extract,
    "positional to keyword": _give_by_keyword,
}
REWRITES: Final = (
    *_OF_FILES,
    *(
        "type hints",
        "docstring removed",
        "temporary variable",
        "early return",
        "comprehension to loop",
    ),
    *("branches exchanged", "with statements", "lambda to def", "tuple assignment split"),
    *(
        "augmented assignment unfolded",
        "comparison turned round",
        "loop with enumerate",
        "order of keywords",
    ),
    "f-string to format",
)


def chosen(found: Iterable[Sequence[Variant]], limit: int | None) -> list[Variant]:
    """The variants of several solutions, each once; with a limit, so many, evenly from all solutions."""
    ranked = [sorted(each, key=lambda variant: variant.name) for each in found]
    order = (
        variant
        for rank in itertools.zip_longest(*ranked)
        for variant in rank
        if variant is not None
    )
    return list({variant.source: variant for variant in order}.values())[:limit]
