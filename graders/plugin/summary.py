"""How far is the student? Points per exercise, and one command for what to do next."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from graders.plugin.telling import NOT_RUN, Told
from graders.results import Outcome

WIDTH = 20
# What is worth doing first: what is begun before what is not, and never what waits for something else.
ORDER = (Outcome.FAILED, Outcome.TODO)


@dataclass
class Row:
    """One exercise in one file."""

    exercise: str
    got: float = 0.0
    most: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, check: Told) -> None:
        self.most += check.most
        self.got += check.got
        self.outcomes[check.outcome] += 1

    @property
    def state(self) -> str:
        if set(self.outcomes) == {Outcome.PASSED}:
            return "done"
        if set(self.outcomes) == {Outcome.TODO}:
            return "to do"
        names = (Outcome.FAILED, Outcome.ERROR, Outcome.BLOCKED, Outcome.TODO, NOT_RUN)
        return ", ".join(f"{self.outcomes[name]} {name}" for name in names if self.outcomes[name])


def write_summary(reporter: pytest.TerminalReporter, checks: Sequence[Told]) -> None:
    if not any(check.ran for check in checks):
        return
    rows: dict[tuple[str, str], Row] = {}
    for check in checks:
        key = os.path.relpath(check.path), check.exercise
        rows.setdefault(key, Row(key[1])).add(check)
    reporter.section("points", sep="=")
    wide = max(len(row.exercise) for row in rows.values())
    several = len({exercise for _, exercise in rows}) < len(rows)
    file = None
    for (path, _), row in rows.items():
        if several and path != file:
            file = path
            reporter.write_line(path, bold=True)
        _write_row(reporter, row, wide)
    got, most = sum(row.got for row in rows.values()), sum(row.most for row in rows.values())
    reporter.write_line(f"{'in all':{wide}}  {'':{WIDTH}}  {got:5.4g} of {most:g}", bold=True)
    _write_notes(reporter, checks)
    _write_next(reporter, checks, got == most)


def bar(got: float, most: float) -> str:
    """Full only when everything is there, and empty only when nothing is."""
    share = got / most if most else 0.0
    filled = WIDTH if share >= 1 else min(max(round(WIDTH * share), int(share > 0)), WIDTH - 1)
    return "█" * filled + "░" * (WIDTH - filled)


def _write_row(reporter: pytest.TerminalReporter, row: Row, wide: int) -> None:
    colour = {"done": {"green": True}, "to do": {"light": True}}.get(row.state, {"yellow": True})
    reporter.write(f"{row.exercise:{wide}}  ")
    reporter.write(bar(row.got, row.most), **colour)
    reporter.write(f"  {row.got:5.4g} of {row.most:<4g}  ")
    reporter.write(f"{row.state}\n", **colour)  # write_line would begin a new line after a run without failures


def _write_notes(reporter: pytest.TerminalReporter, checks: Sequence[Told]) -> None:
    """Files that stopped half-way although what was graded had been defined before."""
    for note in dict.fromkeys(check.note for check in checks if check.note):
        reporter.write_line(f"note: {note}", yellow=True)


def _write_next(reporter: pytest.TerminalReporter, checks: Sequence[Told], everything: bool) -> None:
    for outcome in ORDER:
        for check in checks:
            if check.outcome != outcome:
                continue
            name = f"`{check.function}`"
            what = f"write {name}" if outcome is Outcome.TODO else check.claim
            if name not in what:
                what = f"{name}: {what}"
            reporter.write_line(f"next: {what}", bold=True)
            node = f"{os.path.relpath(check.path)}::{check.function}"
            reporter.write_line(f"      pytest {shlex.quote(node)}", cyan=True)
            return
    if everything and all(check.ran for check in checks):
        reporter.write_line("Everything passes. Well done!", green=True, bold=True)
