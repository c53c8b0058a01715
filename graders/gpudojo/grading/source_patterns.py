"""Finds patterns in the source of a function, with their lines: where a mistake can be shown.

A check, a misconception or advice names patterns; `line_to_show` in `gpudojo.model.exercise`
chooses the line of one. The docstring of `pattern_lines` lists the patterns. Which syntax makes
which pattern is one method of `_PatternReader` for each kind of node; `_READERS` is their table.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

from virtual_cuda.hooks import DEVICE_TYPES

from gpudojo.model.exercise import PLACES, pattern_key

MOST_PATTERNS: Final = 120  # of one function
LONGEST_TEXT: Final = 12  # characters of a text that is compared
Patterns = Iterator[tuple[str, int]]  # each with its line
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BODIES: Final = ("body", "handlers", "orelse", "finalbody", "cases")
_SIGNS: Final[dict[type[ast.operator], str]] = {
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Sub: "-",
    ast.Mult: "*",
}
# Methods and attributes that are a view of the tensor.
_VIEWS: Final = frozenset(
    "unbind view reshape permute transpose movedim moveaxis swapaxes squeeze unsqueeze select "
    "narrow split chunk flatten unflatten expand detach values items T mT data".split()
)
# Functions that make a tensor on the CPU unless they are told where.
_MAKERS: Final = frozenset(
    "tensor as_tensor from_numpy zeros ones full empty eye arange linspace rand randn randint "
    "randperm Tensor FloatTensor LongTensor".split()
)
_MOVERS: Final = frozenset({"to", "cuda", "type_as"})
_QUESTIONS: Final = frozenset({"is_available", "is_built", "is_initialized", "device_count"})
# Nodes, and fields of nodes, that hold nothing a pattern is read from.
_LEAVES: Final = frozenset({ast.Name, ast.Constant, ast.Pass, ast.Break, ast.Continue})
_SKIPPED_FIELDS: Final = frozenset(
    {"ctx", "op", "ops", "id", "attr", "name", "lineno", "type_comment", "returns"}
)


def pattern_lines(statements: Iterable[ast.stmt]) -> dict[str, int]:
    """The line of each pattern in a file's functions and dicts, by `pattern_key`.

    A function has the patterns of its own source and of the helpers that it names; a dict that
    gets a name has its keys. Patterns are, for example, `to(` for a call, `.shape` for an
    attribute, `.grad =` for one that is set, `"cuda"`, `for`, `except`, `raise`, `lambda`,
    `return`, `end` for an `if` or a loop with nothing after it, `leaves loop` for a `return` or
    `break` in a loop, `/`, `/ number` for the line where a fixed divisor is made, `==` between
    variables, `@` for a decorator, `device =` for a parameter that gets another value,
    `pin_memory=` for the line where an argument's value is made, `flag=True`, `without flag` for a
    call that does not pass on a parameter, `+= f(` where the result of a call is added,
    `unused no_grad(`, `unused /` and `eval not called` for statements without an effect,
    `in place` for one that writes into a parameter or a view of it, `made on cpu` for a new tensor
    without a device, `unused itself(` for a function that calls itself and drops the result,
    `number 0.5`, `numbers 0.5, 1` for a list, `[::-1]`.

    The second place of one is `to( 2`. The line of the condition that decides whether line 8 runs
    is under `guard 8`.
    """
    # What is in the file: its functions, the names of devices, and dicts with their keys.
    statements = list(statements)
    functions = {each.name: each for each in statements if isinstance(each, ast.FunctionDef)}
    nodes = {}
    devices: set[str] = set()
    found: dict[str, int] = {}
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            nodes[statement.name] = nodes_in(statement)
        devices.update(_device_names(statement))
        for name, key, line in _keys_of_dict(statement):
            found[pattern_key(name, key)] = line
    # The patterns of each function and class, and then of each function with its helpers.
    patterns = {}
    for name, inside in nodes.items():
        patterns[name] = list(_PatternReader(inside, functions, devices).read())
    for name, node in functions.items():
        with_helpers = [name, *_helpers(name, nodes)]
        numbered = _numbered_places(node, [patterns[each] for each in with_helpers])
        for pattern, line in numbered[:MOST_PATTERNS]:
            found[pattern_key(name, pattern)] = line
    # How each function ends, and the conditions around its lines.
    for name, node in functions.items():
        found.update(_patterns_of_the_end(name, node))
        for line, condition in _guards(node.body):
            found[f"guard {line}"] = condition
    return found


def _numbered_places(
    function: ast.FunctionDef, patterns: Iterable[Iterable[tuple[str, int]]]
) -> list[tuple[str, int]]:
    """Each pattern with its lines, the second and later ones numbered: `to(`, `to( 2`."""
    places: dict[str, list[int]] = {
        "return": _lines_of_returns(function),
        "leaves loop": list(_lines_leaving_loops(function.body))[:PLACES],
    }
    for of_one in patterns:
        for pattern, line in of_one:
            lines = places.setdefault(pattern, [])
            if line not in lines and len(lines) < PLACES:
                lines.append(line)
    numbered = []
    for pattern, lines in places.items():
        for number, line in enumerate(lines, 1):
            numbered.append((pattern if number == 1 else f"{pattern} {number}", line))
    return numbered


def _patterns_of_the_end(name: str, function: ast.FunctionDef) -> dict[str, int]:
    """`no return` for a function that returns nothing, `end` for one that ends in an `if`."""
    if not any(_gives_a_value(each) for each in _statements_in(function.body)):
        return {pattern_key(name, "no return"): function.lineno}
    last = function.body[-1]
    if isinstance(last, ast.If | ast.For | ast.While) and not last.orelse:
        return {pattern_key(name, "end"): last.lineno}
    return {}


def _keys_of_dict(statement: ast.stmt) -> Iterator[tuple[str, str, int]]:
    """Of a dict that gets a name: the name, `["key"]` and the line of each key."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    if not isinstance(statement.value, ast.Dict):
        return
    keys = []
    for key in statement.value.keys:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            keys.append((f'["{key.value}"]', key.lineno))
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        if isinstance(target, ast.Name):
            for pattern, line in keys[:MOST_PATTERNS]:
                yield target.id, pattern, line


