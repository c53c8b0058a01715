"""Detects files that ask at import which machine they are on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

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
DEVICES: Final = frozenset({"cuda", "mps", "accelerator"})  # modules of torch that are other ones on another machine
CACHES: Final = frozenset({"cache", "lru_cache"})
_WORDS: Final = re.compile("|".join((*sorted(QUESTIONS), *(rf"\b{name}\b(?!['\"])" for name in sorted(DEVICES)))))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def mentions(source: str) -> bool:
    """Whether there is anything to look for: most files ask nothing, and to look is most of loading them."""
    return _WORDS.search(source) is not None


def asks(statements: list[ast.stmt]) -> bool:
    """Whether a module of these statements asks once and for all: when it is run, or in a function that remembers."""
    asking = _asking_functions(statements)
    if any(isinstance(node, _FUNCTIONS) and node.name in asking and _remembers(node) for node in statements):
        return True
    taken = frozenset(_taken(statements))
    return any(_asked(node, asking) or _kept(node, taken) for node in _run_at_once(statements))


def _taken(statements: list[ast.stmt]) -> Iterator[str]:
    """The names under which a file has functions of a device: `from torch.cuda import synchronize`."""
    for node in statements:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] in DEVICES:
            yield from (name.asname or name.name for name in node.names)


def _kept(node: ast.AST, taken: frozenset[str]) -> bool:
    """Whether a function of a device is put by, in a list or as a default: it is this machine's, for good."""
    if isinstance(node, ast.Name):
        return node.id in taken and isinstance(node.ctx, ast.Load)
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load) or node.attr in DEVICES:
        return False
    owner = node.value
    return (isinstance(owner, ast.Attribute) and owner.attr in DEVICES) or (
        isinstance(owner, ast.Name) and owner.id in DEVICES
    )


def _remembers(function: ast.AST) -> bool:
    """Whether what it finds out is kept for the next call, by a decorator or in a global name."""
    return any(
        isinstance(node, ast.Global)
        or (isinstance(node, ast.Attribute) and node.attr in CACHES)
        or (isinstance(node, ast.Name) and node.id in CACHES)
        for node in ast.walk(function)
    )


def _asking_functions(statements: list[ast.stmt]) -> frozenset[str]:
    """The functions of the file that ask when they are called, also by way of one another."""
    names = {node.name: set(_names(node)) for node in statements if isinstance(node, _FUNCTIONS)}
    asking = frozenset(name for name, used in names.items() if used & QUESTIONS)
    while more := frozenset(name for name, used in names.items() if name not in asking and used & asking):
        asking |= more
    return asking


def _names(function: ast.AST) -> Iterator[str]:
    """What a function may ask or call by name; it is walked through once, whoever else asks."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            if node.attr in QUESTIONS:
                yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def _asked(node: ast.AST, asking: frozenset[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in QUESTIONS
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in asking:
        return True
    return isinstance(node, ast.Name) and node.id in QUESTIONS


def _run_at_once(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """Everything that is run with the file: of a function its decorators and defaults, and not its body."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _FUNCTIONS):
            defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
            waiting += [*node.decorator_list, *defaults]
        elif isinstance(node, ast.Lambda):
            waiting += [default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            pass  # who replaces a function of torch's does not keep it
        else:
            waiting += ast.iter_child_nodes(node)
