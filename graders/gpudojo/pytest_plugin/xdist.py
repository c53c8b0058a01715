"""Collects the results of a run, also from the processes of pytest-xdist."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gpudojo.grading.explain import where
from gpudojo.model.catalogue import every_exercise, exercise_for
from gpudojo.model.exercise import Check, Exercise, Function
from gpudojo.model.results import CheckResult
from gpudojo.pytest_plugin.collection import RESULT, CheckItem

ATTRIBUTE: Final = "gpudojo"
Planned = tuple[Path, Exercise, Function, Check]  # what a node id stands for


class RunResults:
    """Every check of a run: those that were collected, and the results that came of them."""

    def __init__(self) -> None:
        self.planned: dict[str, Planned] = {}  # by node id, in the order of collection
        self.results: dict[str, CheckResult] = {}
        self.notes: dict[str, None] = {}  # what is to be said of whole files, in order

    def collected(self, checks: Iterable[tuple[str, Planned]]) -> None:
        for node, planned in checks:
            self.planned.setdefault(node, planned)

    def reported(self, report: Any) -> None:
        sent = getattr(report, ATTRIBUTE, None)
        if sent is not None:
            self.results[report.nodeid] = msgspec.convert(sent["result"], CheckResult)
            if sent["note"]:
                self.notes[sent["note"]] = None


RESULTS: Final = pytest.StashKey[RunResults]()


class Listening:
    """A plugin of its own, because a report does not say of which run it is."""

    def __init__(self, config: pytest.Config) -> None:
        self.results = config.stash[RESULTS]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.results.reported(report)


def attach_result(report: Any, item: CheckItem) -> None:
    """Put the result of a check into its report, as plain data: xdist sends nothing else."""
    result = item.stash.get(RESULT, None)
    if result is not None:
        setattr(report, ATTRIBUTE, {"result": msgspec.to_builtins(result), "note": _note(item)})


def of_item(item: CheckItem) -> Planned:
    return item.path, item.checks.exercise, item.checks.function, item.check


def of_nodes(nodes: Iterable[str], root: Path) -> Iterator[tuple[str, Planned]]:
    """The same of what workers have collected, of which no more is known here than the node ids."""
    for node in nodes:
        file, *names = node.split("::")
        if len(names) != 2:
            continue
        path = root / file
        found = ((e, f, c) for e in _exercises(path) for f in e.functions for c in f.checks)
        known = next(((e, f, c) for e, f, c in found if [f.name, c.name] == names), None)
        if known is not None:
            yield node, (path, *known)


def exercises_of(planned: Iterable[Planned]) -> dict[Path, Exercise]:
    """The files of some checks, and an exercise of each."""
    return {path: exercise for path, exercise, _, _ in planned}


def _exercises(path: Path) -> tuple[Exercise, ...]:
    """Those that a file may belong to: the one of its name; in a notebook, any."""
    exercise = exercise_for(path)
    if exercise is not None:
        return (exercise,)
    return () if path.suffix == ".py" else tuple(exercise for _, exercise in every_exercise())


def _note(item: CheckItem) -> str:
    """Where the file stopped half-way although what was graded had been defined before."""
    student = item.file.grader.submission
    if student is None or student.broken is None:
        return ""
    error = student.broken
    text = f"{error.type}: {error.message.splitlines()[0]}" if error.message else error.type
    place = where(item.path, error.line).splitlines()[0] if error.line else os.path.relpath(item.path)
    return f"{place} stopped with {text}; what it defines before that was graded"
