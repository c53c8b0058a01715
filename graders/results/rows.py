"""What does a file of class results hold? The header of a run, and a row for each submission, exercise and check."""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal

import msgspec

from graders.results.checks import Outcome

VERSION: Final = 1

Points = Annotated[float, msgspec.Meta(ge=0, description="Points, rounded to 6 places.")]
Line = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Status(enum.StrEnum):
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
    status: Status
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
    version: Literal[1] = VERSION
    submissions: list[SubmissionRow] = []
