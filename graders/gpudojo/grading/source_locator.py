"""Finds the line of a source that a failure is about, and records which lines a call executes."""

from __future__ import annotations

import _thread
import ast
import functools
import sys
import threading
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

from gpudojo.model.exercise import PLACES, Lines, pattern_key

MOST_PATTERNS: Final = 120  # of one function
DEVICES: Final = ("cuda", "mps", "cpu")
Found = Iterator[tuple[str, int]]
_OWN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BODIES = ("body", "handlers", "orelse", "finalbody", "cases")
_LEAVES = frozenset({ast.Name, ast.Constant, ast.Pass, ast.Break, ast.Continue})
_NOTHING = frozenset(
    {"ctx", "op", "ops", "id", "attr", "name", "lineno", "type_comment", "returns"}
)
_SIGNS: Final[dict[type[ast.operator], str]] = {
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Sub: "-",
    ast.Mult: "*",
}
# Methods whose result is a view of the tensor, and functions that make a tensor on the CPU unless they are told where.
_VIEWS = frozenset(
    "unbind view reshape permute transpose movedim moveaxis swapaxes squeeze unsqueeze select narrow split chunk "
    "flatten unflatten expand detach values items T mT data".split()
)
_MAKERS = frozenset(
    "tensor as_tensor from_numpy zeros ones full empty eye arange linspace rand randn randint randperm Tensor "
    "FloatTensor LongTensor".split()
)
_QUESTIONS = frozenset({"is_available", "is_built", "is_initialized", "device_count"})
_MOVERS = frozenset({"to", "cuda", "type_as"})
SHORT: Final = 12  # characters of a text that is compared
_ASKING = frozenset({ast.Compare, ast.Call})
_SILENT = frozenset(
    {ast.Name, ast.arg, ast.arguments, ast.Assign, ast.Return, ast.withitem, ast.Pass}
)
_LOOPS = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)

# ---- patterns --------------------------------------------------------------------------------------------------------


def pattern_lines(statements: Iterable[ast.stmt]) -> dict[str, int]:
    """The lines of each pattern that a function's source has, itself or in a helper that it names; of a dict, its keys.

    Patterns are, for example, `to(` for a call, `.shape` for an attribute, `.grad =` for one that is set, `"cuda"`,
    `for`, `except`, `raise`, `lambda`, `return`, `end` for an `if` or a loop with nothing after it, `leaves loop` for a
    `return` or `break` in a loop, `/`, `/ number` for the line where a fixed divisor is made, `==` between variables,
    `@` for a decorator, `device =` for a parameter that gets another value, `pin_memory=` for the line where an
    argument's value is made, `flag=True`, `without flag` for a call that does not pass on a parameter, `+= f(` where
    the result of a call is added, `unused no_grad(`, `unused /` and `eval not called` for statements without an effect,
    `in place` for one that writes into a parameter or a view of it, `made on cpu` for a new tensor without a device,
    `unused itself(` for a function that calls itself and drops the result, `number 0.5`, `numbers 0.5, 1` for a list,
    `[::-1]`.
    The second place of one is `to( 2`. The line of the condition that decides whether line 8 runs is under `guard 8`.
    """
    statements = list(statements)
    functions = {s.name: s for s in statements if isinstance(s, ast.FunctionDef)}
    nodes = {
        s.name: nodes_in(s) for s in statements if isinstance(s, ast.FunctionDef | ast.ClassDef)
    }
    devices = {name for s in statements for name in _device_names(s)}
    shown = {name: [*_shown(inside, functions, devices)] for name, inside in nodes.items()}
    found = {pattern_key(name, what): line for s in statements for name, what, line in _keys(s)}
    for name, node in functions.items():
        places: dict[str, list[int]] = {
            "return": _returns(node),
            "leaves loop": [*_leaving(node.body)][:PLACES],
        }
        for other in (name, *_helpers(name, nodes)):
            for what, line in shown[other]:
                if line not in (lines := places.setdefault(what, [])) and len(lines) < PLACES:
                    lines.append(line)
        every = (
            (what, n, line) for what, lines in places.items() for n, line in enumerate(lines, 1)
        )
        numbered = [(what if n == 1 else f"{what} {n}", line) for what, n, line in every]
        found |= {pattern_key(name, what): line for what, line in numbered[:MOST_PATTERNS]}
    for name, node in functions.items():
        if not any(_gives(each) for each in _statements(node.body)):
            found[pattern_key(name, "no return")] = node.lineno
        elif isinstance(node.body[-1], ast.If | ast.For | ast.While) and not node.body[-1].orelse:
            found[pattern_key(name, "end")] = node.body[-1].lineno
        found |= {f"guard {line}": header for line, header in _guards(node.body)}
    return found