def _gives_a_value(statement: ast.AST) -> bool:
    """True for a `return` of something other than None, and for a `yield`."""
    if isinstance(statement, ast.Return):
        value = statement.value
        is_none = isinstance(value, ast.Constant) and value.value is None
        return value is not None and not is_none
    if not isinstance(statement, ast.Expr | ast.Assign):
        return False
    return isinstance(statement.value, ast.Yield | ast.YieldFrom)


def _device_names(statement: ast.stmt) -> Iterator[str]:
    """The names at the top of a file that are set to a device."""
    if not isinstance(statement, ast.Assign):
        return
    if not isinstance(statement.value, ast.Constant | ast.IfExp | ast.Call):
        return
    for node in ast.walk(statement.value):
        if isinstance(node, ast.Constant) and str(node.value).partition(":")[0] in DEVICE_TYPES:
            yield from _names_set(statement.targets)
            return


def _names_set(targets: Iterable[ast.expr]) -> list[str]:
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _helpers(name: str, nodes: Mapping[str, list[ast.AST]]) -> list[str]:
    """The functions and classes of the file that this one names, and those that they name."""
    found = [name]
    waiting = [name]
    while waiting:
        for each in nodes[waiting.pop()]:
            if isinstance(each, ast.Name) and each.id in nodes and each.id not in found:
                found.append(each.id)
                waiting.append(each.id)
    return found[1:]


# ---- the patterns of one function --------------------------------------------------------------


