"""Loads the modules of `virtual_cuda` with attribute names that no submission knows."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

# What a tensor on the virtual device has inside, its values on the host and its memory, and a graph its steps.
INSIDE: Final = (
    "_inner",
    "_block",
    "_parts",
    "_steps",
    "_before",
    "_held",
    "_place",
    "_seeds",
)


class RenamedInside:
    """Finds the modules of `virtual_cuda` and loads them with other names for the inside of a tensor.

    The names are drawn for each fork server, so that no submission knows them, however it puts a name together.
    """

    def __init__(self) -> None:
        self.names = dict(zip(INSIDE, (f"_{secrets.token_hex(8)}" for _ in INSIDE), strict=True))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = (
            PathFinder.find_spec(name, path, target) if name.startswith("virtual_cuda.") else None
        )
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = Renaming(name, found.loader.path)
            found.loader.names = self.names
        return found


class Renaming(SourceFileLoader):
    """Loads a module with other names, and leaves the names to the module."""

    names: Mapping[str, str] = {}

    def get_code(self, fullname: str) -> CodeType | None:
        code = super().get_code(fullname)
        return code and _renamed(code, self.names)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self.names = {}


def _renamed(code: CodeType, names: Mapping[str, str], nested: bool = False) -> CodeType:
    """A code object in which other names stand for these; not in the body of a class, which only annotates them."""

    def other(value: Any) -> Any:
        if isinstance(value, CodeType):
            return _renamed(value, names, nested=True)
        if type(value) in (tuple, frozenset):
            return type(value)(map(other, value))
        return names.get(value, value) if type(value) is str else value

    if nested and not code.co_flags & inspect.CO_OPTIMIZED:
        inner = (other(each) if isinstance(each, CodeType) else each for each in code.co_consts)
        return code.replace(co_consts=tuple(inner))
    return code.replace(co_consts=other(code.co_consts), co_names=other(code.co_names))
