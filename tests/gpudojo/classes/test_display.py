"""The closing summary counts what students did, and nothing else."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from gpudojo.classes import judging
from gpudojo.classes.class_grading import GradedClass
from gpudojo.classes.class_summary import print_summary
from gpudojo.classes.class_tally import ClassTally
from gpudojo.classes.display import Display
from gpudojo.classes.runners import GradingTask
from gpudojo.classes.submission_run import SubmissionRun
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.results import (
    CheckRow,
    ExerciseRow,
    Grade,
    Outcome,
    SubmissionRow,
    SubmissionStatus,
)
from gpudojo.sandbox.protocol import RunOptions
from gpudojo.submissions.entries import IgnoredPath
from msgspec.structs import replace
from rich.console import Console

WRONG = "03_moving_batches::move_batch::tensors_moved"


def row(
    name: str, status: SubmissionStatus, exercises: list[ExerciseRow], reason: str = ""
) -> SubmissionRow:
    return SubmissionRow(name, status, 0.0, 100.0, exercises, reason)


def outcome(*rows: SubmissionRow) -> GradedClass:
    tally = ClassTally()
    for each in rows:
        tally.count_row(each)
    return GradedClass(
        Path("results.json"),
        len(rows),
        len(rows),
        1.0,
        {},
        tally,
        [],
        [],
        [],
        stale=[],
        unusual_rules=[],
    )


def test_what_could_not_be_read_failed_no_check() -> None:
    screen = Console(file=io.StringIO(), width=100)
    torn = judging.judge_unreadable("the archive is damaged", exercises_of("day8"))
    failed = CheckRow(WRONG, "move_batch", Outcome.FAILED, 0, 1)
    wrong = row(
        "c", SubmissionStatus.GRADED, [ExerciseRow("03_moving_batches", "Moving", 0, 1, [failed])]
    )
    both = [row(name, torn.status, torn.exercises, torn.reason) for name in "ab"]
    print_summary(screen, outcome(*both, wrong))
    assert isinstance(screen.file, io.StringIO)
    said = screen.file.getvalue()
    assert "3 students: 2 unreadable, 1 graded. 3 handed in, 3 run now in 1.0 s" in said
    hardest, _, review = said.partition("Most-failed checks\n")[2].partition("\n\n")
    assert review.split("\n")[1:3] == [f"       {name}: the archive is damaged" for name in "ab"]
    assert [line.split() for line in hardest.splitlines()] == [
        ["failed", "absent", "attempted"],
        ["1", "0", "1", WRONG],
    ]


def test_no_name_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    hostile = "a\x1b]0;owned\x07\x9b2J\u202egp.exe\r\x08\udcff\u2028"
    screen = Console(file=io.StringIO(), width=200)
    display = Display(screen)
    display.report_submissions(2, 0, [IgnoredPath(tmp_path / hostile, hostile)])
    display.report_isolation({})
    reviewed = SubmissionRow(
        hostile, SubmissionStatus.CRASHED, 0.0, 100.0, reason=hostile, needs_human=[hostile]
    )
    options = RunOptions(day="day8", bench="virtual", seeds={}, known=frozenset())
    display.report_running(
        [GradingTask(hostile, SubmissionRun("1", {}, options), lambda record: None, -100.0)]
    )
    display.report_verdict(hostile, SubmissionStatus.CRASHED, ran=True)
    print_summary(screen, outcome(reviewed))
    assert isinstance(screen.file, io.StringIO)
    said = screen.file.getvalue()
    assert (
        said.count(
            "a⟨U+001B⟩]0;owned⟨U+0007⟩⟨U+009B⟩2J⟨U+202E⟩gp.exe⟨U+000D⟩⟨U+0008⟩⟨U+DCFF⟩⟨U+2028⟩"
        )
        == 5
    )
    assert said.replace("\n", "").isprintable()


def test_a_file_gets_names_and_reasons_as_they_are_on_one_line_each() -> None:
    screen = Console(file=io.StringIO(), width=80, highlight=False)
    reason = "the archive [bold]is[/bold] damaged " + "and long " * 20
    with Display(screen) as display:
        display.report_submissions(1, 0, [])
        display.report_verdict("a", SubmissionStatus.UNREADABLE, ran=True)
    print_summary(screen, outcome(row("a", SubmissionStatus.UNREADABLE, [], reason)))
    assert isinstance(screen.file, io.StringIO)
    assert f"       a: {reason}".rstrip() in [
        line.rstrip() for line in screen.file.getvalue().split("\n")
    ]


@pytest.mark.parametrize(
    ("grade", "said"),
    [
        (None, "Scores in percent: mean 50.0"),
        (Grade(2, 10), "Published points in percent, of those who handed in: mean 20.0"),
    ],
)
def test_the_mean_says_which_points_it_counts(grade: Grade | None, said: str) -> None:
    screen = Console(file=io.StringIO(), width=100)
    print_summary(
        screen, outcome(SubmissionRow("a", SubmissionStatus.GRADED, 50.0, 100.0, grade=grade))
    )
    assert isinstance(screen.file, io.StringIO)
    assert f"\n{said}\n" in screen.file.getvalue()


def test_a_group_is_counted_as_students() -> None:
    screen = Console(file=io.StringIO(), width=100)
    both = [replace(row(name, SubmissionStatus.GRADED, []), group="team") for name in "ab"]
    print_summary(screen, outcome(*both))
    assert isinstance(screen.file, io.StringIO)
    assert "2 students: 2 graded." in screen.file.getvalue()
