"""Makes rewrites of a solution by its syntax tree: the same solution in other words."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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

TURNED_ROUND: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
# Functions that see names as texts: what they are called in may not be renamed.
SEE_NAMES: Final = ("locals", "vars", "eval", "exec", "globals")


class OtherWords(NamedTuple):
    """What does the same as a node."""

    kind: str  # of rewrite: "early return"
    other: Any  # a node, or a list of statements


def make_rewrites(source: str, solution: str, functions: Sequence[str]) -> list[Variant]:
    """Return the solution in other words, each time by one kind of rewrite.

    `source` is its text, `solution` its name, and `functions` are those that students write. A kind
    is applied wherever there is a place for it; one that changes nothing is left out.
    """
    plain = ast.unparse(parse_solution(source)) + "\n"
    defined = set()
    for statement in ast.parse(source).body:
        defined.update(names_bound_by(statement))
    concerned = tuple(name for name in functions if name in defined)
    digest = digest_of(text_of_tree(ast.parse(plain)))
    variants = [Variant(solution, "comments and layout", concerned, "", plain, digest)]
    for kind in KINDS:
        tree = ast.fix_missing_locations(_Rewriter(kind).visit(ast.parse(plain)))
        changed = ast.unparse(tree) + "\n"
        if changed != plain:
            diff = changed_lines(plain, changed)
            digest = digest_of(text_of_tree(tree))
            variants.append(Variant(solution, kind, concerned, diff, changed, digest))
    return variants


class _Rewriter(ast.NodeTransformer):
    """Applies one kind of rewrite to every node, the innermost first."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def visit(self, node: ast.AST) -> Any:
        """Return the node rewritten, or as it is where this kind does not fit."""
        if isinstance(node, ast.FormattedValue):
            return node  # its format is a JoinedStr too, and cannot be anything else
        node = self.generic_visit(node)
        if isinstance(node, ast.Module) and self.kind in WHOLE_FILE:
            WHOLE_FILE[self.kind](node)
        for words in _other_words(node):
            if words.kind == self.kind:
                return words.other
        return node


def _other_words(node: ast.AST) -> Iterator[OtherWords]:
    """Yield what does the same as a node, for every kind of rewrite that fits.

    The node itself is not changed.
    """
    match node:
        case ast.FunctionDef():
            yield from _other_functions(node)
        case ast.stmt():
            yield from _other_statements(node)
        case ast.IfExp(test=test, body=one, orelse=other):
            negated = ast.UnaryOp(ast.Not(), test)
            yield OtherWords("branches exchanged", ast.IfExp(negated, other, one))
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield from _other_comparisons(left, operator, right)
        case ast.Call(keywords=[_, _, *_] as keywords):
            if all(keyword.arg and _can_move(keyword.value) for keyword in keywords):
                call = ast.Call(node.func, node.args, keywords[::-1])
                yield OtherWords("order of keywords", call)
        case ast.JoinedStr():
            yield from _other_texts(node)


def _other_statements(statement: ast.stmt) -> Iterator[OtherWords]:
    """Yield what does the same as a statement other than a definition."""
    match statement:
        case ast.Return(value=ast.expr() as value) if not _can_move(value):
            yield from _other_returns(value)
        case ast.If(orelse=[_, *_]):
            yield from _other_branches(statement)
        case ast.With(items=[item], body=[ast.With(items=inner_items, body=body)]):
            yield OtherWords("with statements", ast.With([item, *inner_items], body))
        case ast.With(items=[item, *others], body=body) if others:
            inner = ast.With(others, body)
            yield OtherWords("with statements", ast.With([item], [inner]))
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield from _other_assignments(name, value)
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            if all(isinstance(value, ast.Constant) for value in values):
                split = []
                for target, value in zip(targets, values, strict=True):
                    split.append(ast.Assign([target], value))
                yield OtherWords("tuple assignment split", split)
        case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value):
            if _is_number(value):
                total = ast.BinOp(_name_node(name), operator, value)
                assignment = ast.Assign([_name_to_bind(name)], total)
                yield OtherWords("augmented assignment unfolded", assignment)
        case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
            pair = ast.Tuple([_name_to_bind("number_"), target], ast.Store())
            numbered = ast.Call(_name_node("enumerate"), [iterated], [])
            yield OtherWords("loop with enumerate", ast.For(pair, numbered, body, orelse))