def _keys(statement: ast.stmt) -> Iterator[tuple[str, str, int]]:
    """Of a dict that gets a name: `["key"]` is the line of each key."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(
        statement.value, ast.Dict
    ):
        return
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    found = [
        (key.value, key.lineno) for key in statement.value.keys if isinstance(key, ast.Constant)
    ]
    keys = [(key, line) for key, line in found if isinstance(key, str)]
    for target in targets:
        if isinstance(target, ast.Name):
            yield from ((target.id, f'["{key}"]', line) for key, line in keys[:MOST_PATTERNS])


def _gives(statement: ast.AST) -> bool:
    """Whether a statement gives the caller something other than None: a `return`, or a `yield` somewhere in it."""
    if isinstance(statement, ast.Return):
        return not (
            statement.value is None
            or (isinstance(statement.value, ast.Constant) and statement.value.value is None)
        )
    return isinstance(statement, ast.Expr | ast.Assign) and isinstance(
        statement.value, ast.Yield | ast.YieldFrom
    )


def _device_names(statement: ast.stmt) -> Iterator[str]:
    """The names at the top of a file that are set to a device."""
    if isinstance(statement, ast.Assign) and isinstance(
        statement.value, ast.Constant | ast.IfExp | ast.Call
    ):
        texts = {each.value for each in ast.walk(statement.value) if isinstance(each, ast.Constant)}
        if any(str(text).partition(":")[0] in DEVICES for text in texts):
            yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _helpers(name: str, nodes: dict[str, list[ast.AST]]) -> list[str]:
    """The functions and classes of the file that this one names, and those that they name."""
    found = [name]
    waiting = [name]
    while waiting:
        for each in nodes[waiting.pop()]:
            if isinstance(each, ast.Name) and each.id in nodes and each.id not in found:
                found.append(each.id)
                waiting.append(each.id)
    return found[1:]


def _shown(
    nodes: list[ast.AST], functions: Mapping[str, ast.FunctionDef], devices: Container[str]
) -> Found:
    """In the order of the source, as far as syntax goes."""
    compared = {part for node in nodes if type(node) in _ASKING for part in _compared(node)}
    keys = {key for node in nodes if type(node) is ast.Dict for key in node.keys}
    keys |= {node.slice for node in nodes if type(node) is ast.Subscript}
    names = [node for node in nodes if type(node) is ast.Name]
    made = {node.id: node.lineno for node in names if type(node.ctx) is ast.Store}
    parameters = {each.arg for each in nodes if type(each) is ast.arg}
    views = {*parameters}
    divisors: dict[str, int] = {}
    moved = set()
    for node in nodes:
        if type(node) is ast.Assign:
            targets = [
                each.id
                for target in node.targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            ]
            if _viewed(node.value) in views:
                views.update(targets)
            elif isinstance(node.value, ast.Constant):
                divisors |= dict.fromkeys(targets, node.lineno)
        elif type(node) is ast.For and _viewed(node.iter) in views:
            views |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
        elif (
            type(node) is ast.Call
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MOVERS
        ):
            moved |= {*ast.walk(node.func.value)}
    called_ones = {node.func for node in nodes if type(node) is ast.Call}
    results = {
        target: name for node in nodes if type(node) is ast.Assign for target, name in _called(node)
    }
    for name in names:
        if name.id in parameters:
            if type(name.ctx) is ast.Store:
                yield f"{name.id} =", name.lineno
        elif name.id in devices and "device" in parameters and name.id not in made:
            yield "global device", name.lineno
    if isinstance(nodes[0], ast.FunctionDef):
        yield from (("@", each.lineno) for each in nodes[0].decorator_list)
        yield from (
            (f"{each.arg}={default.value!r}", each.lineno) for each, default in _defaults(nodes[0])
        )
    for node in nodes:
        if type(node) in _SILENT:
            continue
        how = "== " if node in compared else ""
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                yield f"{called.id}(", node.lineno
                if called.id in functions:
                    yield from (
                        (f"without {name}", node.lineno)
                        for name in _left_out(node, functions[called.id])
                    )
            elif isinstance(called, ast.Attribute):
                line = called.end_lineno or called.lineno
                yield f"{called.attr}(", line
                if (
                    called.attr.endswith("_")
                    and not called.attr.endswith("__")
                    and _viewed(called.value) in views
                ):
                    yield "in place", line
                named = {each.arg for each in node.keywords}
                if (
                    called.attr in _MAKERS
                    and _root(called) == "torch"
                    and "device" not in named
                    and node not in moved
                ):
                    yield "made on cpu", node.lineno
        elif isinstance(node, ast.keyword):
            value = node.value
            yield (
                f"{node.arg}=",
                made.get(value.id, value.lineno) if isinstance(value, ast.Name) else value.lineno,
            )
            if isinstance(value, ast.Constant) and isinstance(value.value, bool):
                yield f"{node.arg}={value.value}", value.lineno
        elif isinstance(node, ast.Attribute):
            line = node.end_lineno or node.lineno
            yield f"{how}.{node.attr}", line
            if node.attr in _QUESTIONS and node not in called_ones:
                yield f"{node.attr} not called", line
            if (
                node.attr == "amp"
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "cuda"
            ):
                yield '"cuda"', line  # `torch.cuda.amp.autocast()` is for one kind of device
            if isinstance(node.ctx, ast.Store):
                yield f".{node.attr} =", line
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = node.value.partition(":")[0]
            if kind in DEVICES:
                if node not in keys:  # `there["cuda"]` looks something up
                    yield f'{how}"{kind}"', node.lineno
            elif how and len(node.value) <= SHORT:
                yield f'{how}"{node.value}"', node.lineno
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, float):
                yield f"number {node.value:.3g}", node.lineno
        elif isinstance(node, ast.List | ast.Tuple):
            values = [getattr(each, "value", None) for each in node.elts]
            floats = [f"{each:.3g}" for each in values if isinstance(each, float)]
            if values and len(floats) == len(values):
                yield f"numbers {', '.join(floats)}", node.lineno
        elif isinstance(node, ast.Slice):
            if isinstance(node.step, ast.UnaryOp):
                yield "[::-1]", node.lineno
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield "[] =", node.lineno
        elif isinstance(node, ast.Compare):
            if isinstance(node.ops[0], ast.Eq) and not isinstance(
                node.comparators[0], ast.Constant
            ):
                yield "==", node.lineno
        elif isinstance(node, _LOOPS):
            yield "for", node.lineno
        elif isinstance(node, ast.ExceptHandler):
            yield "except", node.lineno
        elif isinstance(node, ast.Continue | ast.Break):
            yield "continue", node.lineno
        elif isinstance(node, ast.Raise | ast.Lambda):
            yield type(node).__name__.lower(), node.lineno
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            if type(node.op) in _SIGNS:
                yield _SIGNS[type(node.op)], node.lineno
                divisor = node.right if isinstance(node, ast.BinOp) else node.value
                if isinstance(divisor, ast.Constant):
                    yield f"{_SIGNS[type(node.op)]} number", divisor.lineno
                elif isinstance(divisor, ast.Name) and divisor.id in divisors:
                    yield f"{_SIGNS[type(node.op)]} number", divisors[divisor.id]
            if isinstance(node, ast.AugAssign):
                if _viewed(node.target) in views:
                    yield "in place", node.lineno
                added = [
                    results[n.id]
                    for n in ast.walk(node.value)
                    if isinstance(n, ast.Name) and n.id in results
                ]
                yield from (
                    (f"+= {name}(", node.lineno) for name in (*_functions(node.value), *added)
                )
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Attribute):
                yield f"{node.value.attr} not called", node.lineno
            elif isinstance(node.value, ast.BinOp):
                yield f"unused {_SIGNS.get(type(node.value.op), 'operator')}", node.lineno
            elif isinstance(node.value, ast.Call) and isinstance(
                node.value.func, ast.Name | ast.Attribute
            ):
                yield (
                    f"unused {getattr(node.value.func, 'attr', None) or ast.unparse(node.value.func)}(",
                    node.lineno,
                )
                if getattr(node.value.func, "id", "") == getattr(nodes[0], "name", None):
                    yield "unused itself(", node.lineno
        elif isinstance(node, ast.If):
            returns = (
                part.lineno for part in _statements(node.body) if isinstance(part, ast.Return)
            )
            line = next(returns, node.body[0].lineno)
            yield from ((f"if {name}", line) for name in _names(node.test))


def _viewed(node: ast.AST) -> str | None:
    """The name of the tensor that an expression is, or is a view of: `x`, `x[:, 0]`, `x.unbind(1)`."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        if isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr in _VIEWS
        ):
            node = node.value
        else:
            return None
    return node.id


