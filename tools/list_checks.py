"""Writes the tables of docs/authoring.md: ready-made checks, what probes use, misconceptions.

Run it after a change of one of these: python -m tools.list_checks
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from gpudojo.grading import call, checks
from gpudojo.model.catalogue import general_mistakes
from gpudojo.model.exercise import Check, Exercise, Function, Probe

PAGE: Final = Path(__file__).parents[1] / "docs" / "authoring.md"
# What probes use, and what checks of an exercise's own use.
FOR_PROBES: Final = (
    checks.describe_call,
    call.try_scenarios,
    call.try_inputs,
    call.array_of,
    call.call_and_restore_settings,
)
FOR_OWN_CHECKS: Final = (
    checks.check_scenarios,
    checks.expect_device_used,
    checks.expect_mode_kept,
    checks.expect_settings_kept,
    checks.expect_float,
    checks.raised_instead,
    checks.device_mistake,
    checks.general_mistake,
)


def tables() -> dict[str, str]:
    """The texts of all tables, by the name in the comment that stands above each."""
    return {
        "ready-made": _table_of_ready_made(),
        "probes": _table_of_functions("in a probe", FOR_PROBES),
        "own checks": _table_of_functions("in a check of your own", FOR_OWN_CHECKS),
        "misconceptions": _table_of_misconceptions(),
    }


def fill_page(page: str) -> str:
    """The page with all tables as they should be. Raises ValueError where one has no place."""
    for name, table in tables().items():
        begin = f"<!-- {name} -->\n"
        end = f"<!-- /{name} -->"
        before, found, rest = page.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise ValueError(f"the page has no place for the table {name!r}")
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def _table_of_ready_made() -> str:
    """A line for each ready-made check: how it is declared, its claim, what it may diagnose."""
    lines = _heading("declared by", "what students read", "misconceptions")
    for declare in vars(checks).values():
        check = _declared_check(declare)
        if check is not None:
            keys = ", ".join(f"`{key}`" for key in _keys_named_by(declare.__name__))
            lines += f"| `{_signature_of(declare)}` | {check.claim} | {keys} |\n"
    return lines


def _declared_check(declare: Any) -> Check | None:
    """The check of its own name that a function of the module declares.

    Returns None for a function that declares none.
    """
    if not inspect.isfunction(declare) or declare.__module__ != checks.__name__:
        return None
    parameters = [*inspect.signature(declare).parameters]
    takes_points = "points" in parameters or declare is checks.runs
    if parameters[:1] != ["function"] or not takes_points or "judge" in parameters:
        return None
    function = Exercise("01_example", "", 0).function("your_function")
    for name in ("runs", "same_as_reference"):
        if name != declare.__name__:
            _call_with_anything(vars(checks)[name], function)
    _call_with_anything(declare, function)
    last = function.checks[-1]
    if last.name != declare.__name__:
        return None
    return last


def _call_with_anything(declare: Callable[..., Any], function: Function) -> None:
    """Call something that declares a check, with values for what has to be passed."""
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    samples = {"function": function, "probe": Probe("your_probe", lambda call: None)}
    for name, parameter in inspect.signature(declare).parameters.items():
        value = samples.get(name, 1)
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.append(samples["probe"])
        elif parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY:
            by_name[name] = value
        elif parameter.default is parameter.empty:
            positional.append(value)
    declare(*positional, **by_name)


def _keys_named_by(name: str) -> list[str]:
    """The misconceptions that a function of the module names, or what it uses there does."""
    module = ast.parse(inspect.getsource(checks))
    statements: dict[str, ast.stmt] = {}
    for statement in module.body:
        match statement:
            case ast.FunctionDef(name=defined):
                statements[defined] = statement
            case ast.AnnAssign(target=ast.Name(id=defined)):
                statements[defined] = statement
    reached: dict[str, None] = {}
    waiting = [name]
    found = set()
    while waiting:
        current = waiting.pop()
        if current in reached or current not in statements:
            continue
        reached[current] = None
        for node in ast.walk(statements[current]):
            if isinstance(node, ast.Name):
                waiting.append(node.id)
            elif isinstance(node, ast.Constant) and node.value in general_mistakes():
                found.add(str(node.value))
    return sorted(found)


def _table_of_functions(heading: str, functions: Iterable[Callable[..., Any]]) -> str:
    """A line for each function: its signature, and the first sentence of its docstring."""
    lines = _heading(heading, "")
    for function in functions:
        lines += f"| `{_signature_of(function)}` | {_first_sentence(function)} |\n"
    return lines


def _table_of_misconceptions() -> str:
    """A line for each misconception that every day knows."""
    lines = _heading("key", "name")
    for key, mistake in general_mistakes().items():
        lines += f"| `{key}` | {mistake.name} |\n"
    return lines


def _heading(*titles: str) -> str:
    return f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}\n"


def _signature_of(function: Callable[..., Any]) -> str:
    """A function with its parameters, without their types."""
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if callable(default) and default is not parameter.empty:
            parameter = parameter.replace(default=None)
        parameters.append(parameter.replace(annotation=parameter.empty))
    text = str(inspect.Signature(parameters)).replace("'", '"')
    return f"{function.__name__}{text}"


def _first_sentence(function: Callable[..., Any]) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(function) or "").split())
    return re.split(r"(?<=\.)\s", text)[0]


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
