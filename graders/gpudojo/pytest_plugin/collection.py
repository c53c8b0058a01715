"""Collects exercise files: one pytest item per check."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from gpudojo.grading import bindings, notebooks
from gpudojo.grading.debugger import LeftDebugger
from gpudojo.grading.engine import FileGrader
from gpudojo.grading.feedback import check_to_mend_first
from gpudojo.grading.limits import DEFAULT_SECONDS, Limits
from gpudojo.grading.references import require_reference
from gpudojo.grading.shipped_evidence import PUBLIC_SEEDS
from gpudojo.model.catalogue import (
    day_names,
    day_of_file,
    exercise_for,
    exercises_of,
    registered_days,
)
from gpudojo.model.errors import NoReference
from gpudojo.model.exercise import Check, Exercise, Function
from gpudojo.model.results import CheckResult, Outcome
from gpudojo.pytest_plugin.terminal import Feedback, MissingFile, ReportedCheck
from gpudojo.pytest_plugin.timelines import records_timelines

RESULT: Final = pytest.StashKey[CheckResult]()
LIMITS: Final = pytest.StashKey[Limits]()
OUTPUT_CHARACTERS: Final = 1_000_000  # of output that pytest captures
QUITTING: Final = "Quitting debugger"  # what pytest says when the user leaves the debugger
# Options with which pytest runs only some of what it has collected.
SELECTING_OPTIONS: Final = ("keyword", "markexpr", "lf", "deselect")


class ExerciseFile(pytest.File):
    """A student's file of a known exercise, or a notebook with the functions of several."""

    exercises: tuple[Exercise, ...]
    grader: FileGrader

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield one collector for each function.

        Raises CollectError, of which pytest shows the text, where there is nothing to judge by.
        """
        for exercise in self.exercises:
            try:
                require_reference(self.path, exercise)
            except NoReference as error:
                raise self.CollectError(f"not judged: {error}") from None
            for function in exercise.functions:
                yield FunctionChecks.from_parent(
                    self, name=function.name, exercise=exercise, function=function
                )


class FunctionChecks(pytest.Collector):
    """The checks of one function."""

    def __init__(self, exercise: Exercise, function: Function, **kwargs: Any) -> None:
        """Collect the checks of a function; `kwargs` are pytest's own."""
        super().__init__(**kwargs)
        self.exercise = exercise
        self.function = function
        # What the student's code printed: it runs in the first check, and is shown if one fails.
        self.printed: list[tuple[str, str]] = []

    @property
    def file(self) -> ExerciseFile:
        """The file that the function is in."""
        parent = self.getparent(ExerciseFile)
        assert parent is not None
        return parent

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one item for each check, with our time limit unless the user has chosen one."""
        # A marker would override what the user has chosen.
        option = self.config.getoption("timeout", None)
        is_chosen = option is not None or "PYTEST_TIMEOUT" in os.environ
        has_timeouts = self.config.pluginmanager.hasplugin("timeout")
        for check in self.function.checks:
            item = CheckItem.from_parent(self, name=check.name, check=check)
            if has_timeouts and not is_chosen:
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
        """The checks of the same function."""
        assert isinstance(self.parent, FunctionChecks)
        return self.parent

    @property
    def file(self) -> ExerciseFile:
        """The file that the function is in."""
        return self.checks.file

    def runtest(self) -> None:
        """Grade the function, if that is not done yet, and put the result into the stash.

        Raises NotAPass if this check did not pass, OSError for a file that cannot be read,
        KeyboardInterrupt, and what `pytest.exit` raises where the user has left the debugger.
        """
        limits = self.stash.get(LIMITS, None)
        if limits is None:
            limits = Limits(characters=OUTPUT_CHARACTERS)
        checks = self.checks
        try:
            results = self.file.grader.results_of(checks.exercise, checks.function, limits)
        except LeftDebugger:
            pytest.exit(QUITTING)
        by_name = {result.check: result for result in results}
        result = by_name[self.check.name]
        self.stash[RESULT] = result
        if result.outcome is not Outcome.PASSED:
            raise NotAPass(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The text of a check that did not pass; of another error, pytest's own.

        Raises BadDay or OSError where hints or mistakes of the day cannot be read.
        """
        if not isinstance(excinfo.value, NotAPass):
            return super().repr_failure(excinfo, style)
        result = excinfo.value.result
        graded = self.file.grader.graded
        blocks = []
        for other in graded:
            if other.function == result.function and other.blocked_by == result.check:
                blocks.append(other.check)
        return Feedback(
            result,
            self.checks.exercise,
            self.path,
            hints=int(self.config.getoption("dojo_hints")),
            option=option_name(self.config, "hints"),
            blocks=blocks,
            first=check_to_mend_first(result, graded, self.checks.exercise),
        )

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The path, the function's line from 0, or None, and what the check is called."""
        function = self.checks.name
        line = _line_of_function(self.path, function)
        return self.path, line, f"{function}: {self.check.name}"