class _PatternReader:
    """Reads the patterns of one function or class, of which `nodes` are all nodes.

    `functions` are those of the file, `devices` the names at its top that are set to a device.
    """

    def __init__(
        self,
        nodes: list[ast.AST],
        functions: Mapping[str, ast.FunctionDef],
        devices: Container[str],
    ) -> None:
        self.nodes = nodes
        self.functions = functions
        self.devices = devices
        self.name = getattr(nodes[0], "name", None)
        self.parameters: set[str] = set()
        self.set_at: dict[str, int] = {}  # by name, the last line that sets it
        self.compared: set[ast.AST] = set()  # what is asked about and not used
        self.keys: set[ast.AST | None] = set()  # of dicts and of what is looked up in them
        self.called: set[ast.AST] = set()
        self.moved: set[ast.AST] = set()  # what is moved to a device
        self.results: dict[str, str] = {}  # by name, the function whose result it gets
        self.views: set[str] = set()  # names of parameters and of views of them
        self.constants: dict[str, int] = {}  # by name, the line where it gets a number or text
        self._look_around()

    def _look_around(self) -> None:
        """Collect what patterns depend on besides their own node."""
        for node in self.nodes:
            if type(node) is ast.arg:
                self.parameters.add(node.arg)
        self.views.update(self.parameters)
        for node in self.nodes:
            kind = type(node)
            if kind is ast.Name and type(node.ctx) is ast.Store:  # type: ignore[attr-defined]
                self.set_at[node.id] = node.lineno  # type: ignore[attr-defined]
            elif kind is ast.Dict:
                self.keys.update(node.keys)  # type: ignore[attr-defined]
            elif kind is ast.Subscript:
                self.keys.add(node.slice)  # type: ignore[attr-defined]
            elif kind is ast.Compare:
                self.compared.update(ast.walk(node))
            elif isinstance(node, ast.Call):
                self._look_at_call(node)
            elif isinstance(node, ast.Assign):
                self._look_at_assignment(node)
            elif isinstance(node, ast.For) and _viewed_name(node.iter) in self.views:
                self.views.update(_names_in(node.target))

    def _look_at_call(self, node: ast.Call) -> None:
        self.called.add(node.func)
        if not isinstance(node.func, ast.Attribute):
            return
        if node.func.attr == "startswith":
            # `device.type.startswith("cuda")` hard-codes nothing.
            self.compared.update(ast.walk(node))
        elif node.func.attr in _MOVERS:
            self.moved.update(ast.walk(node.func.value))

    def _look_at_assignment(self, node: ast.Assign) -> None:
        targets = [name for target in node.targets for name in _names_in(target)]
        if _viewed_name(node.value) in self.views:
            self.views.update(targets)
        elif isinstance(node.value, ast.Constant):
            self.constants.update(dict.fromkeys(targets, node.lineno))
        # `loss = loss_fn(outputs, targets).item()`
        function = next(_functions_called(node.value), None)
        if function is not None:
            self.results.update(dict.fromkeys(_names_set(node.targets), function))

    def read(self) -> Patterns:
        """All patterns with their lines, in the order of the source as far as syntax goes."""
        yield from self._of_names()
        if isinstance(self.nodes[0], ast.FunctionDef):
            yield from self._of_header(self.nodes[0])
        for node in self.nodes:
            reader = _READERS.get(type(node))
            if reader is not None:
                yield from reader(self, node)

    def _of_names(self) -> Patterns:
        """`device =` for a parameter that is set, `global device` for a device of the file."""
        for node in self.nodes:
            if not isinstance(node, ast.Name):
                continue
            if node.id in self.parameters:
                if isinstance(node.ctx, ast.Store):
                    yield f"{node.id} =", node.lineno
            elif "device" in self.parameters and self._is_global_device(node.id):
                yield "global device", node.lineno

    def _is_global_device(self, name: str) -> bool:
        return name in self.devices and name not in self.set_at

    def _of_header(self, function: ast.FunctionDef) -> Patterns:
        """`@` for decorators, and `flag=True` for parameters with such a default."""
        for decorator in function.decorator_list:
            yield "@", decorator.lineno
        for parameter, default in _boolean_defaults(function):
            yield f"{parameter.arg}={default}", parameter.lineno

    def _comparing(self, node: ast.AST) -> str:
        return "== " if node in self.compared else ""

    def _of_call(self, node: ast.Call) -> Patterns:
        function = node.func
        if isinstance(function, ast.Name):
            yield f"{function.id}(", node.lineno
            if function.id in self.functions:
                for name in _parameters_not_passed(node, self.functions[function.id]):
                    yield f"without {name}", node.lineno
        elif isinstance(function, ast.Attribute):
            line = function.end_lineno or function.lineno
            yield f"{function.attr}(", line
            in_place = function.attr.endswith("_") and not function.attr.endswith("__")
            if in_place and _viewed_name(function.value) in self.views:
                yield "in place", line
            if self._makes_on_cpu(node, function):
                yield "made on cpu", node.lineno

    def _makes_on_cpu(self, node: ast.Call, function: ast.Attribute) -> bool:
        """True for `torch.zeros(3)` and the like, without a device and not moved to one."""
        if function.attr not in _MAKERS or _first_name(function) != "torch":
            return False
        if node in self.moved:
            return False
        return all(keyword.arg != "device" for keyword in node.keywords)

    def _of_keyword(self, node: ast.keyword) -> Patterns:
        value = node.value
        line = value.lineno
        if isinstance(value, ast.Name):
            line = self.set_at.get(value.id, line)
        yield f"{node.arg}=", line
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            yield f"{node.arg}={value.value}", value.lineno

    def _of_attribute(self, node: ast.Attribute) -> Patterns:
        line = node.end_lineno or node.lineno
        yield f"{self._comparing(node)}.{node.attr}", line
        if node.attr in _QUESTIONS and node not in self.called:
            yield f"{node.attr} not called", line
        of_cuda = isinstance(node.value, ast.Attribute) and node.value.attr == "cuda"
        if node.attr == "amp" and of_cuda:
            yield '"cuda"', line  # `torch.cuda.amp.autocast()` is for one kind of device
        if isinstance(node.ctx, ast.Store):
            yield f".{node.attr} =", line

    def _of_constant(self, node: ast.Constant) -> Patterns:
        value = node.value
        if isinstance(value, float):
            yield f"number {value:.3g}", node.lineno
        if not isinstance(value, str):
            return
        comparing = self._comparing(node)
        kind = value.partition(":")[0]
        if kind in DEVICE_TYPES:
            if node not in self.keys:  # `there["cuda"]` looks something up
                yield f'{comparing}"{kind}"', node.lineno
        elif comparing and len(value) <= LONGEST_TEXT:
            yield f'{comparing}"{value}"', node.lineno

    def _of_list(self, node: ast.List | ast.Tuple) -> Patterns:
        floats = []
        for item in node.elts:
            value = getattr(item, "value", None)
            if not isinstance(value, float):
                return
            floats.append(f"{value:.3g}")
        if floats:
            yield f"numbers {', '.join(floats)}", node.lineno

    def _of_slice(self, node: ast.Slice) -> Patterns:
        if isinstance(node.step, ast.UnaryOp):
            yield "[::-1]", node.lineno

    def _of_subscript(self, node: ast.Subscript) -> Patterns:
        if isinstance(node.ctx, ast.Store):
            yield "[] =", node.lineno

    def _of_comparison(self, node: ast.Compare) -> Patterns:
        with_constant = isinstance(node.comparators[0], ast.Constant)
        if isinstance(node.ops[0], ast.Eq) and not with_constant:
            yield "==", node.lineno

    def _of_operator(self, node: ast.BinOp | ast.AugAssign) -> Patterns:
        sign = _SIGNS.get(type(node.op))
        if sign is None:
            return
        yield sign, node.lineno
        divisor = node.right if isinstance(node, ast.BinOp) else node.value
        if isinstance(divisor, ast.Constant):
            yield f"{sign} number", divisor.lineno
        elif isinstance(divisor, ast.Name) and divisor.id in self.constants:
            yield f"{sign} number", self.constants[divisor.id]

    def _of_augmented(self, node: ast.AugAssign) -> Patterns:
        yield from self._of_operator(node)
        if _viewed_name(node.target) in self.views:
            yield "in place", node.lineno
        for name in _functions_called(node.value):
            yield f"+= {name}(", node.lineno
        for name in _names_in(node.value):
            if name in self.results:
                yield f"+= {self.results[name]}(", node.lineno

    def _of_expression(self, node: ast.Expr) -> Patterns:
        """A statement that is an expression: what it gives is not used."""
        value = node.value
        if isinstance(value, ast.Attribute):
            yield f"{value.attr} not called", node.lineno
        elif isinstance(value, ast.BinOp):
            yield f"unused {_SIGNS.get(type(value.op), 'operator')}", node.lineno
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            yield f"unused {value.func.id}(", node.lineno
            if value.func.id == self.name:
                yield "unused itself(", node.lineno
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            yield f"unused {value.func.attr}(", node.lineno

    def _of_if(self, node: ast.If) -> Patterns:
        """`if name` for each name in the condition: the first `return` in it, or its first line."""
        line = node.body[0].lineno
        for part in _statements_in(node.body):
            if isinstance(part, ast.Return):
                line = part.lineno
                break
        for name in _words_in(node.test):
            yield f"if {name}", line


