"""Records which lines of a student's file a call executes, by marks that are compiled into it."""

from __future__ import annotations

import ast
import types
from typing import Any, Final

from gpudojo.grading.syntax import SCOPES, parts_of_statement
from gpudojo.model.exercise import Lines

MOST_RUNS: Final = 400  # of lines that follow each other, kept of one call
_MARK: Final = "\0ran"  # stands for `RAN` until the code is compiled
# The lines executed since they were taken last, each pair the first and last of a run. Its class
# can be a constant of code, which must be hashable. A set's own `add` costs next to nothing.
RAN: Final[set[Any]] = type(
    "Lines", (set,), {"__hash__": object.__hash__, "__slots__": (), "__module__": "builtins"}
)()


def compile_with_marks(tree: ast.Module, name: str) -> types.CodeType:
    """The code of a file, with marks in its functions that put executed lines into `RAN`.

    A mark stands before each run of statements that are executed together, on the line of the
    first of them, so that tracebacks and debuggers see nothing of it. The tree is changed. Raises
    what `compile` raises.
    """
    for function in _functions_in(tree):
        start = 0
        if _begins_with_constant(function):
            start = 1
        first_line = function.lineno
        for decorator in function.decorator_list:
            first_line = min(first_line, decorator.lineno)
        statements = function.body[start:]
        function.body[start:] = _with_marks(statements, first=first_line)
    code = compile(tree, name, "exec")
    return _with_set_for_mark(code)


def _begins_with_constant(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True if a function has a docstring, or `...` in its place."""
    match function.body[0]:
        case ast.Expr(value=ast.Constant()):
            return True
    return False


def _functions_in(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a file, also those inside of others and of classes."""
    functions = []
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        waiting += parts_of_statement(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node)
    return functions


def _with_marks(
    body: list[ast.stmt], caught: bool = False, first: int | None = None
) -> list[ast.stmt]:
    """A new list of the statements with marks before them; blocks inside them get marks, too.

    Statements with blocks are changed. `caught` puts a mark before every statement: where errors
    are caught, any may be the last one that is executed. `first` is the line at which the first run
    begins, if that is not a statement's.
    """
    marked: list[ast.stmt] = []
    mark: Any = None  # of the run that is not at its end; its value is the pair of lines
    for statement in body:
        inside = parts_of_statement(statement)
        last = _last_line_of_header(statement, inside)
        if mark is None:
            mark = _add_mark(marked, statement, first or statement.lineno, last)
        else:
            mark.value = (mark.value[0], last)
        if inside and not isinstance(statement, SCOPES):
            is_caught_inside = caught or isinstance(statement, ast.Try)
            _mark_inside(marked, statement, is_caught_inside)
        if inside or caught:  # the run ends here
            mark = None
            first = None
        marked.append(statement)
    return marked


def _last_line_of_header(statement: ast.stmt, inside: list[Any]) -> int:
    """The last line of a statement that is executed with it: before what is inside, if anything.

    `inside` are the nodes of its blocks.
    """
    if not inside:
        return statement.end_lineno or statement.lineno
    lines = [part.lineno for part in inside if hasattr(part, "lineno")]
    before_inside = min(lines, default=0) - 1
    return max(statement.lineno, before_inside)


def _mark_inside(marked: list[ast.stmt], statement: Any, caught: bool) -> None:
    """Put marks into the blocks of a statement.

    Changes the statement. `caught` tells whether errors in the blocks are caught. The line of an
    `except` is marked before the statement, in `marked`: the `try` asks it whether it catches an
    error.
    """
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            setattr(statement, name, _with_marks(block, caught))
    for handler in getattr(statement, "handlers", ()):
        _add_mark(marked, statement, handler.lineno, handler.lineno)
        handler.body = _with_marks(handler.body, caught, handler.lineno)
    for case in getattr(statement, "cases", ()):
        case.body = _with_marks(case.body, caught, case.pattern.lineno)


def _add_mark(marked: list[ast.stmt], before: ast.stmt, first: int, last: int) -> ast.Constant:
    """Append a mark to the statements `marked`, and return the constant in it that has the lines.

    The mark is the call `RAN.add((first, last))`, at the place of the statement `before`.
    """
    # Without the end of the statement: Python would put the call on its last line.
    place: dict[str, Any] = {"lineno": before.lineno, "col_offset": before.col_offset}
    lines: Any = ast.Constant(0, **place)
    lines.value = (first, last)
    executed = ast.Constant(_MARK, **place)
    add = ast.Attribute(executed, "add", ast.Load(), **place)
    call = ast.Call(add, [lines], [], **place)
    marked.append(ast.Expr(call, **place))
    return lines  # type: ignore[no-any-return]


def _with_set_for_mark(code: types.CodeType) -> types.CodeType:
    """The code with the set `RAN` in the place of its mark, also in the functions inside it."""
    constants = list(code.co_consts)
    for index, constant in enumerate(constants):
        if type(constant) is str and constant == _MARK:
            constants[index] = RAN
        elif isinstance(constant, types.CodeType):
            constants[index] = _with_set_for_mark(constant)
    return code.replace(co_consts=tuple(constants))


def take_executed_lines(error_line: int | None = None) -> Lines:
    """Take the runs of lines that were executed since the last time, each its first and last line.

    Empties `RAN`. Where an error ended a run, its lines after that of the error are left out.
    Student code can reach `RAN`: what is no pair of numbers is left out too. They are sorted, at
    most MOST_RUNS.
    """
    runs = []
    for run in RAN.copy():
        if not _is_pair_of_lines(run):
            continue
        first, last = run
        if error_line is not None and first <= error_line:
            last = min(last, error_line)
        runs.append((first, last))
    RAN.clear()
    return tuple(sorted(runs)[:MOST_RUNS])


def _is_pair_of_lines(run: Any) -> bool:
    """True for a tuple of two numbers of exactly the class int."""
    if type(run) is not tuple:
        return False
    return [type(each) for each in run] == [int, int]