class NoTests(pytest.File):
    """An exercise file as pytest's own collector sees it: without tests, and not imported."""

    def collect(self) -> Iterator[pytest.Item]:
        """Nothing."""
        yield from ()


def collect_file(file_path: Path, parent: pytest.Collector) -> ExerciseFile | None:
    """A collector for an exercise file or a notebook. Returns None for any other file.

    It has the exercises and a grader. Raises BadDay where a day cannot be imported, and OSError.
    """
    exercise = exercise_for(file_path)
    exercises: tuple[Exercise, ...] = ()
    if exercise is not None:
        exercises = (exercise,)
    elif file_path.suffix == notebooks.NOTEBOOK_SUFFIX:
        exercises = exercises_in(file_path, named=parent.session.isinitpath(file_path))
    if not exercises:
        return None
    config = parent.config
    kind = config.getoption("dojo_bench")
    file: ExerciseFile = ExerciseFile.from_parent(parent, path=file_path)
    file.exercises = exercises
    file.grader = FileGrader(file_path, kind, seed_of(config), watching=records_timelines(config))
    return file


def seed_of(config: pytest.Config) -> int:
    """The seed of this run: that of the option, or else the public one."""
    asked = config.getoption("dojo_seed")
    if asked is None:
        return PUBLIC_SEEDS[0]
    return int(asked)


def option_name(config: pytest.Config, name: str) -> str:
    """How an option is written in this run: `--dojo-hints`, or `--hints` with short options.

    A conftest.py adds the short ones.
    """
    if config.getoption("dojo_short_options", False):
        return f"--{name}"
    return f"--dojo-{name}"


def exercises_in(path: Path, named: bool) -> tuple[Exercise, ...]:
    """The exercises of which a notebook defines a function.

    Many notebooks define `evaluate` or `predict`. So one that is not `named` on the command line
    counts only if its path or its text mentions the day. Raises BadDay where a day cannot be
    imported.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return ()
    exercises: list[Exercise] = []
    for day in day_names():
        is_for_day = named or day in path.stem
        mentions_day = day in path.parts or day.encode() in text
        if not is_for_day and not mentions_day:
            continue
        try:
            cells = notebooks.read_notebook(path)
        except notebooks.NotANotebook:
            if not is_for_day:
                return ()
            # Every function then fails with the reason why the file cannot be read.
            return exercises_of(day)
        defined = bindings.names_in_notebook(cells)
        for exercise in exercises_of(day):
            functions = {function.name for function in exercise.functions}
            if not functions.isdisjoint(defined):
                exercises.append(exercise)
    return tuple(exercises)


def missing_files(checks: Sequence[ReportedCheck], config: pytest.Config) -> list[MissingFile]:
    """The exercise files that a folder lacks, in a run of whole folders; none in other runs.

    A folder with less than half of a day's files is not taken for the whole day: there, only
    renamed ones are found. Raises BadDay where a day cannot be imported.
    """
    for option in SELECTING_OPTIONS:
        if config.getoption(option, None):
            return []
    for argument in config.args:
        path, _, _ = argument.partition("::")
        if not Path(config.invocation_params.dir, path).is_dir():
            return []
    graded = set()
    places = set()
    for check in checks:
        graded.add(check.exercise.stem)
        if check.path.suffix == ".py":
            day = day_of_file(check.path) or ""
            places.add((check.path.parent, day))
    missing: list[MissingFile] = []
    for folder, day in sorted(places):
        missing += _files_missing_in(folder, day, graded)
    return missing


def _files_missing_in(folder: Path, day: str, graded: set[str]) -> Iterator[MissingFile]:
    """Yield the files of a day that a folder lacks. `graded` are the stems of those that it has.

    A file that may be a renamed one counts always, others only if the folder has half of the day.
    Raises BadDay where an exercise cannot be imported, and KeyError for an unknown day.
    """
    stems = registered_days()[day].modules
    absent = sorted(set(stems) - graded)
    has_half = len(absent) <= len(stems) // 2
    other_names = []
    for path in sorted(folder.glob("*.py")):
        if path.stem not in stems:
            other_names.append(path.name)
    for stem in absent:
        instead = _file_with_number_of(stem, other_names)
        exercise = exercise_for(folder / f"{stem}.py")
        if exercise is not None and (instead or has_half):
            yield MissingFile(folder, exercise, instead)


def _file_with_number_of(stem: str, names: Sequence[str]) -> str:
    """The first name that begins with the number of an exercise; else an empty text."""
    number = re.match(r"\d+", stem)
    if number is None:
        return ""
    for name in names:
        if name.startswith(number[0]):
            return name
    return ""


def _line_of_function(path: Path, function: str) -> int | None:
    """The line of a function's last definition, counted from 0 as pytest wants it.

    Test explorers jump there. None for a notebook, or if it is not found.
    """
    if path.suffix != ".py":
        return None
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    definition = rf"^(?:def {function}\b|{function}\s*[:=])"
    line = None
    for match in re.finditer(definition, source, re.M):
        line = source.count("\n", 0, match.start())
    return line
