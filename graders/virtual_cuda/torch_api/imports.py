"""Modules that are imported, and functions that are scripted, while the device is open."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from types import ModuleType
from typing import Any, Final

import torch
import torch.jit._builtins as builtins

from virtual_cuda.patching import Opening, Patch, Replaced, aside, torch_patches


class _Loader(importlib.abc.Loader):
    """Runs one module with the patches put aside; everything that it imports in turn runs inside."""

    def __init__(self, loader: Any, finder: OriginalImports) -> None:
        self.loader = loader
        self.finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        with self.finder.lock:
            if self.finder.busy:
                self.loader.exec_module(module)
                return
            self.finder.busy = True
            try:
                with aside(self.finder.patches):
                    self.loader.exec_module(module)
            finally:
                self.finder.busy = False


class OriginalImports(importlib.abc.MetaPathFinder):
    """Stands first among the finders while the device is open, and minds torch's own modules only."""

    def __init__(self, patches: list[Replaced]) -> None:
        self.patches = patches
        self.busy = False
        self.lock = threading.RLock()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if self.busy or not fullname.startswith("torch."):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


_functions: Final[Any] = torch._C._VariableFunctions


def find(original: Any) -> Any:
    def found(function: Any) -> Any:
        known = original(function)
        if known is None:
            name = getattr(function, "__name__", None)
            if name is not None and vars(torch).get(name) is function and hasattr(_functions, name):
                return f"aten::{name}"
        return known

    return found


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    # Made once per process: it must hold the functions as they were.
    builtins._get_builtin_table()
    return [(builtins, "_find_builtin", find(builtins._find_builtin))]
