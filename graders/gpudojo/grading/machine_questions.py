"""Finds out whether a student's file asks, once and for all, which machine it is on.

Such a file has to be run anew on every machine that a probe opens.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from gpudojo.grading.syntax import nodes_in

# What torch is asked, and what asks by itself when it is made.
QUESTIONS: Final = frozenset(
    {
        "autocast",
        "current_accelerator",
        "current_device",
        "device_count",
        "get_default_device",
        "get_device_capability",
        "get_device_name",
        "get_device_properties",
        "GradScaler",
        "is_available",
        "is_bf16_supported",
    }
)
# Modules of torch that are other ones on another machine.
DEVICES: Final = frozenset({"cuda", "mps", "accelerator"})
CACHES: Final = frozenset({"cache", "lru_cache"})
_WORDS: Final = re.compile(
    "|".join((*sorted(QUESTIONS), *(rf"\b{name}\b(?!['\"])" for name in sorted(DEVICES))))
)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def mentions_machine(source: str) -> bool:
    """True if a source may ask. Most ask nothing, and to look closely is most of loading them."""
    return _WORDS.search(source) is not None


def asks_about_machine(statements: list[ast.stmt]) -> bool:
    """True if a file asks which machine it is on when it is run, or in a function that remembers
    it.

    A function of a device that is kept in a variable counts as a question, too.
    """
    functions = [node for node in statements if isinstance(node, _FUNCTIONS)]
    asking = _functions_that_ask(functions)
    for function in functions:
        if function.name in asking and _remembers_answer(function):
            return True
    imported = _names_from_devices(statements)
    for node in _run_with_file(statements):
        if _name_or_question(node) in QUESTIONS or _keeps_device_function(node, imported):
            return True
        if isinstance(node, ast.Call) and _name_or_question(node.func) in asking:
            return True
    return False


def _functions_that_ask(functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> set[str]:
    """The names of functions that ask which machine they are on when they are called.

    One that calls or mentions such a function asks, too.
    """
    names_used = {}
    for function in functions:
        names_used[function.name] = {_name_or_question(part) for part in nodes_in(function)}
    asking: set[str] = set()
    count = -1
    while len(asking) > count:  # until no other function is found
        count = len(asking)
        asks = QUESTIONS | asking
        for name, used in names_used.items():
            if not asks.isdisjoint(used):
                asking.add(name)
    return asking


def _names_from_devices(statements: list[ast.stmt]) -> set[str]:
    """The names that a file imports from a device, as in `from torch.cuda import synchronize`."""
    names: set[str] = set()
    for node in statements:
        if not isinstance(node, ast.ImportFrom):
            continue
        path = node.module or ""
        _, _, module = path.rpartition(".")
        if module not in DEVICES:
            continue
        for alias in node.names:
            names.add(alias.asname or alias.name)
    return names


def _name_or_question(node: ast.AST) -> str:
    """The name that a node is, or the attribute that is a question to torch; else ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and node.attr in QUESTIONS:
        return node.attr
    return ""


def _keeps_device_function(node: ast.AST, imported: set[str]) -> bool:
    """True if a function of a device is put by, in a list or as a default.

    It is this machine's, for good. `imported` are names of such functions.
    """
    if isinstance(node, ast.Name):
        return node.id in imported and isinstance(node.ctx, ast.Load)
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return False
    if node.attr in DEVICES:
        return False
    match node.value:
        case ast.Attribute(attr=owner) | ast.Name(id=owner):
            return owner in DEVICES
    return False


def _remembers_answer(function: ast.AST) -> bool:
    """True if what a function finds out is kept for the next call, by a cache or a global name."""
    for node in ast.walk(function):
        match node:
            case ast.Global():
                return True
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in CACHES:
                return True
    return False


def _run_with_file(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield every node that runs when the file runs.

    Of a function these are only its decorators and defaults.
    """
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            defaults = (*node.args.defaults, *node.args.kw_defaults)
            waiting += [default for default in defaults if default is not None]
            if not isinstance(node, ast.Lambda):
                waiting += node.decorator_list
            continue
        match node:
            case ast.Attribute(ctx=ast.Store()):
                pass  # who replaces a function of torch's does not keep it
            case _:
                waiting += ast.iter_child_nodes(node)
