"""What do students get? Stubs, notebooks, a repository, made from the reference solutions; no torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Part = Callable[[Path, str], dict[str, bytes]]  # (the repository with reference/, the day): files by path
Seal = Callable[[Mapping[str, bytes], str], dict[str, bytes]]  # (all other files, the day): files by path


def parts() -> list[Part]:
    """What else belongs into a student's repository: every module here that has a function `parts` adds its files."""
    return [part for part in _all("parts") if part is not parts]  # a module may have imported this one


def seals() -> list[Seal]:
    """What is written last, because it holds hashes of the rest: every module here that has a function `seals`."""
    return [seal for seal in _all("seals") if seal is not seals]


def _all(name: str) -> list[Callable[..., Any]]:
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    found = (getattr(module, name, None) for module in modules)
    return [function for function in found if callable(function)]
