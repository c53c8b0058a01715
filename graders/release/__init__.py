"""What do students get? Stubs, notebooks, a repository, made from the reference solutions; no torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

Part = Callable[[Path, str], dict[str, bytes]]  # (the repository with reference/, the day): files by path


def parts() -> list[Part]:
    """What else belongs into a student's repository: every module here that has a function `parts` adds its files."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    found = (getattr(module, "parts", None) for module in modules)
    return [part for part in found if callable(part) and part is not parts]  # a module may have imported this one
