"""Makes rewrites of a solution by its syntax tree: the same solution in other words."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
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
    is applied wherever there is a place for it; one that changes nothing is left out. Raises
    SyntaxError for a text that is no Python.
    """
    plain = ast.unparse(parse_solution(source)) + "\n"
    defined = set()
    for statement in ast.parse(source).body:
        defined.update(names_bound_by(statement))
    concerned = [name for name in functions if name in defined]
    tree = ast.parse(plain)
    digest = digest_of(text_of_tree(tree))
    plain_variant = Variant(solution, "comments and layout", tuple(concerned), "", plain, digest)
    variants = [plain_variant]
    for kind in KINDS:
        tree = _Rewriter(kind).visit(ast.parse(plain))
        tree = ast.fix_missing_locations(tree)
        changed = ast.unparse(tree) + "\n"
        if changed == plain:
            continue
        diff = changed_lines(plain, changed)
        digest = digest_of(text_of_tree(tree))
        variant = Variant(solution, kind, tuple(concerned), diff, changed, digest)
        variants.append(variant)
    return variants


class _Rewriter(ast.NodeTransformer):
    """Applies one kind of rewrite to every node, the innermost first.

    A tree that it visits is changed.
    """

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

    The node itself is not changed, but what is yielded may share parts with it.
    """
    match node:
        case ast.FunctionDef():
            yield _with_type_hints(node)
            yield _without_docstring(node)
        case ast.stmt():
            yield from _other_statements(node)
        case ast.IfExp(test=test, body=one, orelse=other):
            exchanged = ast.IfExp(_negation_of(test), other, one)
            yield OtherWords("branches exchanged", exchanged)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield from _other_comparisons(left, operator, right)
        case ast.Call(keywords=[_, _, *_]):
            yield from _other_calls(node)
        case ast.JoinedStr():
            yield from _other_texts(node)


def _other_statements(statement: ast.stmt) -> Iterator[OtherWords]:
    """Yield what does the same as a statement other than a definition."""
    match statement:
        case ast.Return(value=ast.expr() as value) if not _can_move(value):
            yield from _other_returns(value)
        case ast.If(orelse=[_, *_]):
            yield from _other_branches(statement)
        case ast.With():
            yield from _other_with_statements(statement)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield from _other_assignments(name, value)
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            yield from _split_assignments(targets, values)
        case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value):
            if _is_number(value):
                yield _unfolded_addition(name, operator, value)
        case ast.For():
            yield _with_enumerate(statement)


def _with_type_hints(function: ast.FunctionDef) -> OtherWords:
    """Return a function in which everything without a type hint has the hint "object"."""
    hinted = copy.deepcopy(function)
    if hinted.returns is None:
        hinted.returns = ast.Constant("object")
    parameters = hinted.args
    for each in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs):
        if each.annotation is None:
            each.annotation = ast.Constant("object")
    return OtherWords("type hints", hinted)


def _without_docstring(function: ast.FunctionDef) -> OtherWords:
    """Return a function without its docstring, which stays where it is all of the body."""
    bare = copy.copy(function)
    first, *rest = function.body
    if rest and is_text(first):
        bare.body = rest
    return OtherWords("docstring removed", bare)


def _other_calls(call: ast.Call) -> Iterator[OtherWords]:
    """Yield a call with its keywords from the last to the first, if nobody can notice it."""
    for keyword in call.keywords:
        if keyword.arg is None or not _can_move(keyword.value):
            return
    turned = ast.Call(call.func, call.args, call.keywords[::-1])
    yield OtherWords("order of keywords", turned)


def _other_branches(statement: ast.If) -> Iterator[OtherWords]:
    """Yield an `if` with `else` as an early return, and with its branches exchanged.

    There is no early return where the first branch does not end in `return`, and nothing is
    exchanged where the other begins with an `elif`.
    """
    test = statement.test
    body = statement.body
    orelse = statement.orelse
    if isinstance(body[-1], ast.Return):
        without_else = ast.If(test, body, [])
        yield OtherWords("early return", [without_else, *orelse])
    if not isinstance(orelse[0], ast.If):
        exchanged = ast.If(_negation_of(test), orelse, body)
        yield OtherWords("branches exchanged", exchanged)


def _other_with_statements(statement: ast.With) -> Iterator[OtherWords]:
    """Yield two nested `with` as one, or one with several items as two."""
    first, *others = statement.items
    match statement.body:
        case [ast.With(items=inner_items, body=body)] if not others:
            joined = ast.With([first, *inner_items], body)
            yield OtherWords("with statements", joined)
    if others:
        inner = ast.With(others, statement.body)
        outer = ast.With([first], [inner])
        yield OtherWords("with statements", outer)


def _with_enumerate(loop: ast.For) -> OtherWords:
    """Return a loop that counts its rounds, in a variable that nobody reads.

    `for batch in batches` becomes `for number_, batch in enumerate(batches)`.
    """
    counted = copy.copy(loop)
    number = ast.Name("number_", ast.Store())
    counted.target = ast.Tuple([number, loop.target], ast.Store())
    iterated = ast.unparse(loop.iter)
    counted.iter = _parse_expression(f"enumerate({iterated})")
    return OtherWords("loop with enumerate", counted)


def _unfolded_addition(name: str, operator: ast.operator, value: ast.expr) -> OtherWords:
    """Return `total = total + 1` for `total += 1`, likewise with another operator."""
    before = ast.Name(name, ast.Load())
    target = ast.Name(name, ast.Store())
    after = ast.BinOp(before, operator, value)
    assignment = ast.Assign([target], after)
    return OtherWords("augmented assignment unfolded", assignment)


def _other_returns(value: ast.expr) -> Iterator[OtherWords]:
    """Yield a `return` with a variable, with an early return, or with a loop.

    `return f(x)` becomes `answer = f(x)` and `return answer`; `return a if b else c` becomes
    `if b: return a` and `return c`.
    """
    with_variable = f"answer = {ast.unparse(value)}\nreturn answer"
    yield OtherWords("temporary variable", ast.parse(with_variable).body)
    if isinstance(value, ast.IfExp):
        test = ast.unparse(value.test)
        one = ast.unparse(value.body)
        other = ast.unparse(value.orelse)
        early_return = f"if {test}:\n    return {one}\nreturn {other}"
        yield OtherWords("early return", ast.parse(early_return).body)
    loop = _loop_of_comprehension("collected", value)
    if loop:
        return_list = ast.parse("return collected").body
        yield OtherWords("comprehension to loop", loop + return_list)


def _other_assignments(name: str, value: ast.expr) -> Iterator[OtherWords]:
    """Yield a `def` for a lambda that gets a name, and a loop for a comprehension that does.

    `f = lambda x: x + 1` becomes `def f(x): return x + 1`.
    """
    if isinstance(value, ast.Lambda):
        parameters = ast.unparse(value.args)
        result = ast.unparse(value.body)
        function = ast.parse(f"def {name}({parameters}):\n    return {result}")
        yield OtherWords("lambda to def", function.body)
    loop = _loop_of_comprehension(name, value)
    if loop:
        yield OtherWords("comprehension to loop", loop)


def _split_assignments(
    targets: Sequence[ast.expr], values: Sequence[ast.expr]
) -> Iterator[OtherWords]:
    """Yield an assignment for each target of a tuple, if all its values are constants.

    Raises ValueError if there are not as many values as targets.
    """
    split = []
    for target, value in zip(targets, values, strict=True):
        if not isinstance(value, ast.Constant):
            return
        split.append(ast.Assign([target], value))
    yield OtherWords("tuple assignment split", split)


def _other_comparisons(
    left: ast.expr, operator: ast.cmpop, right: ast.expr
) -> Iterator[OtherWords]:
    """Yield a comparison turned round: `b > a` for `a < b`, `not a is b` for `a is not b`."""
    if isinstance(operator, ast.IsNot):
        same = ast.Compare(left, [ast.Is()], [right])
        yield OtherWords("comparison turned round", _negation_of(same))
        return
    mirrored = TURNED_ROUND.get(type(operator))
    if mirrored is not None and _can_move(left):
        turned = ast.Compare(right, [mirrored()], [left])
        yield OtherWords("comparison turned round", turned)


def _other_texts(text: ast.JoinedStr) -> Iterator[OtherWords]:
    """Yield an f-string as a call of `format`, where it has no formats of its own.

    `f"epoch {number}"` becomes `"epoch {}".format(number)`; `f"{loss:.3f}"` stays.
    """
    template = ""
    values = []
    for part in text.values:
        if isinstance(part, ast.FormattedValue):
            if part.conversion != -1 or part.format_spec is not None:
                return
            template += "{}"
            values.append(part.value)
        elif isinstance(part, ast.Constant):
            literal = str(part.value)
            template += literal.replace("{", "{{").replace("}", "}}")
    function = ast.Attribute(ast.Constant(template), "format")
    call = ast.Call(function, values, [])
    yield OtherWords("f-string to format", call)


def _parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def _negation_of(test: ast.expr) -> ast.UnaryOp:
    """Return the expression `not test`."""
    return ast.UnaryOp(ast.Not(), test)


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
    if not isinstance(node, ast.Constant):
        return False
    return isinstance(node.value, int | float)


def _loop_of_comprehension(name: str, value: ast.expr) -> list[ast.stmt]:
    """Return statements that append to a list of this name what a comprehension collects.

    `[f(x) for x in y]` becomes `name = []` and `for each_x in y: name.append(f(each_x))`. There are
    no statements where they might do something else.
    """
    if not isinstance(value, ast.ListComp) or len(value.generators) > 1:
        return []
    generator = value.generators[0]
    if generator.is_async or name in names_in(generator.iter):
        return []
    copied = copy.deepcopy([value.elt, generator.target, *generator.ifs])
    for part in copied:
        if _binds_or_uses(part, name):
            return []
    # The loop's own names get others: in a comprehension they are seen nowhere else.
    own_names = names_in(generator.target)
    for part in copied:
        _rename_names(part, own_names, "each_")
    iterated = ast.unparse(generator.iter)
    element, target, *conditions = [ast.unparse(part) for part in copied]
    lines = [f"{name} = []"]
    lines.append(f"for {target} in {iterated}:")
    indent = "    "
    for condition in conditions:
        lines.append(f"{indent}if {condition}:")
        indent += "    "
    lines.append(f"{indent}{name}.append({element})")
    return ast.parse("\n".join(lines)).body


def _binds_or_uses(expression: ast.expr, name: str) -> bool:
    """True if there is a function in an expression, or this name."""
    for node in ast.walk(expression):
        if isinstance(node, ast.arg):
            return True  # a parameter of a function, which sees other names
        if isinstance(node, ast.Name) and node.id == name:
            return True  # the list that was there before
    return False


def _rename_names(tree: ast.AST, names: Collection[str], prefix: str) -> None:
    """Put this prefix before every name of a tree that is one of `names`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = f"{prefix}{node.id}"


