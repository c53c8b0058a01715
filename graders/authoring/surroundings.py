"""What is there already that something new may clash with? Days, exercises, their functions and their modules."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import graders
from graders.curriculum.catalogue import DAYS, day
from graders.errors import CannotBegin


@dataclass(frozen=True)
class Surroundings:
    """Of each day, by name."""

    stems: Mapping[str, tuple[str, ...]]  # of exercises that are declared, or have a reference at least
    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the day's package
    functions: Mapping[str, str] = field(default_factory=dict)  # each function's exercise, of any day

    def next_number(self, day: str) -> int:
        numbers = [int(stem[:2]) for stem in self.stems.get(day, ()) if stem[:2].isdigit()]
        return max(numbers, default=0) + 1


def surroundings(root: Path) -> Surroundings:
    """What the repository has; it must be the one whose code runs here, or its days would not be known."""
    package = Path(graders.__file__).resolve().parent
    if (root / "graders").resolve() != package:
        raise CannotBegin(
            f"the gpudojo that runs here is in {package.parent}, not in {root}; go there and use python -m graders"
        )
    stems: dict[str, tuple[str, ...]] = {}
    modules: dict[str, frozenset[str]] = {}
    functions: dict[str, str] = {}
    for name in DAYS:
        written = {path.stem for path in (root / "reference" / name).glob("[0-9][0-9]_*.py")}
        stems[name] = tuple(sorted(written | {exercise.stem for exercise in day(name)}))
        modules[name] = frozenset(module.name for module in pkgutil.iter_modules([str(package / name)]))
        functions |= {function.name: exercise.stem for exercise in day(name) for function in exercise.functions}
    return Surroundings(stems, modules, functions)
