"""What is told while an estimate runs: one line, which never mixes with what the script prints."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_cuda.estimate.progress import EstimateProgress, ProgressLine, showing_progress

ERASE = "\r\x1b[2K"


class Terminal(io.StringIO):
    """A terminal that keeps what was written to it."""

    def isatty(self) -> bool:
        """True."""
        return True


def watched(**changes: Any) -> Any:
    """A run that has come as far as `changes` say."""
    memory = SimpleNamespace(events=[0] * 1200, memory=SimpleNamespace(peak=1 << 30))
    usual = {"steps": [], "passes": 0, "has_ended": False, "memory": memory}
    return SimpleNamespace(**{**usual, **changes})


def test_the_line_makes_way_for_what_is_printed() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    with line.making_way([terminal]):
        line.show("1 of 3 steps")
        print("loss 0.5", file=terminal)
        line.show("2 of 3 steps")
    assert terminal.getvalue() == f"{ERASE}1 of 3 steps{ERASE}loss 0.5\n{ERASE}2 of 3 steps{ERASE}"


def test_nothing_is_shown_beside_a_line_that_the_script_has_begun() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    with line.making_way([terminal]):
        terminal.write("\r 25% |##      |")
        line.show("1 of 3 steps")
    assert terminal.getvalue() == "\r 25% |##      |\n"


def test_a_line_that_stays_begins_a_new_one() -> None:
    log = io.StringIO()
    line = ProgressLine(log)
    with line.making_way([log]):
        log.write("\r 25% |##      |")
        line.add("dojo estimate: 1 of 3 steps")
        line.add("dojo estimate: 2 of 3 steps")
    assert log.getvalue() == (
        "\r 25% |##      |\ndojo estimate: 1 of 3 steps\ndojo estimate: 2 of 3 steps\n"
    )


def test_the_streams_are_as_before_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with showing_progress(EstimateProgress(3), "dojo estimate"):
        assert "write" in vars(terminal)
    assert "write" not in vars(terminal)


@pytest.mark.parametrize(
    ("run", "phase"),
    [
        (watched(), "no step yet"),
        (watched(passes=2), "no step yet, 2 calls of a model"),
        (watched(passes=2, steps=[0]), "1 of 3 steps"),
        (watched(steps=[0, 0, 0], has_ended=True), "working out memory and time"),
    ],
)
def test_it_is_told_how_far_the_script_is(run: Any, phase: str) -> None:
    progress = EstimateProgress(3)
    assert progress.text() == "importing torch · 0 s"
    progress.watched = run
    assert progress.text() == f"{phase} · 1,200 allocations · peak 1 GiB · 0 s"
    progress.do_next("estimating again with autocast")
    assert progress.text() == "estimating again with autocast · 0 s"


def test_elsewhere_a_line_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("virtual_cuda.estimate.progress._SELDOM", 0.01)
    progress = EstimateProgress(3)
    with showing_progress(progress, "dojo estimate"):
        while "\n" not in (told := capsys.readouterr().err):
            pass
    assert told.startswith("dojo estimate: importing torch · ")