def _at_its_line(pattern: str) -> Callable[[_PatternReader, Any], Patterns]:
    """A reader of nodes that are a pattern by themselves."""

    def read(reader: _PatternReader, node: Any) -> Patterns:
        yield pattern, node.lineno

    return read


# How the patterns of each kind of node are read. Kinds that are not here have none.
_READERS: Final[dict[type[ast.AST], Callable[[_PatternReader, Any], Patterns]]] = {
    ast.Call: _PatternReader._of_call,
    ast.keyword: _PatternReader._of_keyword,
    ast.Attribute: _PatternReader._of_attribute,
    ast.Constant: _PatternReader._of_constant,
    ast.List: _PatternReader._of_list,
    ast.Tuple: _PatternReader._of_list,
    ast.Slice: _PatternReader._of_slice,
    ast.Subscript: _PatternReader._of_subscript,
    ast.Compare: _PatternReader._of_comparison,
    ast.BinOp: _PatternReader._of_operator,
    ast.AugAssign: _PatternReader._of_augmented,
    ast.Expr: _PatternReader._of_expression,
    ast.If: _PatternReader._of_if,
    ast.For: _at_its_line("for"),
    ast.AsyncFor: _at_its_line("for"),
    ast.While: _at_its_line("for"),
    ast.ListComp: _at_its_line("for"),
    ast.SetComp: _at_its_line("for"),
    ast.DictComp: _at_its_line("for"),
    ast.GeneratorExp: _at_its_line("for"),
    ast.ExceptHandler: _at_its_line("except"),
    ast.Continue: _at_its_line("continue"),
    ast.Break: _at_its_line("continue"),
    ast.Raise: _at_its_line("raise"),
    ast.Lambda: _at_its_line("lambda"),
}


