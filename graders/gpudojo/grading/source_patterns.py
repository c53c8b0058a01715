"""Finds patterns in the source of a function, with their lines: where a mistake can be shown.

A check, a misconception or advice names patterns; `line_to_show` in `gpudojo.model.exercise`
chooses the line of one. The patterns are:

    to(              a call of a function or method; `run(` is one of `checkpoint(`, too, after
                     `run = torch.utils.checkpoint.checkpoint`, an import `as run`, or `partial`
    without flag     a call that does not pass on a parameter of a function of the file
    max over 0       a call with a fixed dimension
    pin_memory=      an argument, at the line where its value is made; also `x["pin_memory"] = …`
    flag=True        an argument or a default
    .shape           an attribute; `== .shape` is one that is only asked about, `[] .shape` one by
                     which something is looked up
    device of type   a device that is made of the type of another
    .grad =          an attribute that is set
    [] =             an item that is set
    [0]              an item that is read from a fixed place
    [index]          what is looked up by an index, at the line where that index is made; where it
                     is a parameter, the line where that is made in which is looked up
    set(             a call, as any other, or a set in braces
    device =         a parameter that gets another value
    from device      a name that gets what is computed of a parameter
    global device    a device of the file, in a function that is given one
    "cuda"           a text that names a type of device
    == "mean"        a text, or an attribute, in a comparison
    ==               a comparison of variables; likewise `!=`, `<=` and `>=`
    number 0.5       a float
    numbers 0.5, 1   a list of floats
    [::-1]           a slice with a negative step; `[-n:]` is one that begins at its end
    item =           the variable of a loop that gets another value in it
    /                an operator
    / number         a fixed divisor, at the line where it is made
    changed f(       the result of a call that is combined with something before `backward()`
    += f(            the result of a call that is added to something
    in place         a statement that writes into a parameter or a view of it
    zeroed gradients a statement that zeroes gradients, or sets them to None
    made on cpu      a new tensor without a device
    if name          what a condition with this name decides on
    for              a loop or a comprehension; likewise `continue` (or `break`), `except`,
                     `raise`, `lambda`, `yield`
    except any       a handler of every error, or of RuntimeError, that does not raise again
    @                a decorator
    unused f(        a call whose result is dropped; likewise `unused /`
    unused result    a call of a tensor's method, such as `div`, whose result is dropped
    max values       the largest values taken, where `max` or `topk` also gives their indices
    unused moved     a copy of `x.to(…)` that is dropped, where x is no module: it is not called,
                     and no method that only modules have, such as `train`, is called on it
    unused itself(   a function that calls itself and drops the result
    eval not called  a method that is named and not called
    return           a `return`; without any, the last statement
    return itself    a `return` that gives a parameter as it is
    generator        a comprehension in parentheses that is returned or gets a name
    no return        a function that returns nothing, at its first line
    end              an `if` or a loop that ends a function
    leaves loop      a `return` or `break` in a loop
    "key":           a key of a dict in a function, at the line where its value is made: of a call
                     of a helper of the file, its `return`; also `x["key"] = …` and `dict(key=…)`
    value 0          a number or text that is returned, or chosen by `x if y else 0`
    argmin of        what `argmin` is taken of, at the line where it is made; also `argmax of` and
                     `min of`
    ["key"]          a key of a dict at the top of the file

Which syntax makes which pattern is one method of `_PatternReader` for each kind of node; `_READERS`
is their table.
"""

from __future__ import annotations

import ast
import builtins
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from queue import Queue
from typing import Any, Final

from virtual_cuda.hooks import DEVICE_TYPES

from gpudojo.grading.lazy_torch import torch
from gpudojo.grading.returned_values import keys_of_returns
from gpudojo.grading.syntax import (
    asked_name,
    boolean_defaults,
    called_names,
    first_name,
    gives_value,
    guarded_lines,
    lines_leaving_loops,
    lines_of_returns,
    missing_parameters,
    names_among,
    names_in,
    nodes_in,
    single_assignments,
    statements_in,
    viewed_name,
    words_in,
    zeroes_gradients,
)
from gpudojo.model.exercise import PLACES, pattern_key

MOST_PATTERNS: Final = 120  # of one function
LONGEST_TEXT: Final = 12  # characters of a text that is compared
Patterns = Iterator[tuple[str, int]]  # each with its line
_SIGNS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Sub: "-",
    ast.Mult: "*",
}
_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.LtE: "<=",
    ast.GtE: ">=",
}
# Functions that make a tensor on the CPU unless they are told where.
_MAKERS: Final = frozenset(
    "tensor as_tensor from_numpy zeros ones full empty eye arange linspace rand randn randint "
    "randperm Tensor FloatTensor LongTensor".split()
)
_MOVERS: Final = frozenset({"to", "cuda", "type_as"})
# Methods that a module has and a tensor lacks.
_METHODS_OF_MODULES: Final = frozenset(
    {
        "buffers",
        "children",
        "eval",
        "forward",
        "load_state_dict",
        "modules",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "state_dict",
        "train",
        "zero_grad",
    }
)
# Classes of errors that torch raises about devices, shapes and graphs, or that include them.
_WIDE_ERRORS: Final = frozenset({"BaseException", "Exception", "RuntimeError"})
_REDUCTIONS: Final = frozenset({"argmax", "argsort", "max", "sort", "sum", "topk"})
_FILLING: Final = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
_CHOOSING: Final = frozenset({"argmax", "argmin", "min"})
_LOOKUPS: Final = frozenset({"index_select", "gather", "take", "take_along_dim"})
_CONTAINERS: Final = (dict, list, set, str, deque, Queue)
_QUESTIONS: Final = frozenset({"is_available", "is_built", "is_initialized", "device_count"})


