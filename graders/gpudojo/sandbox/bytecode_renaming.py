"""Loads the modules of `virtual_cuda` with attribute names that no submission knows."""

from __future__ import annotations

import inspect
import runpy
import secrets
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


def hidden_names() -> tuple[str, ...]:
    """The attributes of device tensors and graphs that no submission is to know.

    The file that lists them is run by itself: no module of the package may be loaded before it is
    loaded with other names. Raises ImportError where `virtual_cuda` is not installed.
    """
    package = find_spec("virtual_cuda")
    if package is None or not package.submodule_search_locations:
        raise ImportError("virtual_cuda is not installed")
    path = Path(package.submodule_search_locations[0], "device", "hidden_names.py")
    lists = runpy.run_path(str(path))
    names: tuple[str, ...] = lists["HIDDEN_IN_TENSORS"] + lists["HIDDEN_IN_GRAPHS"]
    return names


class RenamedInside:
    """Finds the modules of `virtual_cuda` and renames the hidden attributes of tensors in them.

    The names are drawn for each fork server, the process from which children start. So no
    submission knows them, however it puts a name together.
    """

    def __init__(self) -> None:
        self.names = {name: f"_{secrets.token_hex(8)}" for name in hidden_names()}

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
    """A copy of a code object in which other names stand for these.

    The body of a class, which only annotates them, keeps its names.
    """

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
