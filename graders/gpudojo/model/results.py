"""Results of checks, submissions and classes."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from gpudojo.model.exercise import Exercise, Function, Misconception


class Outcome(enum.StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TODO = "to do"  # the stub is still a stub
    BLOCKED = "blocked"  # another check has to pass first
    ERROR = "error"  # in the exercise or in gpudojo: costs the student nothing


class CheckResult(msgspec.Struct, frozen=True):
    """One claim about one function of one submission."""

    exercise: str
    function: str
    check: str
    claim: str
    outcome: Outcome
    max_points: float
    happened: str = ""
    expected: str = ""
    line: int | None = None
    misconception: str | None = None
    blocked_by: str | None = None  # a check of the same function, or `function::check`
    at: tuple[str, ...] = ()  # patterns in the source to show, where no line is known
    ran: tuple[tuple[int, int], ...] | None = None  # lines that the failing call executed

    @property
    def id(self) -> str:
        return f"{self.exercise}::{self.function}::{self.check}"

    @property
    def points(self) -> float:
        return self.max_points if self.outcome in (Outcome.PASSED, Outcome.ERROR) else 0.0


RESULTS_VERSION: Final = 1

Points = Annotated[float, msgspec.Meta(ge=0, description="Points, rounded to 6 places.")]
Line = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class SubmissionStatus(enum.StrEnum):
    """What became of a submission as a whole."""

    GRADED = "graded"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"
    UNREADABLE = "unreadable"


class CheckRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One claim about one function, and what a student should read about it."""

    id: str  # "04_modifying_training_loop_gpu::train_epoch::runs"
    function: str
    outcome: Outcome
    points: Points
    max_points: Points
    message: str = ""  # the one line to show where there is room for one; empty when passed
    line: Line | None = None
    misconception: str | None = None  # its key in misconceptions.toml
    claim: str = ""
    happened: str = ""
    expected: str = ""
    why: str = ""  # the misconception's name and sentences
    hint: str = ""
    blocked_by: str | None = None  # a check of the same function
    file: str | None = None
    cell: Line | None = None  # in a notebook: which code cell; `line` then counts in that cell


class ExerciseRow(msgspec.Struct, frozen=True):
    """One exercise of one submission."""

    exercise: str
    title: str
    score: Points
    max_score: Points
    checks: list[CheckRow] = []


class Definition(msgspec.Struct, frozen=True):
    """Which definition of a function was graded."""

    function: str
    file: str
    line: Line | None = None
    cell: Line | None = None
    note: str = ""  # for example that it is the last of three


class SubmissionRow(msgspec.Struct, frozen=True):
    """One submission. A status that is not graded has a reason; it may still have exercises that were graded before."""

    submission: str
    status: SubmissionStatus
    score: Points
    max_score: Points
    exercises: list[ExerciseRow] = []
    reason: str = ""
    student: str | None = None
    identifier: str | None = None  # the id by which the platform it came from knows the student
    naming: str | None = None  # which platform's naming of files was recognised
    definitions: list[Definition] = []
    notes: list[str] = []
    needs_human: list[str] = []
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    peak_bytes: Count = 0
    digest: str = ""
    output: str = ""  # what the student's code printed, cut off where it was too much
    layers: list[str] = []  # the layers of isolation that held for it
    record: str = ""  # the key of what is kept of its run, beside the results


class ClassResults(msgspec.Struct, frozen=True):
    """One run of the grader over a class. Without submissions it is the header of a file."""

    day: str
    bench: str
    torch: str
    gpudojo: str
    max_score: Points
    layers: dict[str, str] = {}  # a layer of isolation -> "" if it held, otherwise the reason why not
    reference: str = ""  # the key of what is kept of the reference's run
    version: Literal[1] = RESULTS_VERSION
    submissions: list[SubmissionRow] = []


PLACES: Final = 6
OURS: Final = "This is an error in the exercise, not in your code. It costs you no points. Please report it."


def total(numbers: Iterable[float]) -> float:
    """A sum of points as people add them: 0.1 and 0.2 are 0.3."""
    return round(math.fsum(numbers), PLACES)


def rows_of(
    results: Sequence[CheckResult],
    exercises: Iterable[Exercise],
    hints: int = 1,
    *,
    misconceptions: Mapping[str, Misconception] | None = None,
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
        checks = []
        for result, points in zip(own, rounded([result.max_points for result in own]), strict=True):
            function = functions.get(result.function)
            mistake = (misconceptions or {}).get(result.misconception or "")
            every = hints_on(result, function, mistake) if function else ()
            hint = "\n".join(every[: max(hints, 0)])
            checks.append(_row(result, points, hint, mistake, places.get(result.function)))
        score, worth = total(check.points for check in checks), total(check.max_points for check in checks)
        rows.append(ExerciseRow(exercise.stem, exercise.title, score, worth, checks))
    if by_exercise:
        # A result that belongs nowhere would be lost from the score without a word.
        raise ValueError(f"results of exercises that were not given: {', '.join(sorted(by_exercise))}")
    return rows


def hints_on(result: CheckResult, function: Function, mistake: Misconception | None) -> tuple[str, ...]:
    """The hints about one failure, and no others; none where nothing could run, as of a function that is missing."""
    if function.is_value:  # the hints of a mistake are about code that makes it, not about an answer
        return function.hints_for(result.check)
    if mistake is None and result.ran == ():
        return ()
    return function.hints_for(result.misconception, result.check, mistake=mistake)


def rounded(points: Sequence[float]) -> list[float]:
    """The points, each rounded so that what they add up to is the rounded sum: three thirds stay a whole."""
    sums = [0.0] + [total(points[: count + 1]) for count in range(len(points))]
    return [round(after - before, PLACES) for before, after in itertools.pairwise(sums)]


def _row(
    result: CheckResult,
    max_points: float,
    hint: str,
    mistake: Misconception | None,
    place: Definition | None,
) -> CheckRow:
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
        hint=hint if result.outcome is Outcome.FAILED else "",
        blocked_by=result.blocked_by,
        file=place.file if place else None,
        cell=place.cell if place else None,
    )


def blocked(result: CheckResult) -> str:
    """Which check has to pass first; one of another function is named as `function::check`."""
    function, _, check = (result.blocked_by or "").rpartition("::")
    return f"blocked: the check `{check}` of `{function or result.function}` has to pass first."


def _message(result: CheckResult) -> str:
    """One line, for places that have room for one."""
    match result.outcome:
        case Outcome.PASSED:
            return ""
        case Outcome.TODO:
            return f"to do: {result.happened or f'`{result.function}` is still a stub'}."
        case Outcome.BLOCKED:
            return blocked(result)
        case Outcome.ERROR:
            return OURS
        case Outcome.FAILED:
            return f"{result.happened}; expected {result.expected}" if result.expected else result.happened