def pattern_lines(statements: Iterable[ast.stmt]) -> dict[str, int]:
    """The line of each pattern in a file's functions and dicts, by `pattern_key`.

    The docstring of the module lists the patterns. A function has those of its own source and of
    the helpers that it names; a dict that gets a name has its keys.

    The second place of a pattern is `to( 2`. The line of the condition that decides whether line 8
    runs is under `guard 8`; if that is a loop, it is under `loop` and its number, too. Where the
    condition in line 8 is a variable that is set once, by a comparison or a call, that line is
    under `asked 8`. Each `return`
    is under `returns` and its number. There are also the keys of
    `gpudojo.grading.returned_values`.
    """
    # What is in the file: its functions, the names of devices, and dicts with their keys.
    functions: dict[str, ast.FunctionDef] = {}
    nodes: dict[str, list[ast.AST]] = {}  # of each function and class
    devices: set[str] = set()
    aliases: dict[str, str] = {}
    found: dict[str, int] = {}
    for statement in statements:
        aliases.update(_aliases_in(statement))
        match statement:
            case ast.FunctionDef(name=name):
                functions[name] = statement
                nodes[name] = nodes_in(statement)
            case ast.ClassDef(name=name):
                nodes[name] = nodes_in(statement)
            case ast.Assign(targets=targets, value=value) if _names_a_device(value):
                devices.update(names_among(targets))
        for name, key, line in _keys_of_dict(statement):
            found[pattern_key(name, key)] = line
    # The patterns of each function and class, and then of each function with its helpers.
    patterns = {}
    for name, inside in nodes.items():
        reader = _PatternReader(inside, functions, devices, aliases)
        patterns[name] = list(reader.read_patterns())
    for name, node in functions.items():
        with_helpers = list(patterns[name])
        for helper in _helpers_of(name, nodes):
            with_helpers += patterns[helper]
        numbered = _numbered_places(node, with_helpers)
        for pattern, line in numbered[:MOST_PATTERNS]:
            found[pattern_key(name, pattern)] = line
    # How each function ends, and the conditions around its lines.
    for name, node in functions.items():
        found.update(_patterns_of_the_end(name, node))
        for line, condition in guarded_lines(node.body):
            found[f"guard {line}"] = condition
        found.update(keys_of_returns(node))
        found.update(_keys_of_statements(node))
    return found


_ANSWERS: Final = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call)  # to a question