def _other_functions(function: ast.FunctionDef) -> Iterator[OtherWords]:
    """Yield a function with type hints, and without its docstring."""
    hinted = copy.deepcopy(function)
    hinted.returns = hinted.returns or ast.Constant("object")
    arguments = hinted.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = argument.annotation or ast.Constant("object")
    yield OtherWords("type hints", hinted)
    bare = copy.copy(function)
    first, *rest = function.body
    if rest and is_text(first):
        bare.body = rest
    yield OtherWords("docstring removed", bare)


def _other_branches(statement: ast.If) -> Iterator[OtherWords]:
    """Yield an `if` with `else` as an early return, and with its branches exchanged."""
    test = statement.test
    body = statement.body
    orelse = statement.orelse
    if isinstance(body[-1], ast.Return):
        yield OtherWords("early return", [ast.If(test, body, []), *orelse])
    if not isinstance(orelse[0], ast.If):
        negated = ast.UnaryOp(ast.Not(), test)
        yield OtherWords("branches exchanged", ast.If(negated, orelse, body))


def _other_returns(value: ast.expr) -> Iterator[OtherWords]:
    """Yield a `return` with a variable, with an early return, or with a loop."""
    assignment = ast.Assign([_name_to_bind("answer")], value)
    return_answer = ast.Return(_name_node("answer"))
    yield OtherWords("temporary variable", [assignment, return_answer])
    if isinstance(value, ast.IfExp):
        first = ast.If(value.test, [ast.Return(value.body)], [])
        yield OtherWords("early return", [first, ast.Return(value.orelse)])
    loop = _loop_of_comprehension("collected", value)
    if loop:
        return_list = ast.Return(_name_node("collected"))
        yield OtherWords("comprehension to loop", [*loop, return_list])


def _other_assignments(name: str, value: ast.expr) -> Iterator[OtherWords]:
    """Yield a `def` for a lambda that gets a name, and a loop for a comprehension that does."""
    if isinstance(value, ast.Lambda):
        parameters = ast.unparse(value.args)
        result = ast.unparse(value.body)
        function = ast.parse(f"def {name}({parameters}):\n    return {result}")
        yield OtherWords("lambda to def", function.body)
    loop = _loop_of_comprehension(name, value)
    if loop:
        yield OtherWords("comprehension to loop", loop)


def _other_comparisons(
    left: ast.expr, operator: ast.cmpop, right: ast.expr
) -> Iterator[OtherWords]:
    """Yield a comparison turned round: `b > a` for `a < b`, `not a is b` for `a is not b`."""
    if isinstance(operator, ast.IsNot):
        same = ast.Compare(left, [ast.Is()], [right])
        yield OtherWords("comparison turned round", ast.UnaryOp(ast.Not(), same))
    elif type(operator) in TURNED_ROUND and _can_move(left):
        turned = TURNED_ROUND[type(operator)]()
        yield OtherWords("comparison turned round", ast.Compare(right, [turned], [left]))


def _other_texts(text: ast.JoinedStr) -> Iterator[OtherWords]:
    """Yield an f-string as a call of `format`, where it has no formats of its own."""
    template = ""
    values = []
    for part in text.values:
        if isinstance(part, ast.FormattedValue):
            if part.conversion != -1 or part.format_spec is not None:
                return
            template += "{}"
            values.append(part.value)
        elif isinstance(part, ast.Constant):
            template += str(part.value).replace("{", "{{").replace("}", "}}")
    function = ast.Attribute(ast.Constant(template), "format")
    yield OtherWords("f-string to format", ast.Call(function, values, []))