def _root(node: ast.AST) -> str | None:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _leaving(body: list[ast.stmt]) -> Iterator[int]:
    """The lines in loops that leave them."""
    for node in _statements(body):
        if isinstance(node, ast.For | ast.While):
            yield from (
                part.lineno
                for part in _statements(node.body)
                if isinstance(part, ast.Return | ast.Break)
            )


def _functions(node: ast.AST) -> Iterator[str]:
    """The functions that an expression calls by name."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return (each.id for each in calls if isinstance(each, ast.Name))


def _called(node: ast.Assign) -> Iterator[tuple[str, str]]:
    """The name that is set, and the function whose result it gets: `loss = loss_fn(outputs, targets).item()`."""
    if (function := next(_functions(node.value), None)) is not None:
        yield from (
            (target.id, function) for target in node.targets if isinstance(target, ast.Name)
        )


def _defaults(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.Constant]]:
    """The parameters whose default is True or False."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    every = [*zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True)]
    every += [
        (each, value)
        for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if value
    ]
    return [(a, v) for a, v in every if isinstance(v, ast.Constant) and isinstance(v.value, bool)]


def _left_out(call: ast.Call, callee: ast.FunctionDef) -> list[str]:
    """The parameters that a call does not pass; none where it may pass anything."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(
        each.arg is None for each in call.keywords
    ):
        return []
    positional = [each.arg for each in (*callee.args.posonlyargs, *callee.args.args)]
    given = {*positional[: len(call.args)], *(each.arg for each in call.keywords)}
    return [
        name
        for name in (*positional, *(each.arg for each in callee.args.kwonlyargs))
        if name not in given
    ]


def _guards(body: list[ast.stmt]) -> Iterator[tuple[int, int]]:
    """Each line of a statement that a condition or a loop may leave out, and the line of the innermost of these."""
    for node in _statements(body):
        if isinstance(node, ast.If | ast.For | ast.While):
            for name in ("body", "orelse"):
                for part in getattr(node, name):
                    last = part.body[0].lineno - 1 if hasattr(part, "body") else part.end_lineno
                    lines = range(
                        max(part.lineno, node.lineno + 1), max(last or 0, part.lineno) + 1
                    )
                    yield from ((line, node.lineno) for line in lines)


def _compared(node: ast.AST) -> Iterator[ast.AST]:
    """What is asked about and not used: `device.type == "cuda"` hard-codes nothing, and drops no index."""
    asks = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "startswith"
    )
    if asks or isinstance(node, ast.Compare):
        yield from ast.walk(node)


def _returns(function: ast.FunctionDef) -> list[int]:
    lines = [node.lineno for node in _statements(function.body) if isinstance(node, ast.Return)]
    if lines:
        return [*dict.fromkeys(lines)][-PLACES:]
    last: Any = function.body[-1]
    while inside := [part for name in _BODIES for part in getattr(last, name, ())]:
        last = inside[-1]
    return [last.lineno]


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


def nodes_in(top: ast.AST) -> list[ast.AST]:
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


# ---- executed lines --------------------------------------------------------------------------------------------------

_MARK: Final = "\0ran"
# Of a class that can be a constant of code, which must be hashable. A set's own `add` costs next to nothing.
RAN: Final[set[Any]] = type(
    "Lines", (set,), {"__hash__": object.__hash__, "__slots__": (), "__module__": "builtins"}
)()
RUNS: Final = 400  # of lines that are kept of one call


def compile_with_marks(tree: ast.Module, name: str) -> types.CodeType:
    """The code of a file, with marks in its functions that put into `RAN` the lines that are executed.

    A mark stands before each run of statements that are executed together, on the line of the first of them, so that
    tracebacks and debuggers see nothing of it. The tree is changed.
    """
    waiting: list[Any] = [*tree.body]
    functions = []
    while waiting:
        node = waiting.pop()
        waiting += (part for name in _BODIES for part in getattr(node, name, ()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node)
    for function in functions:
        text = isinstance(function.body[0], ast.Expr) and isinstance(
            function.body[0].value, ast.Constant
        )
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        function.body[text:] = _with_marks(function.body[text:], first=first)
    return _filled_in(compile(tree, name, "exec"))


def _with_marks(
    body: list[ast.stmt], each: bool = False, first: int | None = None
) -> list[ast.stmt]:
    """The statements with marks; `each` is for those of which any may be the last one, because errors are caught."""
    found: list[ast.stmt] = []
    lines: Any = None  # a Constant, with a tuple in it
    for statement in body:
        blocks = [part for name in _BODIES for part in getattr(statement, name, ())]
        inside = min((part.lineno for part in blocks if hasattr(part, "lineno")), default=0)
        last = (
            max(statement.lineno, inside - 1)
            if blocks
            else statement.end_lineno or statement.lineno
        )
        if lines is None:
            lines = _add_mark(found, statement, first or statement.lineno, last)
        else:
            lines.value = (lines.value[0], last)
        if blocks and not isinstance(statement, _OWN):
            caught = each or isinstance(statement, ast.Try)
            for name in ("body", "orelse", "finalbody"):
                if part := getattr(statement, name, None):
                    setattr(statement, name, _with_marks(part, caught))
            for case in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                line = case.lineno if isinstance(case, ast.ExceptHandler) else case.pattern.lineno
                if isinstance(
                    case, ast.ExceptHandler
                ):  # the `try` asks it whether it catches an error
                    _add_mark(found, statement, line, line)
                case.body = _with_marks(case.body, caught, line)
        if blocks or each:
            lines = None
            first = None
        found.append(statement)
    return found


def _add_mark(found: list[ast.stmt], before: ast.stmt, first: int, last: int) -> ast.Constant:
    """The constant of the mark that is added, which has the lines."""
    at: dict[str, Any] = {"lineno": before.lineno, "col_offset": before.col_offset}
    lines: Any = ast.Constant(0, **at)
    lines.value = (first, last)
    add = ast.Attribute(ast.Constant(_MARK, **at), "add", ast.Load(), **at)
    found.append(ast.Expr(ast.Call(add, [lines], [], **at), **at))
    return lines  # type: ignore[no-any-return]


def _filled_in(code: types.CodeType) -> types.CodeType:
    """The code with the set in the place of its name."""
    same = tuple(
        RAN
        if type(each) is str and each == _MARK
        else _filled_in(each)
        if isinstance(each, types.CodeType)
        else each
        for each in code.co_consts
    )
    return code.replace(co_consts=same)


def take_executed_lines(error_line: int | None = None) -> Lines:
    """What has been executed since the last time; where an error ended it, nothing after its line in that run."""
    every = [each for each in RAN.copy() if type(each) is tuple and len(each) == 2]
    found = [(first, last) for first, last in every if type(first) is int and type(last) is int]
    RAN.clear()
    if error_line is not None:
        found = [
            (first, min(last, error_line) if first <= error_line else last) for first, last in found
        ]
    return tuple(sorted(found)[:RUNS])


tracing: Final[
    list[Callable[[types.FrameType], None]]
] = []  # each is called for every line that a thread executes


IN_THREADS: Final = "<frozen thread>"  # the file name of the code at the bottom of their stacks


def trace_threads() -> None:
    """Have `tracing` called for the lines, outside of libraries, of all threads that are started from now on."""
    from virtual_cuda import from_library

    every = tracing
    trace = sys.settrace

    def line(frame: types.FrameType, event: str, value: Any) -> Any:
        if event == "line":
            for each in every:
                each(frame)
        return line

    def entered(frame: types.FrameType, event: str, value: Any) -> Any:
        return None if from_library(frame.f_code.co_filename) else line

    def begin() -> None:
        trace(entered)

    def run(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        begin()
        return function(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_filename=IN_THREADS)

    def traced(start: Any) -> Any:
        def started(function: Any, *rest: Any, **options: Any) -> Any:
            if not rest:  # `start_joinable_thread`
                return start(functools.partial(run, function), **options)
            return start(run, (function, *rest[0]), *rest[1:])

        return started

    for name in [name for name in vars(_thread) if name.startswith("start_")]:
        start = getattr(_thread, name)
        for owner, known in ((_thread, name), (threading, f"_{name}")):
            if getattr(owner, known, None) is start:
                setattr(owner, known, traced(start))
