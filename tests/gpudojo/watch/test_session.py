"""Which process of `dojo watch` grades a save: real ones, driven by files that are saved."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gpudojo.watch import session as session_module
from gpudojo.watch.course import Course, ExerciseWork, SkippedBreakpoint
from gpudojo.watch.session import Session
from gpudojo.watch.standby import Standby

REPOSITORY = Path(__file__).resolve().parents[3]
DEVICE = "01_checking_device.py"
PATIENCE = 120.0


class CountedStandby(Standby):
    """Notes which processes were started, and which were killed before they were ready."""

    started: ClassVar[list[CountedStandby]] = []
    is_refused: ClassVar[bool] = False
    killed_early: ClassVar[list[CountedStandby]] = []

    def __init__(self, *arguments: Any) -> None:
        if self.is_refused:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        super().__init__(*arguments)
        self.started.append(self)

    def kill(self) -> None:
        if not self.ready:
            self.killed_early.append(self)
        super().kill()


class RunningSession:
    """A session over one solved exercise, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / DEVICE
        self.text = (REPOSITORY / "reference" / "day8" / DEVICE).read_text(encoding="utf-8")
        self.path.write_text(self.text, encoding="utf-8")
        course = Course(folder)
        self.work: ExerciseWork = course.works[0]
        self.session = Session(course, lambda event, work: None)
        self.thread = threading.Thread(target=self.session.handle_events)
        self.thread.start()

    def save(self, *lines: str) -> None:
        """Save the solution with these lines at the end of its imports."""
        added = "import torch\n" + "".join(f"{line}\n" for line in lines)
        self.path.write_text(self.text.replace("import torch\n", added, 1), encoding="utf-8")

    def until(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end, (self.work.state, self.work.results)
            time.sleep(0.02)

    def judges(self, line: str) -> bool:
        """True if the newest verdict is about a text with this line."""
        return line in self.work.about.get("select_device", "").split("\n")

    def close(self) -> None:
        self.session.close()
        self.thread.join()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningSession]:
    monkeypatch.setattr(CountedStandby, "started", [])
    monkeypatch.setattr(CountedStandby, "killed_early", [])
    monkeypatch.setattr(session_module, "Standby", CountedStandby)
    folder = tmp_path / "day8"
    folder.mkdir()
    running = RunningSession(folder)
    yield running
    running.close()


def test_saves_never_end_a_process_that_loads_and_the_newest_is_judged(
    running: RunningSession,
) -> None:
    for number in range(12):
        running.save(f"number = {number}")
        time.sleep(0.2)
    running.until(lambda: running.judges("number = 11"))
    assert running.work.state == "done"
    assert CountedStandby.killed_early == []
    # While the next one loads, the process that has graded grades again.
    started = len(CountedStandby.started)
    for number in range(12, 15):
        running.save(f"number = {number}")
        running.until(lambda number=number: running.judges(f"number = {number}"))  # type: ignore[misc]
    assert len(CountedStandby.started) <= started + 3
    assert CountedStandby.killed_early == []


def test_a_process_that_the_system_refuses_is_told_and_the_next_save_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountedStandby, "started", [])
    monkeypatch.setattr(CountedStandby, "is_refused", True)
    monkeypatch.setattr(session_module, "Standby", CountedStandby)
    with contextlib.closing(RunningSession(tmp_path)) as running:
        running.until(lambda: running.session.trouble or not running.thread.is_alive())
        assert running.session.trouble == (
            "no process could be started (Resource temporarily unavailable); save again to try "
            "again"
        )
        running.save("number = 1")
        time.sleep(0.5)
        assert running.thread.is_alive()
        monkeypatch.setattr(CountedStandby, "is_refused", False)
        running.save("number = 2")
        running.until(lambda: running.judges("number = 2"))
        assert running.session.trouble == ""


def test_an_error_at_import_is_told_while_all_is_a_stub(running: RunningSession) -> None:
    running.text = (REPOSITORY / "exercises" / "day8" / DEVICE).read_text(encoding="utf-8")
    running.save("import no_such_module")
    running.until(lambda: running.work.stopped is not None)
    assert running.work.state == "to do"
    stopped = running.work.stopped
    assert stopped is not None
    assert stopped.short == "ModuleNotFoundError: No module named 'no_such_module'"
    running.save("right = True")
    running.until(lambda: running.work.stopped is None)


def test_what_an_earlier_text_left_behind_does_not_stay_in_a_verdict(
    running: RunningSession,
) -> None:
    """The process that has graded before may be spoilt; a fresh one corrects it by itself."""
    running.until(lambda: running.work.state == "done")
    spoil = "torch.device = lambda *_: (_ for _ in ()).throw(RuntimeError('spoilt'))"
    running.until(lambda: running.session.ready)
    running.save(spoil)
    running.until(lambda: running.judges(spoil) and running.work.state != "done")
    running.save("right = True")
    running.until(lambda: running.judges("right = True"))
    running.until(lambda: running.work.state == "done")


def test_an_endless_loop_ends_with_the_next_save(running: RunningSession) -> None:
    running.until(lambda: running.session.ready and running.work.state == "done")
    running.save("while True: pass")
    running.until(lambda: running.session.running is not None)
    running.save("right = True")
    began = time.monotonic()
    running.until(lambda: running.judges("right = True"))
    assert running.work.state == "done"
    assert time.monotonic() - began < 60


def test_a_breakpoint_is_skipped_and_told(running: RunningSession) -> None:
    running.until(lambda: running.session.ready and running.work.state == "done")
    head, body = running.text.split("    # BEGIN SOLUTION\n", 1)
    stops = "    import pdb; pdb.set_trace()\n    breakpoint()\n"
    running.path.write_text(f"{head}{stops}{body}", encoding="utf-8")
    running.until(lambda: running.work.breakpoint is not None)
    assert running.work.breakpoint == SkippedBreakpoint("select_device", head.count("\n") + 1)
    running.until(lambda: running.work.state == "done")
    running.save("right = True")
    running.until(lambda: running.judges("right = True"))
    assert running.work.breakpoint is None
