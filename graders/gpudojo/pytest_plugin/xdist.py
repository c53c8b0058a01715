"""Sends results between the processes of pytest-xdist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gpudojo.model.catalogue import every_exercise, exercise_for
from gpudojo.model.exercise import Exercise
from gpudojo.pytest_plugin.collection import RESULT, CheckItem

ATTRIBUTE: Final = "gpudojo"
NOT_RUN: Final = "not run"


class Told(msgspec.Struct, frozen=True):
    """One check, as the table at the end needs it."""

    path: str
    exercise: str
    function: str
    check: str
    most: float
    outcome: str = NOT_RUN
    got: float = 0.0
    claim: str = ""
    note: str = ""  # what is to be said of the whole file

    @property
    def ran(self) -> bool:
        return self.outcome != NOT_RUN


class Heard:
    """Every check of a run: those that were collected, and then what came of them."""

    def __init__(self) -> None:
        self.checks: dict[str, Told] = {}  # by node id, in the order of collection

    def collected(self, checks: Iterable[tuple[str, Told]]) -> None:
        for node, told in checks:
            self.checks.setdefault(node, told)

    def reported(self, report: Any) -> None:
        told = getattr(report, ATTRIBUTE, None)
        if told is not None:
            self.checks[report.nodeid] = msgspec.convert(told, Told)


HEARD: Final = pytest.StashKey[Heard]()


class Listening:
    """A plugin of its own, because a report does not say of which run it is."""

    def __init__(self, config: pytest.Config) -> None:
        self.heard = config.stash[HEARD]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.heard.reported(report)


def tell(report: Any, item: CheckItem) -> None:
    """Put the result of a check into its report, as plain data: xdist sends nothing else."""
    result = item.stash.get(RESULT, None)
    if result is None:
        return
    told = msgspec.structs.replace(
        of_item(item), outcome=str(result.outcome), got=result.points, claim=result.claim, note=_note(item)
    )
    setattr(report, ATTRIBUTE, msgspec.to_builtins(told))


def of_item(item: CheckItem) -> Told:
    """A check that has not been run."""
    return Told(str(item.path), item.checks.exercise.stem, item.checks.name, item.check.name, item.check.points)


def of_nodes(nodes: Iterable[str], root: Path) -> Iterator[tuple[str, Told]]:
    """The same of what workers have collected, of which no more is known here than the node ids."""
    for node in nodes:
        file, *names = node.split("::")
        if len(names) != 2:
            continue
        path = root / file
        for exercise in _exercises(path):
            points = {(f.name, check.name): check.points for f in exercise.functions for check in f.checks}
            if (names[0], names[1]) in points:
                yield node, Told(str(path), exercise.stem, names[0], names[1], points[names[0], names[1]])
                break


def exercises_of(told: Iterable[Told]) -> dict[Path, Exercise]:
    """The files of some checks, and an exercise of each."""
    found = {Path(each.path): each.exercise for each in told}
    known = {exercise.stem: exercise for _, exercise in every_exercise()}
    return {path: known[stem] for path, stem in found.items()}


def _exercises(path: Path) -> tuple[Exercise, ...]:
    """Those that a file may belong to: the one of its name; in a notebook, any."""
    exercise = exercise_for(path)
    if exercise is not None:
        return (exercise,)
    return () if path.suffix == ".py" else tuple(exercise for _, exercise in every_exercise())


def _note(item: CheckItem) -> str:
    """Where the file stopped half-way although what was graded had been defined before."""
    from gpudojo.pytest_plugin.feedback import where

    student = item.file.grader.student
    if student is None or student.broken is None:
        return ""
    error = student.broken
    text = f"{error.type}: {error.message.splitlines()[0]}" if error.message else error.type
    place = where(item.path, error.line).splitlines()[0] if error.line else os.path.relpath(item.path)
    return f"{place} stopped with {text}; what it defines before that was graded"