def _names_of_its_own(function: ast.FunctionDef) -> set[str]:
    """Return the names that only this function binds.

    Parameters, functions, imports, exceptions and patterns are none of them.
    """
    names = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Name):
            continue
        if node.id in SEE_NAMES:
            return set()
        if isinstance(node.ctx, ast.Store):
            names.add(node.id)
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name):
                names.discard(name)
            case ast.ExceptHandler(name=str() as name):
                names.discard(name)
            case ast.MatchAs(name=str() as name):
                names.discard(name)
            case ast.Global(names=others) | ast.Nonlocal(names=others):
                names -= set(others)
            case ast.alias(name=name, asname=other):
                names.discard(other or name)
            case ast.ClassDef():
                names -= names_in(node)
    return names


def _rename_locals(file: ast.Module) -> None:
    """Give other names to what each function of a file binds for itself; changes the tree.

    In `total = 0; return total` it becomes `my_total`.
    """
    for function in file.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        own_names = _names_of_its_own(function)
        _rename_names(function, own_names, "my_")


def _plain_functions(file: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions of a file without decorators, which may want what they know."""
    functions = []
    for statement in file.body:
        if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
            functions.append(statement)
    return functions


def _extract_helpers(file: ast.Module) -> None:
    """Let each function of a file call another one that does its work; changes the tree.

    The body of `def f(x)` moves to `def _work_of_f(x)`, and `return _work_of_f(x)` is all that is
    left in `f`.
    """
    for function in _plain_functions(file):
        helper = copy.copy(function)
        helper.name = f"_work_of_{function.name}"
        place = file.body.index(function)
        file.body.insert(place, helper)
        arguments = ", ".join(_own_arguments(function.args))
        call = f"return {helper.name}({arguments})"
        function.body = ast.parse(call).body


def _own_arguments(parameters: ast.arguments) -> list[str]:
    """Return how a function passes on all that it was called with, an argument each.

    For `def f(x, *rest, key)` that is `x`, `*rest` and `key=key`.
    """
    arguments = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    if parameters.vararg:
        arguments.append(f"*{parameters.vararg.arg}")
    for each in parameters.kwonlyargs:
        arguments.append(f"{each.arg}={each.arg}")
    if parameters.kwarg:
        arguments.append(f"**{parameters.kwarg.arg}")
    return arguments


def _pass_by_keyword(file: ast.Module) -> None:
    """Pass arguments by keyword to the file's own functions, and the device to `to`.

    `move(batch, device)` becomes `move(batch=batch, device=device)`. Changes the tree.
    """
    parameters_of = {}
    for function in _plain_functions(file):
        # A name that is bound twice may be something other than the function.
        if _count_bindings(file, function.name) == 1:
            parameters_of[function.name] = function.args
    for node in ast.walk(file):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in parameters_of:
                _name_arguments(node, parameters_of[name])
            case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Name(id="device") as device]):
                node.args = []
                node.keywords.insert(0, ast.keyword("device", device))


def _count_bindings(file: ast.Module, name: str) -> int:
    """Return how many times a name is bound in a file, at its top level or deeper."""
    count = 0
    for node in ast.walk(file):
        if isinstance(node, ast.stmt):
            count += list(names_bound_by(node)).count(name)
    return count


def _name_arguments(call: ast.Call, parameters: ast.arguments) -> None:
    """Change a call so that it passes arguments by the names of the parameters, if all have one."""
    if parameters.vararg or parameters.posonlyargs:
        return
    for argument in call.args:
        if isinstance(argument, ast.Starred):
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
