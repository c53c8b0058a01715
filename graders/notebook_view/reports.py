"""What is there to be told of a check in a notebook? Data alone: how it looks is for text and HTML to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from graders.bench.ledger.timeline import Timeline
from graders.curriculum import Exercise
from graders.curriculum.exercise import Function
from graders.notebook_view.live import Live
from graders.notebook_view.moving import Moves
from graders.plugin.feedback import DOCS, compose
from graders.results import CheckResult, Outcome

DONE: Final = "Everything that is defined here passes. Well done!"
STUB: Final = "still to do: fill in its cell, run it, and check again."
STOPPED: Final = (
    "Interrupted while `{name}` was being checked; nothing is said of it, nor of what was to come after it."
)
Part = tuple[str, str]  # a label and its text
Picture = tuple[Timeline, Timeline | None]  # what the student's function did, and the reference's
_NO_FILE: Final = Path("cell")


@dataclass(frozen=True)
class Verdict:
    """One check."""

    outcome: Outcome
    claim: str
    points: float
    most: float
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Checked:
    """One function."""

    name: str
    exercise: str
    title: str
    verdicts: tuple[Verdict, ...]
    hints: tuple[Part, ...] = ()
    moves: Moves | None = None
    picture: Picture | None = None

    @property
    def points(self) -> float:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def most(self) -> float:
        return sum(verdict.most for verdict in self.verdicts)

    @property
    def outcomes(self) -> set[Outcome]:
        return {verdict.outcome for verdict in self.verdicts}


@dataclass(frozen=True)
class Row:
    """One exercise of which something is defined."""

    exercise: str
    points: float
    most: float
    state: str


@dataclass(frozen=True)
class Table:
    """The points of everything that is defined."""

    rows: tuple[Row, ...]
    following: str  # what to check next, as code; empty when there is nothing left

    @property
    def done(self) -> bool:
        return bool(self.rows) and all(row.points == row.most for row in self.rows)


@dataclass(frozen=True)
class Report:
    """What one call of `check` has to say."""

    checked: tuple[Checked, ...] = ()
    table: Table | None = None
    said: tuple[str, ...] = ()

    def __repr__(self) -> str:
        from graders.notebook_view.as_text import text

        return text(self)

    def _repr_html_(self) -> str:
        from graders.notebook_view.as_html import html

        return html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def checked(
    live: Live,
    exercise: Exercise,
    function: Function,
    results: Sequence[CheckResult],
    hints: int,
    moves: Moves | None = None,
    picture: Picture | None = None,
) -> Checked:
    """The results of one function, worded."""
    verdicts = tuple(_verdict(result, live, exercise) for result in results)
    begun = any(result.outcome is Outcome.FAILED for result in results)
    shown = hints if begun or hints > 1 else 0
    if all(result.outcome is Outcome.PASSED for result in results):
        shown = 0
    failed = next((result for result in results if result.outcome is Outcome.FAILED), None)
    every = function.hints_for(failed.misconception, failed.check) if failed else function.hints
    shown_hints = _hints(every, exercise, shown, live.name)
    return Checked(function.name, exercise.stem, exercise.title, verdicts, shown_hints, moves, picture)


def _verdict(result: CheckResult, live: Live, exercise: Exercise) -> Verdict:
    # The place is a line of a cell, which is in no file that could be read.
    headline, parts = compose(msgspec.structs.replace(result, line=None), exercise, _NO_FILE, 0)
    if result.outcome is Outcome.FAILED:
        place = [("line", live.place(result.line))] if result.line is not None else []
        at = next((i for i, (label, _) in enumerate(parts) if label not in ("happened", "expected")), len(parts))
        parts = [*parts[:at], *place, *parts[at:]]
    elif result.outcome is Outcome.BLOCKED:
        parts = [("waits for", f"`{result.blocked_by}`, which has to pass first")]
    elif result.outcome is Outcome.ERROR:
        parts = [("our fault", headline), *[part for part in parts if part[0] == "happened"]]
    elif result.outcome is Outcome.TODO:
        parts = [("to do", result.happened)] if result.happened else []
    return Verdict(result.outcome, result.claim, result.points, result.max_points, tuple(parts))


def _hints(every: Sequence[str], exercise: Exercise, count: int, name: str) -> tuple[Part, ...]:
    shown = every[: max(count, 0)]
    parts = [(f"hint {number}", hint) for number, hint in enumerate(shown, 1)]
    if 0 < len(shown) < len(every):
        parts.append(("", f"hint {len(shown)} of {len(every)}; one more: check({name}, hints={count + 1})"))
    elif shown and exercise.reading:
        parts.append(("read", "\n".join(DOCS + page.removeprefix(DOCS) for page in exercise.reading)))
    return tuple(parts)
