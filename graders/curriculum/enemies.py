"""Which wrong solutions are there, what do they say they fail, and which check has none?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graders.curriculum.exercise import Exercise
from graders.curriculum.report import Finding

HEADER: Final = re.compile(r"# fails: (\w+)::(\w+) as ([\w-]+)\s*$")


@dataclass(frozen=True)
class Enemy:
    """A wrong solution, and what its first line says it must fail."""

    path: Path
    function: str
    check: str
    misconception: str | None


def enemies_of(folder: Path) -> tuple[list[Enemy], list[Finding]]:
    """The wrong solutions, and those that do not say what they fail."""
    found, unreadable = [], []
    for path in sorted(folder.glob("*/*.py")):
        first, *_ = path.read_text(encoding="utf-8").splitlines() or [""]
        match = HEADER.match(first)
        if match is None:
            unreadable.append(Finding(path.parent.name, f"{path.name} does not say on its first line what it fails"))
            continue
        found.append(Enemy(path, match[1], match[2], None if match[3] == "-" else match[3]))
    return found, unreadable


def without_enemy(exercise: Exercise, enemies: list[Enemy]) -> Iterator[Finding]:
    fought = {(enemy.function, enemy.check) for enemy in enemies}
    there = {(function.name, check.name) for function in exercise.functions for check in function.checks}
    for function, check in sorted(there - fought):
        yield Finding(exercise.stem, f"{function}::{check} has no enemy: no wrong solution fails it")
    for function, check in sorted(fought - there):
        yield Finding(exercise.stem, f"a wrong solution says it fails {function}::{check}, which is no check")
