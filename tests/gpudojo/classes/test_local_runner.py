"""What counts as a standstill of the grader, and what as a busy machine, with real stops and real
load.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from gpudojo.classes import child_scheduler
from gpudojo.classes.child_scheduler import ChildScheduler
from gpudojo.classes.records import Record
from gpudojo.classes.runners import GradingTask
from gpudojo.model.errors import BadClass, CannotStartChild
from gpudojo.model.time_outs import still_running_after
from gpudojo.sandbox.fork_client import ChildExit, ChildPipes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this is read from /proc")


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Bind this process to one processor, beside so many others that never sleep.

    Each is a session of its own: some kernels share processors between sessions.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    others = []
    try:
        for _ in range(processes):
            others.append(os.fork())
            if others[-1] == 0:
                os.setsid()
                signal.alarm(60)
                while True:
                    pass
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.sched_setaffinity(0, before)


def in_a_copy(
    work: Callable[[], float], while_it_runs: Callable[[int], None] = lambda pid: None
) -> float:
    """What `work` returns in a process of its own."""
    end, other = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(other, str(work()).encode())
        os._exit(0)
    os.close(other)
    while_it_runs(pid)
    with os.fdopen(end) as file:
        found = float(file.read())
    os.waitpid(pid, 0)
    return found


def stopped(for_seconds: float, working: float = 0.0) -> float:
    """How long this process was stopped in so many seconds of sleep and work by turns."""
    from gpudojo.classes.standstill import SHORTEST_LOOK, StandstillWatch

    watch = StandstillWatch()
    found = 0.0
    end = time.monotonic() + for_seconds
    while time.monotonic() < end:
        time.sleep(SHORTEST_LOOK)
        until = time.thread_time() + working
        while time.thread_time() < until:
            pass
        found += watch.measure_standstill()
    return found


def test_a_process_that_is_stopped_stands_still() -> None:
    def stop(pid: int) -> None:
        time.sleep(0.3)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(pid, signal.SIGCONT)

    assert in_a_copy(lambda: stopped(1.5), stop) > 0.5


def test_a_process_that_waits_for_a_processor_does_not() -> None:
    with busy(8):
        assert in_a_copy(lambda: stopped(1.5, working=0.05)) < 0.2


def ran(seconds: float, waited: Callable[[], float]) -> float:
    """The share of time that this process waited for others while it worked for so long."""
    began = time.monotonic()
    before = waited()
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return (waited() - before) / (time.monotonic() - began)


def test_a_child_knows_how_long_others_had_the_processor() -> None:
    from gpudojo.sandbox.child import _make_clock_of_waits

    with busy(3):
        assert in_a_copy(lambda: ran(0.2, _make_clock_of_waits())) > 0.5


def test_what_a_child_has_waited_still_counts_while_it_has_processes() -> None:
    """It was forgotten then: a function with processes was charged with all waits before it."""
    from gpudojo.sandbox.child import _make_clock_of_waits

    def change() -> float:
        waited = _make_clock_of_waits()
        ran(0.2, waited)
        before = waited()
        own = os.fork()
        if own == 0:
            time.sleep(60)
        after = waited()
        os.kill(own, signal.SIGKILL)
        os.waitpid(own, 0)
        return after - before

    with busy(3):
        assert in_a_copy(change) == 0.0


@pytest.mark.parametrize("own", ["processes", "ended processes", "threads"])
def test_its_own_processes_and_threads_are_no_others(own: str) -> None:
    """On one processor, no more can have been waited for others than the time in which nothing of
    its own ran.
    """
    from gpudojo.sandbox.child import _make_clock_of_waits
    from gpudojo.sandbox.memory_watch import waiting_seconds

    def too_much() -> float:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        waited = _make_clock_of_waits()
        began = time.monotonic()
        if own == "threads":
            over = threading.Event()
            data = bytes(1 << 20)

            def work() -> None:
                while not over.is_set():
                    hashlib.sha256(data)  # without Python's lock

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            ran(0.1, waited)
            found = max(waited(), waiting_seconds(os.getpid()))
            over.set()
        else:
            with busy(3):
                ran(0.1, waited)
                found = waited()
            if own == "ended processes":
                found = waited()
            else:
                assert found == 0
        elapsed = time.monotonic() - began
        spent = os.times()
        return (found - (elapsed - sum(spent[:4]))) / elapsed

    assert in_a_copy(too_much) < 0.2  # on a quiet machine three quarters, if its own counted


WORK = (
    "import time\n"
    "end = time.process_time() + {seconds}\n"
    "while time.process_time() < end:\n"
    "    pass\n"
)


@pytest.mark.slow
def test_the_load_of_others_costs_nobody_points(tmp_path: Path) -> None:
    """One works for a third of its time, on a processor that at least four share: by the clock on
    the wall it takes longer than it has.

    One never ends, and is ended all the same.
    """
    from gpudojo.classes.grading_options import GradingOptions
    from gpudojo.classes.local_runner import fork_client_for
    from gpudojo.classes.submission_run import SubmissionRun
    from gpudojo.model.catalogue import exercises_of

    name = "01_checking_device.py"
    only = frozenset({"select_device"})
    asked = GradingOptions(submissions=[tmp_path], out=tmp_path / "out", seconds=2.0, only=only)
    options = asked.run_options(exercises_of("day8"), "secret", None)
    records: dict[str, Record] = {}

    def task(who: str, seconds: str) -> GradingTask:
        text = WORK.format(seconds=seconds) + "def select_device():\n    return 'cpu'\n"
        run = SubmissionRun(who, {name: text.encode()}, options)
        return GradingTask(who, run, lambda record: records.update({who: record}), time.monotonic())

    client = fork_client_for("virtual")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        client.start_and_wait()
        with busy(3):
            ChildScheduler(client, 1).run(iter([task("working", "0.8"), task("endless", "1000")]))
    finally:
        client.close()
        os.sched_setaffinity(0, before)
    assert records["working"].incidents == []
    assert set(records["working"].seen) == options.known
    assert [incident.detail for incident in records["endless"].incidents] == [
        still_running_after(2)
    ]


class Writing:
    """Stands for the fork server: its one child is a thread that writes evidence, a piece at a
    time, and ends.
    """

    def __init__(self, pieces: int, size: int, pause: float) -> None:
        self.pieces = pieces
        self.size = size
        self.pause = pause
        self.control, self.other = socket.socketpair()

    def fileno(self) -> int:
        return self.control.fileno()

    def spawn(self, job: object) -> ChildPipes:
        evidence, end = os.pipe()
        output, other = os.pipe()
        os.close(other)
        threading.Thread(target=self.write, args=(end,)).start()
        os.set_blocking(evidence, False)
        os.set_blocking(output, False)
        return ChildPipes(1, evidence, output)

    def write(self, end: int) -> None:
        for _ in range(self.pieces):
            time.sleep(self.pause)
            left = bytes(self.size)
            while left:
                left = left[os.write(end, left) :]
        os.close(end)
        self.other.send(b"x")

    def read_events(self) -> list[ChildExit]:
        self.control.recv(10)
        return [ChildExit(1, 0, 0, 0.0)]


class Counting:
    """Stands for a run: counts bytes, and how often some arrived."""

    killed_by_us = False

    def __init__(self) -> None:
        self.bytes = self.times = 0

    def make_job(self, token: bytes) -> None:
        pass

    def receive_bytes(self, data: bytes) -> bool:
        self.bytes, self.times = self.bytes + len(data), self.times + 1
        return True

    def is_overdue(self, now: float) -> bool:
        return False

    def note_child_exit(self, *how: object) -> bool:
        return False

    def finish_record(self, *used: object) -> Record:
        return Record("")


def scheduled(client: Writing) -> tuple[Counting, float]:
    """What a run got from a child, and how long that took."""
    run = Counting()
    began = time.monotonic()
    tasks = [GradingTask("one", cast(Any, run), lambda record: None, began)]
    with client.control, client.other:
        ChildScheduler(cast(Any, client), 1).run(iter(tasks))
    return run, time.monotonic() - began


def test_a_child_that_writes_more_than_a_pipe_holds_hardly_waits() -> None:
    run, seconds = scheduled(Writing(8, 2 << 20, 0.0))
    assert run.bytes == 16 << 20
    assert seconds < 5, "else it waits a tick for each time that the pipe is full"


def test_a_stop_is_noticed_before_what_has_arrived_meanwhile_is_taken_in() -> None:
    """Also where the grader is stopped after its last look for such, while it keeps or judges
    another submission.
    """

    class Noting(Counting):
        steps: ClassVar[list[str]] = []

        def postpone_deadline(self, seconds: float) -> None:
            self.steps.append(f"put off by {seconds:g}")

        def receive_bytes(self, data: bytes) -> bool:
            self.steps.append("received")
            return True

        def note_child_exit(self, *how: object) -> bool:
            self.steps.append("ended")
            return False

    class Stopped:
        lengths: ClassVar[list[float]] = [0.0, 12.0, 0.0]

        def measure_standstill(self) -> float:
            return self.lengths.pop(0) if self.lengths else 0.0

    evidence, end = os.pipe()
    output, other = os.pipe()
    os.set_blocking(evidence, False)
    os.set_blocking(output, False)
    run: Any = Noting()
    task = GradingTask("child", run, lambda record: None, 0.0, ChildPipes(1, evidence, output))
    client: Any = None
    stops: Any = Stopped()
    scheduler = ChildScheduler(client, 1)
    scheduler._standstill = stops
    scheduler.under_way = {1: task}
    scheduler._selector.register(evidence, selectors.EVENT_READ)
    for part in (b"first", b"second"):
        os.write(end, part)
        if part == b"first":
            scheduler._read_pipe(task, "evidence", evidence)
    os.close(end)
    os.close(other)
    scheduler._finish_child(ChildExit(1, 0, 0, 0.0))
    assert run.steps == ["received", "put off by 12", "received", "ended"]
    assert scheduler.under_way == {}


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_is_hidden_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    from gpudojo.classes.local_runner import fork_client_for

    monkeypatch.setattr("gpudojo.classes.local_runner.device_files", lambda: ["/dev/nvidia0"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(BadClass, match="none that CUDA_VISIBLE_DEVICES lets programs see"):
        fork_client_for("cuda")


class Refusing(Writing):
    """Stands for a fork server on a machine that lacks something the first times."""

    def __init__(self, refusals: list[OSError | None]) -> None:
        super().__init__(1, 1, 0.0)
        self.refusals = refusals  # None: the child could not be forked
        self.restarts = 0
        self.could_not_fork = False

    def spawn(self, job: object) -> ChildPipes:
        if not self.refusals:
            return super().spawn(job)
        refusal = self.refusals.pop(0)
        if refusal is not None:
            raise refusal
        self.could_not_fork = True
        evidence, end = os.pipe()
        output, other = os.pipe()
        for number in (end, other):
            os.close(number)
        self.other.send(b"x")
        return ChildPipes(1, evidence, output)

    def read_events(self) -> list[ChildExit]:
        if self.could_not_fork:
            self.could_not_fork = False
            self.control.recv(10)
            return [ChildExit(1, None, 0, 0.0)]
        return super().read_events()

    def restart(self) -> None:
        self.restarts += 1


class Discounting(Counting):
    """Stands for a run: counts how often a child was begun, and did not count."""

    begun = discounted = exits = 0

    def make_job(self, token: bytes) -> None:
        self.begun += 1

    def discount_child(self) -> None:
        self.discounted += 1

    def note_child_exit(self, *how: object) -> bool:
        self.exits += 1
        return False


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
NO_DESCRIPTORS = OSError(errno.EMFILE, "Too many open files")
GONE = BrokenPipeError(errno.EPIPE, "Broken pipe")


def run_with_refusals(client: Refusing, monkeypatch: pytest.MonkeyPatch) -> Discounting:
    monkeypatch.setattr(child_scheduler, "PAUSE_AFTER_REFUSAL", 0.0)
    run = Discounting()
    tasks = [GradingTask("one", cast(Any, run), lambda record: None, 0.0)]
    with client.control, client.other:
        ChildScheduler(cast(Any, client), 1).run(iter(tasks))
    return run


@pytest.mark.parametrize("refusal", [NO_SPACE, NO_DESCRIPTORS, None, GONE])
def test_a_child_that_the_machine_refuses_is_tried_again_and_held_against_nobody(
    refusal: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Refusing([refusal, refusal])
    run = run_with_refusals(client, monkeypatch)
    assert (run.begun, run.discounted, run.exits) == (3, 2, 1)
    assert client.restarts == (2 if refusal is GONE else 0), "only a server that is gone is new"


@pytest.mark.parametrize("refusal", [NO_SPACE, NO_DESCRIPTORS, None])
def test_a_machine_that_starts_no_more_children_is_told(
    refusal: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotStartChild) as raised:
        run_with_refusals(Refusing([refusal] * 99), monkeypatch)
    told = str(raised.value)
    assert (refusal.strerror if refusal else "could not be forked") in told
    assert "Nobody loses points" in told
    assert "run the same command again" in told
