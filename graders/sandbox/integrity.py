"""Is the grader's own code still what it was? Functions and methods by identity, before and after student code ran."""

from __future__ import annotations

import builtins
import sys
import time
import types
from typing import Any, Final

OWN: Final = "graders."
CLOCKS: Final = tuple(
    "perf_counter perf_counter_ns monotonic monotonic_ns time time_ns process_time process_time_ns sleep".split()
)
BUILTINS: Final = ("isinstance", "type", "len", "abs", "all", "any", "sum", "sorted", "float", "int", "str", "hasattr")

Print = dict[str, Any]


def fingerprint() -> Print:
    """Every function and method of gpudojo that is loaded, with its code. Kept alive, so that none can be replaced
    by another at the same address."""
    found: Print = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(OWN) and isinstance(module, types.ModuleType):
            for attribute, value in list(vars(module).items()):
                _note(f"{name}.{attribute}", value, found)
    for name in CLOCKS:
        found[f"time.{name}"] = getattr(time, name)
    for name in BUILTINS:
        found[f"builtins.{name}"] = getattr(builtins, name)
    return found


def changed(before: Print) -> str | None:
    """The name of something that is not what it was."""
    now = fingerprint()
    for name, value in before.items():
        if now.get(name) is not value:
            return name
    return None


def _note(name: str, value: Any, found: Print) -> None:
    if isinstance(value, types.FunctionType):
        found[name] = value
        found[f"{name}()"] = value.__code__
    elif isinstance(value, type) and value.__module__.startswith(OWN):
        found[name] = value
        for method, inner in list(vars(value).items()):
            function = inner.__func__ if isinstance(inner, (staticmethod, classmethod)) else inner
            if isinstance(function, types.FunctionType):
                found[f"{name}.{method}()"] = function.__code__
