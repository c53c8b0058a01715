"""Finds the days and exercises that are installed."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import gpudojo.days
from gpudojo.model.exercise import Exercise, Misconception

DAY: Final = re.compile(r"day([1-9][0-9]{0,2})")


def _days() -> tuple[str, ...]:
    """By their numbers. Found by name alone: to import them all would cost whoever wants to know one."""
    found = [module.name for module in pkgutil.iter_modules(gpudojo.days.__path__) if module.ispkg]
    return tuple(sorted((name for name in found if DAY.fullmatch(name)), key=lambda name: int(name[3:])))


DAYS: Final = _days()


@functools.cache
def misconceptions() -> Mapping[str, Misconception]:
    """The named mistakes of all days, by key: each day's folder may have a `misconceptions.toml`."""
    found = {}
    for path in (Path(folder) / name / "misconceptions.toml" for folder in gpudojo.days.__path__ for name in DAYS):
        if path.is_file():
            for key, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
                at, cause = (tuple(entry.get(what, ())) for what in ("at", "cause"))
                found[key] = Misconception(entry["name"], entry["why"], at, cause)
    return found


def _modules(name: str) -> Iterator[tuple[ModuleType, Exercise]]:
    package = importlib.import_module(f"gpudojo.days.{name}")
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        exercise = getattr(module, "exercise", None)
        if isinstance(exercise, Exercise):
            yield module, exercise


@functools.cache
def day(name: str) -> tuple[Exercise, ...]:
    """The exercises of a day, in order."""
    return tuple(sorted((exercise for _, exercise in _modules(name)), key=lambda exercise: exercise.stem))


def whole(name: str) -> tuple[int, float]:
    """How many exercises a day has at least when it is whole, and how many points: its package says so."""
    package = importlib.import_module(f"gpudojo.days.{name}")
    return int(getattr(package, "EXERCISES", 0)), float(getattr(package, "POINTS", 100))


def sources(name: str, exercise: Exercise) -> list[Path]:
    """The files that declare an exercise: those of its package, or its one module."""
    for module, declared in _modules(name):
        if declared is exercise and module.__file__ is not None:
            path = Path(module.__file__)
            return sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]
    return []


def day_of(stem: str) -> str | None:
    """The day that has an exercise; no two have one of the same name."""
    return next((name for name in DAYS for exercise in day(name) if exercise.stem == stem), None)


def exercise_for(path: Path) -> Exercise | None:
    """The exercise a file belongs to, by its name."""
    for name in DAYS:
        for exercise in day(name):
            if path.stem == exercise.stem:
                return exercise
    return None