# ---- questions about nodes ---------------------------------------------------------------------


def _viewed_name(node: ast.AST) -> str | None:
    """The name of the tensor that an expression is, or is a view of. Otherwise None.

    `x`, `x[:, 0]` and `x.unbind(1)` are all about `x`.
    """
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


def _first_name(node: ast.AST) -> str | None:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _names_in(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def _words_in(test: ast.expr) -> Iterator[str]:
    """The names, attributes and texts in a condition."""
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _functions_called(node: ast.AST) -> Iterator[str]:
    """The functions that an expression calls by name."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
            yield each.func.id


def _boolean_defaults(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, bool]]:
    """The parameters whose default is True or False, with it."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    parameters = [*with_default, *arguments.kwonlyargs]
    defaults = [*arguments.defaults, *arguments.kw_defaults]
    for parameter, default in zip(parameters, defaults, strict=True):
        if isinstance(default, ast.Constant) and isinstance(default.value, bool):
            yield parameter, default.value


def _parameters_not_passed(call: ast.Call, callee: ast.FunctionDef) -> list[str]:
    """The parameters that a call does not pass. There are none where it may pass anything."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return []
    if any(keyword.arg is None for keyword in call.keywords):
        return []
    positional = [each.arg for each in (*callee.args.posonlyargs, *callee.args.args)]
    passed = {*positional[: len(call.args)], *(keyword.arg for keyword in call.keywords)}
    names = [*positional, *(each.arg for each in callee.args.kwonlyargs)]
    return [name for name in names if name not in passed]


def _lines_of_returns(function: ast.FunctionDef) -> list[int]:
    """The lines of the last `return`s. Without any, the line of the last statement."""
    lines: list[int] = []
    for node in _statements_in(function.body):
        if isinstance(node, ast.Return) and node.lineno not in lines:
            lines.append(node.lineno)
    if lines:
        return lines[-PLACES:]
    last: Any = function.body[-1]
    inside = _parts_of(last)
    while inside:
        last = inside[-1]
        inside = _parts_of(last)
    return [last.lineno]


def _lines_leaving_loops(body: list[ast.stmt]) -> Iterator[int]:
    """The lines in loops that leave them, by `return` or `break`."""
    for node in _statements_in(body):
        if isinstance(node, ast.For | ast.While):
            for part in _statements_in(node.body):
                if isinstance(part, ast.Return | ast.Break):
                    yield part.lineno


def _guards(body: list[ast.stmt]) -> Iterator[tuple[int, int]]:
    """Each line that a condition or a loop may leave out, and the line of the innermost of these.

    Of a statement that has statements inside, only the lines before those.
    """
    for node in _statements_in(body):
        if not isinstance(node, ast.If | ast.For | ast.While):
            continue
        for part in (*node.body, *node.orelse):
            inside = getattr(part, "body", None)
            last = inside[0].lineno - 1 if inside else part.end_lineno or 0
            first = max(part.lineno, node.lineno + 1)
            for line in range(first, max(last, part.lineno) + 1):
                yield line, node.lineno


def _parts_of(statement: ast.AST) -> list[Any]:
    """The statements, handlers and cases inside a statement."""
    return [part for name in _BODIES for part in getattr(statement, name, ())]


def _statements_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Statements and those inside them, in order; not those of a function or class among them."""
    waiting: list[ast.AST] = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += reversed(_parts_of(node))


def nodes_in(top: ast.AST) -> list[ast.AST]:
    """Every node of a source that a pattern may be read from, in order.

    Every file of a class is read here: nodes that hold nothing else are not opened, and operators
    and contexts, half of all nodes, are left out.
    """
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [top]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if type(node) in _LEAVES:
            continue
        inside: list[ast.AST] = []
        for name in node._fields:
            if name in _SKIPPED_FIELDS:
                continue
            value = getattr(node, name, None)
            if type(value) is list:
                inside += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST):
                inside.append(value)
        inside.reverse()
        waiting += inside
    return found