def _name_node(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _name_to_bind(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def _can_move(node: ast.AST) -> bool:
    """True if an expression can be evaluated earlier, later or twice."""
    if isinstance(node, ast.Attribute):
        return _can_move(node.value)
    return isinstance(node, ast.Name | ast.Constant)


def _is_number(node: ast.AST) -> bool:
    """True if an expression is surely a number of Python."""
    match node:
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.Call(func=ast.Name(id="len" | "float" | "int")):
            return True
        case ast.Call(func=ast.Attribute(attr="item" | "size" | "numel")):
            return True
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _loop_of_comprehension(name: str, value: ast.expr) -> list[ast.stmt]:
    """Return statements that append to a list of this name what a comprehension collects.

    There are none where they might do something else.
    """
    if not isinstance(value, ast.ListComp) or len(value.generators) > 1:
        return []
    generator = value.generators[0]
    if generator.is_async or name in names_in(generator.iter):
        return []
    # The loop's own names get others: in a comprehension they are seen nowhere else.
    copied = [copy.deepcopy(node) for node in (value.elt, generator.target, *generator.ifs)]
    own_names = names_in(generator.target)
    for part in copied:
        for node in ast.walk(part):
            if isinstance(node, ast.arg):
                return []  # a function in it, which sees other names
            if isinstance(node, ast.Name) and node.id == name:
                return []  # the list that was there before
            if isinstance(node, ast.Name) and node.id in own_names:
                node.id = f"each_{node.id}"
    new_element, target, *conditions = copied
    # The loop, built from the inside out.
    append = ast.Call(ast.Attribute(_name_node(name), "append"), [new_element], [])
    body: list[ast.stmt] = [ast.Expr(append)]
    for condition in reversed(conditions):
        body = [ast.If(condition, body, [])]
    empty_list = ast.Assign([_name_to_bind(name)], ast.List([], ast.Load()))
    return [empty_list, ast.For(target, generator.iter, body, [])]


def _names_of_its_own(function: ast.FunctionDef) -> set[str]:
    """Return the names that only this function binds.

    Parameters, functions, imports, exceptions and patterns are none of them.
    """
    nodes = list(ast.walk(function))
    names = set()
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in SEE_NAMES:
            return set()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    for node in nodes:
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name):
                names.discard(name)
            case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
                names.discard(name)
            case ast.Global(names=others) | ast.Nonlocal(names=others):
                names -= set(others)
            case ast.alias(name=name, asname=other):
                names.discard(other or name)
            case ast.ClassDef():
                names -= names_in(node)
    return names


def _rename_locals(file: ast.Module) -> None:
    """Give other names to what each function binds for itself."""
    for function in file.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        own_names = _names_of_its_own(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in own_names:
                node.id = f"my_{node.id}"


def _plain_functions(file: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions of a file without decorators, which may want what they know."""
    functions = []
    for statement in file.body:
        if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
            functions.append(statement)
    return functions


def _extract_helpers(file: ast.Module) -> None:
    """Let each function call another one that does its work."""
    for function in _plain_functions(file):
        helper = copy.copy(function)
        helper.name = f"_work_of_{function.name}"
        arguments = ", ".join(_own_arguments(function.args))
        call = ast.parse(f"{helper.name}({arguments})", mode="eval").body
        function.body = [ast.Return(call)]
        file.body.insert(file.body.index(function), helper)


def _own_arguments(parameters: ast.arguments) -> list[str]:
    """Return how a function passes on all that it was called with, an argument each."""
    arguments = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    if parameters.vararg:
        arguments.append(f"*{parameters.vararg.arg}")
    for each in parameters.kwonlyargs:
        arguments.append(f"{each.arg}={each.arg}")
    if parameters.kwarg:
        arguments.append(f"**{parameters.kwarg.arg}")
    return arguments


def _pass_by_keyword(file: ast.Module) -> None:
    """Pass arguments by keyword to the file's own functions, and the device to `to`."""
    parameters_of = {function.name: function.args for function in _plain_functions(file)}
    # A name that is bound twice may be something other than the function.
    times_bound: Counter[str] = Counter()
    for node in ast.walk(file):
        if isinstance(node, ast.stmt):
            times_bound.update(names_bound_by(node))
    for node in ast.walk(file):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in parameters_of:
                if times_bound[name] == 1:
                    _name_arguments(node, parameters_of[name])
            case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Name(id="device") as device]):
                node.args = []
                node.keywords = [ast.keyword("device", device), *node.keywords]


def _name_arguments(call: ast.Call, parameters: ast.arguments) -> None:
    """Pass a call's arguments by the names of the parameters, where all have one."""
    if parameters.vararg or parameters.posonlyargs:
        return
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return
    named = []
    for parameter, value in zip(parameters.args, call.args, strict=False):
        named.append(ast.keyword(parameter.arg, value))
    call.keywords = [*named, *call.keywords]
    call.args = []


WHOLE_FILE: Final[dict[str, Callable[[ast.Module], None]]] = {
    "local names": _rename_locals,
    "helper function": _extract_helpers,
    "positional to keyword": _pass_by_keyword,
}
KINDS: Final = (
    *WHOLE_FILE,
    "type hints",
    "docstring removed",
    "temporary variable",
    "early return",
    "comprehension to loop",
    "branches exchanged",
    "with statements",
    "lambda to def",
    "tuple assignment split",
    "augmented assignment unfolded",
    "comparison turned round",
    "loop with enumerate",
    "order of keywords",
    "f-string to format",
)