def _keys_of_statements(function: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """Yield the keys `loop`, `asked` and `returns` of a function's statements, with their lines.

    Those of functions inside are among them.
    """
    assigned = single_assignments(function)
    for node in ast.walk(function):
        match node:
            case ast.For() | ast.While():
                yield f"loop {node.lineno}", node.lineno
            case ast.Return():
                yield f"returns {node.lineno}", node.lineno
            case ast.If(test=test):
                name = asked_name(test)
                if name in assigned and isinstance(assigned[name].value, _ANSWERS):
                    yield f"asked {node.lineno}", assigned[name].lineno


def _aliases_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that a statement gives to functions which have another name, with that name.

    The name is "" where it gives something that has none.
    `run = torch.utils.checkpoint.checkpoint`, `from torch import zeros as nothing` and
    `run = partial(checkpoint, use_reentrant=False)` are such statements.
    """
    match node:
        case ast.ImportFrom(names=names):
            for imported in names:
                if imported.asname:
                    yield imported.asname, imported.name
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=ast.Name("partial") | ast.Attribute(attr="partial"), args=[of, *_]),
        ):
            yield name, _last_name(of)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, _last_name(value)


def _last_name(value: ast.expr) -> str:
    """`checkpoint` of `torch.utils.checkpoint.checkpoint` and of `checkpoint`; else ""."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _numbered_places(
    function: ast.FunctionDef, patterns: Iterable[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Each pattern with its line, the second and later places numbered: `to(`, `to( 2`.

    `patterns` are those of the function itself and of each helper, in this order. There are at most
    PLACES of each. `return` and `leaves loop` are added.
    """
    lines_leaving = list(lines_leaving_loops(function.body))
    places: dict[str, list[int]] = {
        "return": lines_of_returns(function)[-PLACES:],
        "leaves loop": lines_leaving[:PLACES],
    }
    for pattern, line in patterns:
        lines = places.setdefault(pattern, [])
        if line not in lines and len(lines) < PLACES:
            lines.append(line)
    numbered = []
    for pattern, lines in places.items():
        for number, line in enumerate(lines, 1):
            key = f"{pattern} {number}"
            if number == 1:
                key = pattern
            numbered.append((key, line))
    return numbered


def _patterns_of_the_end(name: str, function: ast.FunctionDef) -> dict[str, int]:
    """`no return` for a function that returns nothing, `end` for one that ends in an `if`.

    Each with its line, by `pattern_key`; there is one at most.
    """
    statements = statements_in(function.body)
    if not any(map(gives_value, statements)):
        no_return = pattern_key(name, "no return")
        return {no_return: function.lineno}
    last = function.body[-1]
    if isinstance(last, ast.If | ast.For | ast.While) and not last.orelse:
        end = pattern_key(name, "end")
        return {end: last.lineno}
    return {}


def _keys_of_dict(statement: ast.stmt) -> Iterator[tuple[str, str, int]]:
    """Of a dict that gets a name, yield the name, `["key"]` and the line of each key."""
    match statement:
        case ast.Assign(targets=targets, value=ast.Dict(keys=keys)):
            names = names_among(targets)
        case ast.AnnAssign(target=target, value=ast.Dict(keys=keys)):
            names = names_among([target])
        case _:
            return
    patterns = []
    for key in keys:
        match key:
            case ast.Constant(value=str(text)):
                pattern = f'["{text}"]'
                patterns.append((pattern, key.lineno))
    for name in names:
        for pattern, line in patterns[:MOST_PATTERNS]:
            yield name, pattern, line


def _names_a_device(value: ast.expr) -> bool:
    """True for `"cuda"`, and for a choice or a call with such a text in it."""
    if not isinstance(value, ast.Constant | ast.IfExp | ast.Call):
        return False
    for node in ast.walk(value):
        match node:
            case ast.Constant(value=str(text)) if _type_of_device(text) in DEVICE_TYPES:
                return True
    return False


def _type_of_device(text: str) -> str:
    """`cuda` of `cuda:0`. Of any other text, what is before its first colon."""
    return text.partition(":")[0]


def _helpers_of(name: str, nodes: Mapping[str, list[ast.AST]]) -> list[str]:
    """The functions and classes of the file that this one names, and those that they name.

    `nodes` has the nodes of each function and class of the file, by name. The function itself is
    left out.
    """
    found = [name]
    waiting = [name]
    while waiting:
        user = waiting.pop()
        for mentioned in names_among(nodes[user]):
            if mentioned in nodes and mentioned not in found:
                found.append(mentioned)
                waiting.append(mentioned)
    return found[1:]


class _Surroundings:
    """What the patterns of one function or class depend on besides their own node.

    `nodes` are all nodes of the function.
    """

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        """Look at each node of one function, its parameters first.

        What is found is put into the attributes.
        """
        self.top = nodes[0]
        self.parameters: set[str] = set()
        self.views: set[str] = set()  # names of parameters and of views of them
        self.set_at: dict[str, int] = {}  # by name, the last line that sets it
        self.assigned: dict[str, list[ast.expr]] = {}  # by name, what assignments give it
        self.constants: dict[str, ast.Constant] = {}  # by name, a number or text that it gets
        self.aliases: dict[str, str] = {}  # by name, the function that it stands for
        # By name, what functions and lambdas inside may return
        self.results_of_inner: dict[str, list[ast.expr]] = {}
        self.results: dict[str, str] = {}  # by name, the function whose result it gets
        self.types: set[str] = set()  # names that get the type of a device
        self.compared: set[ast.AST] = set()  # what is asked about and not used
        self.keys: set[ast.AST | None] = set()  # of dicts and of what is looked up in them
        self.called: set[ast.AST] = set()
        self.backward: set[str] = set()  # names whose `backward()` is called
        self.moved: set[ast.AST] = set()  # what is moved to a device
        self.filled: set[str] = set()  # names of containers that get items one by one
        for node in nodes:
            if isinstance(node, ast.arg):
                self.parameters.add(node.arg)
        self.views |= self.parameters
        for node in nodes:
            self._look_at(node)

    def _look_at(self, node: ast.AST) -> None:
        """Note what one node tells about others, in the sets and dicts of this object."""
        self.aliases.update(_aliases_in(node))
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                self.set_at[name] = node.lineno
            case ast.Dict(keys=keys):
                self.keys.update(keys)
            case ast.Subscript(slice=key):
                self.keys.add(key)
                if not isinstance(node.ctx, ast.Load):
                    self.filled.update(names_among([node.value]))
            case ast.Compare():
                self.compared.update(ast.walk(node))
            case ast.Match(subject=subject):
                self.compared.update(ast.walk(subject))
            case ast.Call():
                self._look_at_call(node)
            case ast.Assign():
                self._look_at_assignment(node)
            case ast.FunctionDef(name=name) if node is not self.top:
                self.results_of_inner[name] = _values_returned(node)
            case ast.For() if viewed_name(node.iter) in self.views:
                self.views.update(names_in(node.target))

    def _look_at_call(self, node: ast.Call) -> None:
        """Note what is called, what `startswith` asks about, and what is moved to a device."""
        self.called.add(node.func)
        match node.func:
            case ast.Attribute(attr="startswith"):
                # `device.type.startswith("cuda")` hard-codes nothing.
                self.compared.update(ast.walk(node))
            case ast.Attribute(attr="get") if node.args:
                # `there.get(device.type)` only looks something up.
                self.compared.update(ast.walk(node.args[0]))
            case ast.Attribute(value=value, attr=method) if method in _MOVERS:
                self.moved.update(ast.walk(value))
            case ast.Attribute(value=ast.Name(id=name), attr="backward"):
                self.backward.add(name)
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in _FILLING:
                self.filled.add(name)

    def _look_at_assignment(self, node: ast.Assign) -> None:
        """Note names that become views, constants or results of calls."""
        names: list[str] = []
        for target in node.targets:
            names += names_in(target)
            for name, given in _values_given(target, node.value):
                self.assigned.setdefault(name, []).append(given)
        value = node.value
        if isinstance(value, ast.Lambda):
            for name in names:
                self.results_of_inner[name] = [value.body]
        if viewed_name(value) in self.views:
            self.views.update(names)
        elif isinstance(value, ast.Attribute) and value.attr == "type":
            self.types.update(names)
        elif isinstance(value, ast.Constant):
            for name in names:
                self.constants[name] = value
        # `loss = loss_fn(outputs, targets).item()`
        for function in called_names(value):
            for name in names_among(node.targets):
                self.results[name] = function
            break  # the first one counts


class _PatternReader:
    """Reads the patterns of one function or class, of which `nodes` are all nodes.

    `functions` are those of the file, `devices` the names at its top that are set to a device.
    """

    def __init__(
        self,
        nodes: list[ast.AST],
        functions: Mapping[str, ast.FunctionDef],
        devices: Container[str],
        aliases: Mapping[str, str],
    ) -> None:
        """Look at the nodes of one function or class, before patterns are read from them.

        `functions` are those of the file, `devices` the names at its top that are set to a device,
        `aliases` those that stand for functions with another name.
        """
        self.nodes = nodes
        self.aliases = aliases
        self.functions = functions
        self.devices = devices
        self.around = _Surroundings(nodes)

    def read_patterns(self) -> Patterns:
        """Yield all patterns with their lines, in the order of the source as far as syntax goes."""
        yield from self._read_names()
        top = self.nodes[0]
        if isinstance(top, ast.FunctionDef):
            yield from self._read_header(top)
        for node in self.nodes:
            kind = type(node)
            if kind in _KEYWORDS:
                yield _KEYWORDS[kind], node.lineno  # type: ignore[attr-defined]
            elif kind in _READERS:
                yield from _READERS[kind](self, node)
            if zeroes_gradients(node):
                yield "zeroed gradients", node.lineno  # type: ignore[attr-defined]

    def _read_names(self) -> Patterns:
        """Yield `device =` for a parameter that is set, `global device` for a device of the file.

        The second only in a function that has a parameter `device`. Each has its line.
        """
        parameters = self.around.parameters
        for node in self.nodes:
            if not isinstance(node, ast.Name):
                continue
            if node.id in parameters:
                if isinstance(node.ctx, ast.Store):
                    yield f"{node.id} =", node.lineno
            elif "device" in parameters and self._is_global_device(node.id):
                yield "global device", node.lineno

    def _is_global_device(self, name: str) -> bool:
        """True for a device of the file, unless the function sets a variable of that name."""
        return name in self.devices and name not in self.around.set_at

    def _read_header(self, function: ast.FunctionDef) -> Patterns:
        """Yield `@` for decorators, and `flag=True` for parameters with such a default, with their
        lines.
        """
        for decorator in function.decorator_list:
            yield "@", decorator.lineno
        for parameter, default in boolean_defaults(function):
            yield f"{parameter.arg}={default}", parameter.lineno

    def _read_call(self, node: ast.Call) -> Patterns:
        """The patterns of a call by name or of a method; none for other calls."""
        if isinstance(node.func, ast.Name):
            yield from self._read_call_by_name(node, node.func.id)
        elif isinstance(node.func, ast.Attribute):
            yield from self._read_call_of_method(node, node.func)

    def _read_dimension(self, node: ast.Call, function: str) -> Patterns:
        """Yield `max over 0` for `max(0)`, `max(x, 0)`, `max(dim=0)` and `max(axis=0)`.

        Of the places, that is the first of a method and the second of a function. The number may be
        negative, or in a variable.
        """
        given = [keyword.value for keyword in node.keywords if keyword.arg in ("dim", "axis")]
        given += node.args[:2]
        for value in given:
            number = self._whole_number(value)
            if number is not None:
                yield f"{function} over {number}", value.lineno

    def _whole_number(self, value: ast.expr) -> int | None:
        """The whole number that is written there or in a variable; None for anything else."""
        value = self._constant_in(value)
        sign = 1
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
            sign = -1
            value = value.operand
        match value:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return sign * number
        return None

    def _constant_in(self, value: ast.expr) -> ast.expr:
        """What a variable was set to last; any other expression itself."""
        if isinstance(value, ast.Name):
            return self.around.assigned.get(value.id, [value])[-1]
        return value

    def _read_call_by_name(self, node: ast.Call, name: str) -> Patterns:
        """`f(`, and `without flag` where it does not pass on a parameter of a function here.

        Also the patterns of a function that this name stands for, and `"key":` of `dict(key=…)`.
        """
        yield f"{name}(", node.lineno
        function = self._function_behind(name)
        if function != name:
            yield f"{function}(", node.lineno
        if function in _REDUCTIONS and (function != name or name not in dir(builtins)):
            yield from self._read_dimension(node, function)
        if name == "dict":
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield from self._read_item(keyword.arg, keyword.value)
        if name in self.functions:
            for parameter in missing_parameters(node, self.functions[name]):
                yield f"without {parameter}", node.lineno

    def _read_call_of_method(self, node: ast.Call, method: ast.Attribute) -> Patterns:
        """Yield `to(`, `in place` for a method such as `add_`, and `made on cpu`, with their lines.

        `in place` only where it writes into a parameter or a view of one.
        """
        line = method.end_lineno or method.lineno
        name = method.attr
        yield f"{name}(", line
        if name == "device" and any(map(self._is_type_of_device, node.args)):
            yield "device of type", line
        if name in _REDUCTIONS:
            yield from self._read_dimension(node, name)
        if name == "embedding" and len(node.args) > 1:
            yield from self._read_lookup(node.args[1], node.args[0])
        elif name in _LOOKUPS and node.args:
            yield from self._read_lookup(self._argument_of(node, method), node.args[-1])
        if name in _CHOOSING:
            chosen_from = self._argument_of(node, method)
            for made in (*self._lines_making(chosen_from), chosen_from.lineno):
                yield f"{name} of", made
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place and viewed_name(method.value) in self.around.views:
            yield "in place", line
        if self._makes_on_cpu(node, method):
            yield "made on cpu", node.lineno

    def _argument_of(self, node: ast.Call, method: ast.Attribute) -> ast.expr:
        """The tensor that a method of it, or a function of torch, is called for."""
        if first_name(method) == "torch" and node.args:
            return node.args[0]
        return method.value

    def _is_type_of_device(self, value: ast.expr) -> bool:
        """True for `device.type`, and for a variable that was set to one."""
        match value:
            case ast.Attribute(attr="type"):
                return True
            case ast.Name(id=name):
                return name in self.around.types
        return False

    def _makes_on_cpu(self, node: ast.Call, method: ast.Attribute) -> bool:
        """True for `torch.zeros(3)` and the like, without a device and not moved to one."""
        if method.attr not in _MAKERS or first_name(method) != "torch":
            return False
        if node in self.around.moved:
            return False
        arguments = [keyword.arg for keyword in node.keywords]
        return "device" not in arguments

    def _function_behind(self, name: str) -> str:
        """The name of the function that a name stands for; that itself for any other name."""
        for _ in range(PLACES):  # one alias may stand for another, or for itself
            name = self.around.aliases.get(name) or self.aliases.get(name) or name
        return name

    def _read_keyword(self, node: ast.keyword) -> Patterns:
        """`pin_memory=` at the line where the value is made, and `pin_memory=True`."""
        if node.arg is not None:
            yield from self._read_option(node.arg, node.value)

    def _read_option(self, name: str, value: ast.expr) -> Patterns:
        """`name=` at the lines where the value is made, and `name=True` where it is True."""
        line = value.lineno
        if isinstance(value, ast.Name):
            line = self.around.set_at.get(value.id, line)
        for made in (*self._lines_making(value), line, value.lineno):
            yield f"{name}=", made
        match self._constant_in(value):
            case ast.Constant(value=bool(flag)) as constant:
                yield f"{name}={flag}", constant.lineno

    def _read_item(self, key: str, value: ast.expr) -> Patterns:
        """`"key":` at the lines where the value of a dict's key is made, and then its own."""
        for made in (*self._lines_making(value), value.lineno):
            yield f'"{key}":', made

    def _lines_making(self, value: ast.expr, depth: int = 0) -> Iterator[int]:
        """Yield the lines where a value is made, if it is a variable or what a helper returns.

        Of a variable these are its assignments, the last one first; of a call of a function of the
        file, or of one inside this function, its `return`s. `depth` is how many variables and calls
        led here.
        """
        if depth > PLACES:
            return
        match value:
            case ast.Name(id=name) if name not in self.around.filled:
                for given in reversed(self.around.assigned.get(name, [])):
                    if "split" not in words_in(given):  # where a text is only taken apart
                        yield from self._lines_making(given, depth + 1)
                        yield given.lineno
            case ast.Subscript(value=ast.Name() as owner):
                yield from self._lines_making(owner, depth + 1)
            case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id=helper), *_]):
                yield from self._lines_returned_by(helper)
            case ast.Call(func=ast.Name(id=helper)):
                yield from self._lines_returned_by(helper)
            case ast.ListComp(elt=ast.Call() as made) | ast.GeneratorExp(elt=ast.Call() as made):
                yield from self._lines_making(made, depth + 1)

    def _lines_returned_by(self, helper: str) -> Iterator[int]:
        """Yield the lines of what a function of the file, or inside this one, returns."""
        if helper in self.around.results_of_inner:
            for value in self.around.results_of_inner[helper]:
                yield value.lineno
        elif helper in self.functions and self.functions[helper] is not self.nodes[0]:
            yield from lines_of_returns(self.functions[helper])

    def _read_attribute(self, node: ast.Attribute) -> Patterns:
        """`.shape`, `.grad =` for one that is set, `is_available not called`."""
        line = node.end_lineno or node.lineno
        compared = self._comparison_sign(node)
        if node in self.around.keys:  # `there[device.type]`
            compared = "[] "
        yield f"{compared}.{node.attr}", line
        if node.attr == "values" and node not in self.around.called and _gives_indices(node.value):
            yield "max values", line
        if node.attr in _QUESTIONS and node not in self.around.called:
            yield f"{node.attr} not called", line
        match node:
            case ast.Attribute(attr="amp", value=ast.Attribute(attr="cuda")):
                yield '"cuda"', line  # `torch.cuda.amp.autocast()` is for one kind of device
        if isinstance(node.ctx, ast.Store):
            yield f".{node.attr} =", line

    def _comparison_sign(self, node: ast.AST) -> str:
        """What a pattern begins with: `==` for what is compared, nothing for the rest."""
        if node in self.around.compared:
            return "== "
        return ""

    def _read_constant(self, node: ast.Constant) -> Patterns:
        """`number 0.5`, `"cuda"` for a text that names a device, `== "mean"` for a compared one."""
        value = node.value
        if isinstance(value, float):
            yield f"number {value:.3g}", node.lineno
        if not isinstance(value, str):
            return
        compared = self._comparison_sign(node)
        kind = _type_of_device(value)
        if kind in DEVICE_TYPES:
            if node not in self.around.keys:  # `there["cuda"]` looks something up
                yield f'{compared}"{kind}"', node.lineno
        elif compared and len(value) <= LONGEST_TEXT:
            yield f'{compared}"{value}"', node.lineno

    def _read_list(self, node: ast.List | ast.Tuple) -> Patterns:
        """`numbers 0.5, 1` for a list or tuple of floats."""
        numbers = []
        for item in node.elts:
            match item:
                case ast.Constant(value=float(value)):
                    numbers.append(f"{value:.3g}")
                case _:
                    return
        if numbers:
            listed = ", ".join(numbers)
            yield f"numbers {listed}", node.lineno

    def _read_slice(self, node: ast.Slice) -> Patterns:
        """`[::-1]` for a step with a sign, `[-n:]` for a begin with one."""
        if isinstance(node.step, ast.UnaryOp):
            yield "[::-1]", node.lineno
        if isinstance(node.lower, ast.UnaryOp):
            yield "[-n:]", node.lineno

    def _read_subscript(self, node: ast.Subscript) -> Patterns:
        """`[] =` for an item that is set, `[0]` for one that is read from a fixed place.

        Also `[index]` where that place is in a variable or made there.
        """
        if isinstance(node.ctx, ast.Load):
            yield from self._read_lookup(node.value, node.slice)
        if isinstance(node.ctx, ast.Store):
            yield "[] =", node.lineno
        elif isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
            yield "[0]", node.lineno
            if node.slice.value == 0 and _gives_indices(node.value):
                yield "max values", node.lineno

    def _read_lookup(self, owner: ast.expr, index: ast.expr) -> Patterns:
        """Yield `[index]` for a lookup by an index, at the line where the index is made.

        Where that is a parameter as it is, the line where that is made in which is looked up.
        """
        if isinstance(index, ast.Slice | ast.Tuple | ast.Constant | ast.UnaryOp):
            return
        made = index
        if isinstance(index, ast.Name) and index.id not in self.around.assigned:
            made = owner
        yield from (("[index]", line) for line in self._lines_making(made))
        yield "[index]", made.lineno

    def _read_set(self, node: ast.Set | ast.SetComp) -> Patterns:
        """`set(` for a set that is written in braces, and `for` for one of a comprehension."""
        yield "set(", node.lineno
        if isinstance(node, ast.SetComp):
            yield "for", node.lineno

    def _read_comparison(self, node: ast.Compare) -> Patterns:
        """`==`, `!=`, `<=` or `>=` between two values of which the second is not a constant."""
        if isinstance(node.comparators[0], ast.Constant):
            return
        sign = _COMPARISONS.get(type(node.ops[0]))
        if sign is not None:
            yield sign, node.lineno

    def _read_changed_result(self, node: ast.Assign | ast.AugAssign) -> Patterns:
        """Yield `changed f(` where what `f` gave is combined with more before `backward()`.

        It is combined by an operator of its own statement: `loss = loss + penalty`.
        """
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.BinOp(left=left, right=right)):
                parts = [left, right]
            case ast.AugAssign(target=ast.Name(id=target) as changed):
                parts = [changed]
            case _:
                return
        if target not in self.around.backward:
            return
        for part in parts:
            if isinstance(part, ast.Name) and part.id in self.around.results:
                yield f"changed {self.around.results[part.id]}(", node.lineno

    def _read_assignment(self, node: ast.Assign) -> Patterns:
        """`from device` where a name gets the result of a call or operator with a parameter.

        Also what `_read_changed_result` yields.
        """
        yield from self._read_changed_result(node)
        match node.targets:
            case [ast.Subscript(slice=ast.Constant(value=str(key)))]:
                yield from self._read_option(key, node.value)
                yield from self._read_item(key, node.value)
        if isinstance(node.value, ast.GeneratorExp):
            yield "generator", node.lineno
        match node.targets:
            case [ast.Tuple(elts=[_, ast.Name(id=unused)])] if unused.startswith("_"):
                if _gives_indices(node.value):
                    yield "max values", node.lineno
        if isinstance(node.value, ast.Call | ast.BinOp):
            for name in names_in(node.value):
                if name in self.around.parameters:
                    yield f"from {name}", node.lineno

    def _read_return(self, node: ast.Return) -> Patterns:
        """`return itself` for a parameter that is returned as it is."""
        yield from self._read_fixed_value(node.value)
        match node.value:
            case ast.Name(id=name) if name in self.around.parameters:
                yield "return itself", node.lineno
            case ast.GeneratorExp():
                yield "generator", node.lineno

    def _read_choice(self, node: ast.IfExp) -> Patterns:
        """Yield `value 0` for a number or text on one of the sides."""
        yield from self._read_fixed_value(node.body)
        yield from self._read_fixed_value(node.orelse)

    def _read_fixed_value(self, value: ast.expr | None) -> Patterns:
        """Yield `value 0` for a number or text that is written there, with its sign."""
        match value:
            case ast.Constant(value=int() | float() | str()):
                pass
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                pass
            case _:
                return
        text = ast.unparse(value)
        if len(text) <= LONGEST_TEXT:
            yield f"value {text}", value.lineno

    def _read_operation(self, node: ast.BinOp) -> Patterns:
        """The operator of an expression with two sides."""
        return self._read_operator(node.op, node.right, node.lineno)

    def _read_operator(self, operator: ast.operator, right: ast.expr, line: int) -> Patterns:
        """`/`, and `/ number` where the right side is a constant or a name for one."""
        sign = _SIGNS.get(type(operator))
        if sign is None:
            return
        yield sign, line
        constants = self.around.constants
        if isinstance(right, ast.Constant):
            yield f"{sign} number", right.lineno
        elif isinstance(right, ast.Name) and right.id in constants:
            yield f"{sign} number", constants[right.id].lineno

    def _read_augmented_assignment(self, node: ast.AugAssign) -> Patterns:
        """Yield the operator, `in place`, and `+= f(` where the result of a call is added.

        `in place` only where it writes into a parameter or a view of one. The result may also be in
        a variable. Also what `_read_changed_result` yields.
        """
        yield from self._read_changed_result(node)
        yield from self._read_operator(node.op, node.value, node.lineno)
        changed = viewed_name(node.target)
        if changed in self.around.views:
            yield "in place", node.lineno
        for function in called_names(node.value):
            yield f"+= {function}(", node.lineno
        results = self.around.results
        for name in names_in(node.value):
            if name in results:
                yield f"+= {results[name]}(", node.lineno

    def _read_expression(self, node: ast.Expr) -> Patterns:
        """Yield what a statement throws away: `unused f(`, `unused /`, `eval not called`."""
        match node.value:
            case ast.Attribute(attr=attribute):
                yield f"{attribute} not called", node.lineno
            case ast.BinOp(op=operator):
                sign = _SIGNS.get(type(operator), "operator")
                yield f"unused {sign}", node.lineno
            case ast.Call(func=ast.Name(id=function)):
                yield f"unused {function}(", node.lineno
                if function == getattr(self.nodes[0], "name", None):
                    yield "unused itself(", node.lineno
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                yield f"unused {method}(", node.lineno
                if _returns_new_tensor(method):
                    yield "unused result", node.lineno
                if method in _MOVERS and not self._is_module(value):
                    yield "unused moved", node.lineno

    def _is_module(self, value: ast.expr) -> bool:
        """True if the function calls the same expression, or a method of it that no tensor has."""
        text = ast.dump(value)
        for called in self.around.called:
            if ast.dump(called) == text:
                return True
            match called:
                case ast.Attribute(value=owner, attr=method) if method in _METHODS_OF_MODULES:
                    if ast.dump(owner) == text:
                        return True
        return False

    def _read_dict(self, node: ast.Dict) -> Patterns:
        """Yield `"key":` for each key that is a text, and `key=` for one that may be an option."""
        for key, value in zip(node.keys, node.values, strict=True):
            match key:
                case ast.Constant(value=str(text)):
                    yield from self._read_item(text, value)
                    if text.isidentifier():
                        yield from self._read_option(text, value)

    def _read_handler(self, node: ast.ExceptHandler) -> Patterns:
        """Yield `except`, and `except any` where errors of torch end in it."""
        yield "except", node.lineno
        caught = {"Exception"} if node.type is None else set(words_in(node.type))
        raises = any(isinstance(part, ast.Raise) for part in statements_in(node.body))
        if caught & _WIDE_ERRORS and not raises:
            yield "except any", node.lineno

    def _read_loop(self, node: ast.For) -> Patterns:
        """Yield `for`, and `item =` where a variable of the loop gets another value in it."""
        yield "for", node.lineno
        variables = set(names_in(node.target))
        for part in statements_in(node.body):
            if isinstance(part, ast.Assign) and variables & set(names_among(part.targets)):
                yield "item =", part.lineno

    def _read_if(self, node: ast.If) -> Patterns:
        """Yield `if name` for each name in the condition, with the line that it decides on.

        That is the first `return` in its body, or the body's first line.
        """
        line = node.body[0].lineno
        for part in statements_in(node.body):
            if isinstance(part, ast.Return):
                line = part.lineno
                break
        for name in words_in(node.test):
            yield f"if {name}", line


