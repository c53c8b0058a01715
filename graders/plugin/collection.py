"""How do exercise files become pytest items? One item for each check, from the file's name alone; torch comes later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from graders.curriculum import exercise_for
from graders.curriculum.exercise import Check, Exercise, Function
from graders.plugin.grading import Grader
from graders.results import CheckResult, Outcome

SECONDS: Final = 60
RESULT: Final = pytest.StashKey[CheckResult]()


class ExerciseFile(pytest.File):
    """A student's file of a known exercise."""

    exercise: Exercise
    grader: Grader

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        for function in self.exercise.functions:
            yield FunctionChecks.from_parent(self, name=function.name, function=function)


class FunctionChecks(pytest.Collector):
    """The checks of one function."""

    def __init__(self, function: Function, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

    def collect(self) -> Iterator[pytest.Item]:
        for check in self.function.checks:
            item = CheckItem.from_parent(self, name=check.name, check=check)
            item.add_marker(pytest.mark.timeout(SECONDS))
            yield item


class NotAPass(Exception):
    """A check that did not pass; its text is made by the report."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result.happened or result.outcome)
        self.result = result


class CheckItem(pytest.Item):
    """One check."""

    def __init__(self, check: Check, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check = check

    def runtest(self) -> None:
        functions, file = self.parent, self.getparent(ExerciseFile)
        assert isinstance(functions, FunctionChecks)
        assert file is not None
        result = file.grader.result(file.exercise, functions.function, self.check)
        self.stash[RESULT] = result
        if result.outcome is not Outcome.PASSED:
            raise NotAPass(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from graders.plugin.feedback import feedback

        if isinstance(excinfo.value, NotAPass):
            file = self.getparent(ExerciseFile)
            assert file is not None
            hints = int(self.config.getoption("hints"))
            return feedback(excinfo.value.result, file.exercise, file.path, hints)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.parent.name}: {self.check.claim}" if self.parent else self.check.claim


class Nothing(pytest.File):
    """What pytest's own collector finds in an exercise file: no test functions, and it must not import it."""

    def collect(self) -> Iterator[pytest.Item]:
        yield from ()


def collect_file(file_path: Path, parent: pytest.Collector) -> ExerciseFile | None:
    if file_path.suffix != ".py":
        return None
    exercise = exercise_for(file_path)
    if exercise is None:
        return None
    file: ExerciseFile = ExerciseFile.from_parent(parent, path=file_path)
    file.exercise = exercise
    config = parent.config
    file.grader = Grader(file_path, config.getoption("bench"), int(config.getoption("seed")))
    return file
