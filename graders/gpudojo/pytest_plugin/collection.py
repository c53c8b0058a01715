"""Collects exercise files: one pytest item per check."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from gpudojo.grading import load
from gpudojo.grading.engine import FileGrader
from gpudojo.grading.feedback import check_to_mend_first
from gpudojo.grading.limits import DEFAULT_SECONDS, Limits
from gpudojo.grading.references import PUBLIC_SEEDS
from gpudojo.model.catalogue import (
    day_names,
    day_of_file,
    exercise_for,
    exercises_of,
    registered_days,
)
from gpudojo.model.evidence import Raised
from gpudojo.model.exercise import Check, Exercise, Function
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.pytest_plugin import terminal
from gpudojo.pytest_plugin.terminal import Feedback, MissingFile, ReportedCheck

RESULT: Final = pytest.StashKey[CheckResult]()
LIMITS: Final = pytest.StashKey[Limits]()
CHARACTERS: Final = 1_000_000  # of output that pytest captures
QUITTING: Final = "Quitting debugger"  # what pytest says when the user leaves the debugger


def quit_debugger(raised: Raised) -> None:
    """Ends the run where an exception is the user's wish to leave the debugger: to a probe it is one like any other."""
    if (raised.type, raised.message) == ("Exit", QUITTING):
        pytest.exit(QUITTING)


class ExerciseFile(pytest.File):
    """A student's file of a known exercise, or a notebook with the functions of several."""

    exercises: tuple[Exercise, ...]
    grader: FileGrader

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        for exercise in self.exercises:
            for function in exercise.functions:
                yield FunctionChecks.from_parent(
                    self, name=function.name, exercise=exercise, function=function
                )


class FunctionChecks(pytest.Collector):
    """The checks of one function."""

    def __init__(self, exercise: Exercise, function: Function, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.exercise = exercise
        self.function = function
        # What the student's code printed: it runs in the first check, and is shown where one fails.
        self.printed: list[tuple[str, str]] = []

    @property
    def file(self) -> ExerciseFile:
        found = self.getparent(ExerciseFile)
        assert found is not None
        return found

    def collect(self) -> Iterator[pytest.Item]:
        # A marker would override what the user has chosen.
        asked = self.config.getoption("timeout", None) is not None or "PYTEST_TIMEOUT" in os.environ
        guarded = self.config.pluginmanager.hasplugin("timeout") and not asked
        for check in self.function.checks:
            item = CheckItem.from_parent(self, name=check.name, check=check)
            if guarded:
                item.add_marker(pytest.mark.timeout(DEFAULT_SECONDS))
            yield item


class NotAPass(Exception):
    """A check that did not pass. `Feedback` makes its text."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result.happened or result.outcome)
        self.result = result


class CheckItem(pytest.Item):
    """One check."""

    def __init__(self, check: Check, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check = check

    @property
    def checks(self) -> FunctionChecks:
        assert isinstance(self.parent, FunctionChecks)
        return self.parent

    @property
    def file(self) -> ExerciseFile:
        return self.checks.file

    def runtest(self) -> None:
        limits = self.stash.get(LIMITS, Limits(characters=CHARACTERS, on_raised=quit_debugger))
        results = self.file.grader.results(self.checks.exercise, self.checks.function, limits)
        result = next(result for result in results if result.check == self.check.name)
        self.stash[RESULT] = result
        if result.outcome is not Outcome.PASSED:
            raise NotAPass(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, NotAPass):
            hints = int(self.config.getoption("dojo_hints"))
            option = option_name(self.config, "hints")
            result = excinfo.value.result
            graded = self.file.grader.graded
            own = (each for each in graded if each.function == result.function)
            blocks = [each.check for each in own if each.blocked_by == result.check]
            first = check_to_mend_first(result, graded, self.checks.exercise)
            return Feedback(result, self.checks.exercise, self.path, hints, option, blocks, first)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return (
            self.path,
            _line(self.path, self.checks.name),
            f"{self.checks.name}: {self.check.name}",
        )


class NoTests(pytest.File):
    """An exercise file as pytest's own collector sees it: without test functions, and not imported."""

    def collect(self) -> Iterator[pytest.Item]:
        yield from ()


def collect_file(file_path: Path, parent: pytest.Collector) -> ExerciseFile | None:
    exercise = exercise_for(file_path)
    config = parent.config
    exercises: tuple[Exercise, ...] = (exercise,) if exercise else ()
    if exercise is None and file_path.suffix == load.NOTEBOOK_SUFFIX:
        exercises = exercises_in(file_path, named=parent.session.isinitpath(file_path))
    if not exercises:
        return None
    file: ExerciseFile = ExerciseFile.from_parent(parent, path=file_path)
    file.exercises = exercises
    kind = config.getoption("dojo_bench")
    watching = terminal.wanted(config)
    file.grader = FileGrader(file_path, kind, seed_of(config), watching=watching)
    return file


def seed_of(config: pytest.Config) -> int:
    """The seed of this run."""
    asked = config.getoption("dojo_seed")
    return PUBLIC_SEEDS[0] if asked is None else int(asked)


def option_name(config: pytest.Config, name: str) -> str:
    """How an option is written in this run: `--hints` where a conftest.py adds the short ones, else `--dojo-hints`."""
    return f"--{name}" if config.getoption("dojo_short_options", False) else f"--dojo-{name}"


def exercises_in(path: Path, named: bool) -> tuple[Exercise, ...]:
    """The exercises of which a notebook defines a function.

    Many notebooks define `evaluate` or `predict`. So one that is not named on the command line counts only if its path
    or its text mentions the day.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return ()
    found: list[Exercise] = []
    for name in day_names():
        if not (named or name in path.parts or name in path.stem or name.encode() in text):
            continue
        try:
            defined = load.read_notebook(path).defined()
        except load.NotANotebook:
            # Every function then fails with the reason why the file cannot be read.
            return exercises_of(name) if named or name in path.stem else ()
        found += [
            e
            for e in exercises_of(name)
            if any(function.name in defined for function in e.functions)
        ]
    return tuple(found)


def missing(checks: Sequence[ReportedCheck], config: pytest.Config) -> list[MissingFile]:
    """The exercise files that a folder lacks, in a run of whole folders.

    A folder with less than half of a day's files is not taken for the whole day: there, only renamed ones are found.
    """
    chosen = any(config.getoption(name, None) for name in ("keyword", "markexpr", "lf", "deselect"))
    named = {
        Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args
    }
    if chosen or any(not each.is_dir() for each in named):
        return []
    graded = {check.exercise.stem for check in checks}
    found: list[MissingFile] = []
    for folder, name in sorted(
        {(c.path.parent, day_of_file(c.path) or "") for c in checks if c.path.suffix == ".py"}
    ):
        stems = registered_days()[name].modules
        absent = sorted(set(stems) - graded)
        others = sorted(path.name for path in folder.glob("*.py") if path.stem not in stems)
        for stem in absent:
            number = re.match(r"\d+", stem)
            instead = next(
                (other for other in others if number and other.startswith(number[0])), ""
            )
            exercise = exercise_for(folder / f"{stem}.py")
            if exercise is not None and (instead or len(absent) <= len(stems) // 2):
                found.append(MissingFile(folder, exercise, instead))
    return found


def _line(path: Path, function: str) -> int | None:
    """The line of a function, counted from 0 as pytest wants it; test explorers jump there."""
    if path.suffix != ".py":
        return None
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    starts = [
        found.start()
        for found in re.finditer(rf"^(?:def {function}\b|{function}\s*[:=])", source, re.M)
    ]
    return source.count("\n", 0, starts[-1]) if starts else None
