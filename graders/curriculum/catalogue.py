"""Which exercises are there? Every module of a day's package that declares one; no list to keep."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

from graders.curriculum.exercise import Exercise

DAYS = ("day8",)


@functools.cache
def day(name: str) -> tuple[Exercise, ...]:
    """The exercises of a day, in order."""
    package = importlib.import_module(f"graders.{name}")
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    found = [module.exercise for module in modules if isinstance(getattr(module, "exercise", None), Exercise)]
    return tuple(sorted(found, key=lambda exercise: exercise.stem))


def exercise_for(path: Path) -> Exercise | None:
    """The exercise a file belongs to, by its name."""
    for name in DAYS:
        for exercise in day(name):
            if path.stem == exercise.stem:
                return exercise
    return None
