"""How do results of checks become rows? Grouped by exercise, with the hint, the reason and the place beside each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from graders.results.checks import CheckResult, Outcome
from graders.results.rows import CheckRow, Definition, ExerciseRow

PLACES: Final = 6
OURS: Final = "This is gpudojo's fault, not yours; it costs you no points. Please report it."


class DeclaredFunction(Protocol):
    """What is needed of a `curriculum.Function`, which this layer does not know."""

    @property
    def name(self) -> str: ...
    def hints_for(self, *keys: str | None) -> tuple[str, ...]: ...


class DeclaredExercise(Protocol):
    """What is needed of a `curriculum.Exercise`."""

    @property
    def stem(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def functions(self) -> Sequence[DeclaredFunction]: ...


class NamedMistake(Protocol):
    """What is needed of a `curriculum.Misconception`."""

    @property
    def name(self) -> str: ...
    @property
    def why(self) -> str: ...


def total(numbers: Iterable[float]) -> float:
    """A sum of points as people add them: 0.1 and 0.2 are 0.3."""
    return round(math.fsum(numbers), PLACES)


def rows_of(
    results: Sequence[CheckResult],
    exercises: Iterable[DeclaredExercise],
    hints: int = 1,
    *,
    misconceptions: Mapping[str, NamedMistake] | None = None,
    definitions: Iterable[Definition] = (),
) -> list[ExerciseRow]:
    """A row for each of the exercises that has results, in the order of `exercises`; results keep their order.

    `hints` is how many of a function's hints are shown where a check failed. A check's file and cell are those of
    the graded definition of its function, where `definitions` names one.
    """
    places = {definition.function: definition for definition in definitions}
    by_exercise: dict[str, list[CheckResult]] = {}
    for result in results:
        by_exercise.setdefault(result.exercise, []).append(result)
    rows = []
    for exercise in exercises:
        own = by_exercise.pop(exercise.stem, [])
        if not own:
            continue
        functions = {function.name: function for function in exercise.functions}
        checks = [
            _row(
                result,
                points,
                _hint(functions.get(result.function), result, hints),
                misconceptions or {},
                places.get(result.function),
            )
            for result, points in zip(own, rounded([result.max_points for result in own]), strict=True)
        ]
        score, worth = total(check.points for check in checks), total(check.max_points for check in checks)
        rows.append(ExerciseRow(exercise.stem, exercise.title, score, worth, checks))
    if by_exercise:
        # A result that belongs nowhere would be lost from the score without a word.
        raise ValueError(f"results of exercises that were not given: {', '.join(sorted(by_exercise))}")
    return rows


def rounded(points: Sequence[float]) -> list[float]:
    """The points, each rounded so that what they add up to is the rounded sum: three thirds stay a whole."""
    sums = [0.0] + [total(points[: count + 1]) for count in range(len(points))]
    return [round(after - before, PLACES) for before, after in itertools.pairwise(sums)]


def _hint(function: DeclaredFunction | None, result: CheckResult, count: int) -> str:
    """The first hints for what happened."""
    if function is None:
        return ""
    return "\n".join(function.hints_for(result.misconception, result.check)[: max(count, 0)])


def _row(
    result: CheckResult,
    max_points: float,
    hint: str,
    misconceptions: Mapping[str, NamedMistake],
    place: Definition | None,
) -> CheckRow:
    failed = result.outcome is Outcome.FAILED
    mistake = misconceptions.get(result.misconception or "")
    return CheckRow(
        id=result.id,
        function=result.function,
        outcome=result.outcome,
        points=max_points if result.outcome in (Outcome.PASSED, Outcome.ERROR) else 0.0,
        max_points=max_points,
        message=_message(result),
        line=result.line,
        misconception=result.misconception,
        claim=result.claim,
        happened=result.happened,
        expected=result.expected,
        why=f"{mistake.name}: {' '.join(mistake.why.split())}" if mistake else "",
        hint=hint if failed else "",
        blocked_by=result.blocked_by,
        file=place.file if place else None,
        cell=place.cell if place else None,
    )


def _message(result: CheckResult) -> str:
    """One line, for places that have room for one."""
    match result.outcome:
        case Outcome.PASSED:
            return ""
        case Outcome.TODO:
            return f"to do: {result.happened or f'`{result.function}` is still a stub'}."
        case Outcome.BLOCKED:
            return f"blocked: the check `{result.blocked_by}` of `{result.function}` has to pass first."
        case Outcome.ERROR:
            return OURS
        case Outcome.FAILED:
            return f"{result.happened}; expected {result.expected}" if result.expected else result.happened