def _values_returned(function: ast.FunctionDef) -> list[ast.expr]:
    """What a function may return: the expressions of its `return`s. Those inside are left out."""
    values = []
    for node in statements_in(function.body):
        match node:
            case ast.Return(value=ast.expr() as value):
                values.append(value)
    return values


def _values_given(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that an assignment sets, each with what it gets.

    A variable that gets a part of a value comes with the whole of it.
    """
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for each, given in zip(targets, values, strict=True):
                yield from _values_given(each, given)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            for each in targets:
                yield from _values_given(each, value)


def _gives_indices(value: ast.expr) -> bool:
    """True for a call of `max`, `min` or `topk` with a dimension or a number of its own."""
    match value:
        case ast.Call(func=ast.Attribute(attr="max" | "min" | "topk")):
            return bool(value.args or value.keywords)
    return False


def _returns_new_tensor(method: str) -> bool:
    """True for a method of tensors that is also a function of torch, and not in place: `div`.

    Names that Python's containers also have, such as `add`, tell nothing.
    """
    if method.endswith("_") or any(hasattr(kind, method) for kind in _CONTAINERS):
        return False
    return hasattr(torch.Tensor, method) and callable(getattr(torch, method, None))


# Kinds of nodes that are one pattern by themselves.
_KEYWORDS: Final[dict[type[ast.AST], str]] = {
    ast.AsyncFor: "for",
    ast.While: "for",
    ast.ListComp: "for",
    ast.DictComp: "for",
    ast.GeneratorExp: "for",
    ast.Continue: "continue",
    ast.Break: "continue",
    ast.Raise: "raise",
    ast.Lambda: "lambda",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
}
# How the patterns of other kinds of nodes are read. Kinds that are in neither table have none.
_READERS: Final[dict[type[ast.AST], Callable[[_PatternReader, Any], Patterns]]] = {
    ast.Call: _PatternReader._read_call,
    ast.ExceptHandler: _PatternReader._read_handler,
    ast.For: _PatternReader._read_loop,
    ast.keyword: _PatternReader._read_keyword,
    ast.Attribute: _PatternReader._read_attribute,
    ast.Constant: _PatternReader._read_constant,
    ast.List: _PatternReader._read_list,
    ast.Tuple: _PatternReader._read_list,
    ast.Slice: _PatternReader._read_slice,
    ast.Dict: _PatternReader._read_dict,
    ast.Set: _PatternReader._read_set,
    ast.SetComp: _PatternReader._read_set,
    ast.Subscript: _PatternReader._read_subscript,
    ast.Compare: _PatternReader._read_comparison,
    ast.BinOp: _PatternReader._read_operation,
    ast.AugAssign: _PatternReader._read_augmented_assignment,
    ast.Expr: _PatternReader._read_expression,
    ast.If: _PatternReader._read_if,
    ast.IfExp: _PatternReader._read_choice,
    ast.Return: _PatternReader._read_return,
    ast.Assign: _PatternReader._read_assignment,
}
