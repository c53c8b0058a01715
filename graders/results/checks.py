"""What came of one check on one function?"""

from __future__ import annotations

import enum

import msgspec


class Outcome(enum.StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TODO = "to do"  # the stub is still a stub
    BLOCKED = "blocked"  # another check has to pass first
    ERROR = "error"  # ours: costs the student nothing, and is loud


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
    blocked_by: str | None = None
    at: tuple[str, ...] = ()  # signs in the source of what happened, where no line is known

    @property
    def id(self) -> str:
        return f"{self.exercise}::{self.function}::{self.check}"

    @property
    def points(self) -> float:
        return self.max_points if self.outcome in (Outcome.PASSED, Outcome.ERROR) else 0.0
