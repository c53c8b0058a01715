"""A scheduler that is lost before anything is sent is waited for, and a grader that stops leaves
nothing running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpudojo.classes import dask_worker
from gpudojo.classes.dask_messages import HASH, Order, pack_message, unpack_reply, versions_here
from gpudojo.classes.runners import GradingTask
from gpudojo.model.errors import NoCluster

from tests.gpudojo.classes.cluster.machines import (
    FIRST,
    GRADERS,
    ONLY,
    REFERENCE,
    Machines,
    Watching,
    alive,
    below,
    course_for,
    grade,
    rows,
    until,
)
from tests.gpudojo.classes.cluster.test_worker import options

# A worker whose scheduler is gone by the time that it says what it is.
FATAL = """
import os, signal
from gpudojo.classes import dask_worker
async def introduce(worker, day):
    os.kill({pid}, signal.SIGKILL)
    return b""
dask_worker.introduce_worker = introduce
"""


@pytest.mark.slow
def test_a_scheduler_lost_in_the_first_seconds_is_waited_for(
    brief: Path, slow_rows: dict[str, Any], known: Path, tmp_path: Path
) -> None:
    """Once while there are no workers yet, and once more while the first one says what it is."""
    with Machines(tmp_path) as machines:
        first = machines.scheduler()
        comes_back: list[threading.Thread] = []
        over = threading.Event()

        def third(second: subprocess.Popen[bytes]) -> None:
            second.wait()
            if not over.is_set():  # else it has ended with the test, which has failed
                machines.scheduler()
                machines.worker(ready=False, recalls=known)

        class Early(Watching):
            def report_preparation(self, what: str) -> None:
                super().report_preparation(what)
                if what.startswith("waiting for workers") and not comes_back:
                    first.kill()
                    first.wait()
                    second = machines.scheduler()
                    comes_back.append(threading.Thread(target=third, args=(second,), daemon=True))
                    comes_back[0].start()
                    machines.worker(preload=FATAL.format(pid=second.pid), ready=False)

        try:
            _, watcher, results = grade(brief, tmp_path / "out", machines.address, Early())
        finally:
            over.set()
        comes_back[0].join()
    assert rows(results) == {"slow-0": slow_rows["slow-0"]}
    assert watcher.told == watcher.ran == ["slow-0"]
    assert f"the scheduler at {machines.address} is lost; trying to reach it again" in watcher.said


@pytest.mark.slow
def test_one_that_does_not_come_back_is_waited_for_no_longer_than_asked(
    brief: Path, tmp_path: Path
) -> None:
    with Machines(tmp_path) as machines:
        scheduler = machines.scheduler()

        class Early(Watching):
            def report_preparation(self, what: str) -> None:
                super().report_preparation(what)
                if what.startswith("waiting for workers"):
                    scheduler.kill()
                    scheduler.wait()

        with pytest.raises(
            NoCluster, match=r"^the scheduler at tcp://127.* cannot be reached, tried for 2 s"
        ):
            grade(brief, tmp_path / "out", machines.address, Early(), wait=2)


@pytest.mark.slow
def test_what_a_grader_has_left_is_ended_on_the_workers(
    machines: Machines, brief: Path, slow_rows: dict[str, Any], tmp_path: Path
) -> None:
    class Enough(Exception):
        pass

    text = (REFERENCE / FIRST).read_text(encoding="utf-8")
    (tmp_path / "class" / "long").mkdir(parents=True)
    (tmp_path / "class" / "long" / FIRST).write_text(
        f"import time\ntime.sleep(300)\n{text}", encoding="utf-8"
    )
    _, plain, with_nanny = machines.processes
    running: set[int] = set()

    class Stopping(Watching):
        def report_running(self, tasks: list[GradingTask]) -> None:
            if [task.name for task in tasks] == ["long"]:
                # a fork server is three processes, each below the other; the second worker is
                # itself below its nanny
                running.update(below(plain.pid, after=3) | below(with_nanny.pid, after=4))
            if running:
                raise Enough

    with pytest.raises(Enough):
        grade(tmp_path / "class", tmp_path / "out", machines.address, Stopping(), seconds=400.0)
    until(lambda: not any(alive(pid) for pid in running), plain, seconds=10)
    _, _, results = grade(brief, tmp_path / "again", machines.address)
    assert rows(results) == {"slow-0": slow_rows["slow-0"]}


def test_there_is_no_record_of_what_was_ended_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look like a submission that took too long."""
    message = pack_message(Order(versions_here("day8"), "1", {}, options()))
    key = "dojo-1"
    tasks = {key: SimpleNamespace(state="executing")}
    wanted = dask_worker.DaskTask(
        SimpleNamespace(state=SimpleNamespace(tasks=tasks), get_current_task=lambda: key)
    ).is_wanted

    class Stopped:
        def run_and_wait(self, begin: Any) -> Any:
            run = begin()
            run.make_job(b"")
            assert not run.is_overdue(run.began)
            tasks[key].state = "cancelled"
            assert run.is_overdue(run.began)
            tasks[
                key
            ].state = "executing"  # it was sent again: what has ended is not what is wanted now
            assert run.is_overdue(run.began)
            run.step = "01_checking_device::select_device"
            assert not run.note_child_exit(-signal.SIGKILL)  # without that it would be run again
            return run.finish_record(0, 0.0)

    monkeypatch.setitem(dask_worker.fork_servers.threads, "virtual", Stopped())
    for _ in ("under way", "late"):
        reply = dask_worker.run_order(message, wanted)
        assert unpack_reply(reply, message[:HASH], "1") == "the grader no longer waits for it"
        monkeypatch.setitem(dask_worker.fork_servers.threads, "virtual", None)


@pytest.mark.slow
def test_a_stopped_command_says_so_and_can_be_resumed(
    machines: Machines, slow: Path, slow_rows: dict[str, Any], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "gpudojo",
        "grade",
        str(slow),
        "--out",
        str(tmp_path),
        "--seed",
        "secret",
        "--course",
        str(course_for(tmp_path)),
    ]
    command += ["--time-limit", "3", *(word for name in sorted(ONLY) for word in ("--only", name))]
    process = subprocess.Popen(
        [*command, "--scheduler", machines.address],
        env={**os.environ, "PYTHONPATH": str(GRADERS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that starts many tests may have told its children to ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # Two are of the reference: what it did, and the drawings of it.
    until(lambda: len(list((tmp_path / ".dojo" / "records").rglob("*.mp"))) >= 3, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().startswith("Stopped; ")
    assert said.strip().endswith("Run the same command again to resume.")
    outcome, _, results = grade(slow, tmp_path, machines.address)
    assert 0 < outcome.ran < len(slow_rows)
    assert rows(results) == slow_rows
