"""The closing summary counts what students did, and nothing else."""

from __future__ import annotations

import io

from gpudojo.classes import judging
from gpudojo.classes.display import Display
from gpudojo.model.catalogue import day
from gpudojo.model.results import CheckRow, ExerciseRow, Outcome, SubmissionRow, SubmissionStatus
from rich.console import Console

WRONG = "03_moving_batches::move_batch::tensors_moved"


def row(name: str, status: SubmissionStatus, exercises: list[ExerciseRow], reason: str = "") -> SubmissionRow:
    return SubmissionRow(name, status, 0.0, 100.0, exercises, reason)


def test_what_could_not_be_read_failed_no_check() -> None:
    screen = Console(file=io.StringIO(), width=100)
    display = Display(screen)
    torn = judging.unreadable("the archive is damaged", day("day8"))
    failed = CheckRow(WRONG, "move_batch", Outcome.FAILED, 0, 1)
    display.begins(3, 0, [])
    for name in ("a", "b"):
        display.graded(row(name, torn.status, torn.exercises, torn.reason), ran=False)
    display.graded(
        row("c", SubmissionStatus.GRADED, [ExerciseRow("03_moving_batches", "Moving", 0, 1, [failed])]), ran=True
    )
    display.summary(1.0, 1)
    assert isinstance(screen.file, io.StringIO)
    said = screen.file.getvalue()
    assert "2 unreadable, 1 graded" in said
    hardest = said.partition("Most-failed checks\n")[2].splitlines()
    assert hardest[0].split() == ["1", WRONG]
    assert hardest[1:] == []
