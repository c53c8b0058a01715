"""The same results from a cluster as from one machine, whatever dies on the way."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from gpudojo.classes import dask_client
from gpudojo.model.results import SubmissionStatus

from tests.gpudojo.classes.cluster.machines import (
    Machines,
    Watching,
    alive,
    below,
    grade,
    rows,
    until,
)

# A worker that ends as soon as it gets a certain submission, as a machine might that runs out of
# memory.
FRAGILE = """
import os
from gpudojo.classes import dask_worker
# Dask imports this file more than once.
whole = dask_worker.__dict__.setdefault("whole", dask_worker.run_order)
def graded(message, wanted):
    if b"# 3" in message:
        os._exit(9)
    return whole(message, wanted)
dask_worker.run_order = graded
"""
# A worker whose first replies are damaged on the way.
TAMPERED = """
from gpudojo.classes import dask_worker
whole, left = dask_worker.__dict__.setdefault("whole", dask_worker.run_order), [{count}]
def graded(message, wanted):
    reply = bytearray(whole(message, wanted))
    left[0] -= 1
    if left[0] >= 0:
        reply[len(reply) // 2] ^= 1
    return bytes(reply)
dask_worker.run_order = graded
"""
# A worker that writes down what it has begun, and is held at the third of them for as long as a
# file is there.
COUNTING = """
import os, time
from gpudojo.classes import dask_worker
# Dask imports this file more than once.
whole = dask_worker.__dict__.setdefault("whole", dask_worker.run_order)
def graded(message, wanted):
    order = dask_worker.unpack_message(message, dask_worker.Order)
    with open({path!r}, "a") as file:
        file.write(order.digest + "\\n")
    while os.path.exists({held!r}):
        begun = open({path!r}).read().split()
        if len(begun) - begun.count("reference") <= 2:
            break
        time.sleep(0.02)
    return whole(message, wanted)
dask_worker.run_order = graded
"""


@pytest.mark.slow
def test_a_cluster_gives_the_results_of_one_machine(
    machines: Machines, mixed: Path, mixed_rows: dict[str, Any], tmp_path: Path
) -> None:
    outcome, watcher, results = grade(mixed, tmp_path, machines.address)
    assert rows(results) == mixed_rows
    assert sorted(watcher.told) == sorted(mixed_rows)
    assert outcome.ran == len(mixed_rows) - 2  # a twin, and one that cannot be read
    assert watcher.layers == results.layers
    assert "2 workers, 3 submissions at once" in watcher.said
    assert 1 <= watcher.most_under_way <= 3
    again, _, same = grade(mixed, tmp_path, None)
    assert (again.ran, same) == (0, results)


@pytest.mark.slow
def test_a_run_can_be_resumed_here_or_on_a_cluster(
    machines: Machines, slow: Path, slow_rows: dict[str, Any], tmp_path: Path
) -> None:
    class Enough(Exception):
        pass

    def stop() -> None:
        raise Enough

    for number, (first, second) in enumerate(((None, machines.address), (machines.address, None))):
        out = tmp_path / str(number)
        with pytest.raises(Enough):
            grade(slow, out, first, Watching(after_3=stop))
        outcome, _, results = grade(slow, out, second)
        assert 0 < outcome.ran <= len(slow_rows) - 3
        assert rows(results) == slow_rows


@pytest.mark.slow
def test_no_more_is_sent_than_fits(
    machines: Machines,
    slow: Path,
    slow_rows: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = []
    send = dask_client.DaskSession._send_task

    def counted(self: dask_client.DaskSession, task: Any, alone: bool) -> None:
        send(self, task, alone)
        most.append(len(self.sent) / sum(self.threads.values()))

    monkeypatch.setattr(dask_client.DaskSession, "_send_task", counted)
    _, _, results = grade(slow, tmp_path, machines.address)
    assert rows(results) == slow_rows
    assert max(most) <= dask_client.TASKS_PER_THREAD


@pytest.mark.slow
def test_workers_are_killed_and_leave_no_processes(
    lonely: Machines, slow: Path, slow_rows: dict[str, Any], tmp_path: Path
) -> None:
    workers = lonely.two()
    gone: set[int] = set()

    def kill() -> None:
        worker = workers.pop(0)
        gone.update(below(worker.pid))
        lonely.away(worker)

    def replace() -> None:
        kill()
        workers.append(lonely.worker(ready=False))

    try:
        _, watcher, results = grade(
            slow, tmp_path, lonely.address, Watching(after_1=replace, after_3=kill)
        )
    finally:
        lonely.registered(workers[0])
        lonely.away(*workers)
    assert rows(results) == slow_rows
    assert sorted(watcher.told) == sorted(watcher.ran) == sorted(slow_rows)
    assert gone
    until(lambda: not any(alive(pid) for pid in gone), seconds=10)


@pytest.mark.slow
def test_the_scheduler_is_killed_and_comes_back(
    slow: Path, slow_rows: dict[str, Any], known: Path, tmp_path: Path
) -> None:
    with Machines(tmp_path) as machines:
        scheduler = machines.scheduler()
        machines.worker(threads=2, recalls=known)

        def restart() -> None:
            scheduler.kill()
            scheduler.wait()
            machines.scheduler()
            machines.worker(
                threads=2, ready=False, recalls=known
            )  # the one before has ended with its scheduler

        _, watcher, results = grade(
            slow, tmp_path / "out", machines.address, Watching(after_2=restart)
        )
        assert rows(results) == slow_rows
        assert sorted(watcher.told) == sorted(watcher.ran) == sorted(slow_rows)
        assert (
            f"the scheduler at {machines.address} is lost; trying to reach it again" in watcher.said
        )


@pytest.mark.slow
def test_what_was_run_twice_counts_once(
    slow: Path, slow_rows: dict[str, Any], known: Path, tmp_path: Path
) -> None:
    """A worker falls silent, its submission is run by another one, and then it wakes up and ends
    what it had.
    """
    begun = tmp_path / "begun"
    held = tmp_path / "held"
    held.touch()
    counting = COUNTING.format(path=str(begun), held=str(held))
    with Machines(tmp_path) as machines:
        scheduler = machines.scheduler(DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="1s")
        silent = machines.worker(preload=counting, recalls=known)

        submissions = {row["digest"] for row in slow_rows.values()}

        def sleep() -> None:
            until(lambda: sum(each in submissions for each in begun.read_text().split()) > 2)
            silent.send_signal(signal.SIGSTOP)
            held.unlink()
            machines.worker(preload=counting, ready=False, recalls=known)

        def wake() -> None:
            until(lambda: "Remove worker" in machines.log(scheduler))
            silent.send_signal(signal.SIGCONT)

        # The first is followed by the drawings of the reference.
        watcher = Watching(after_2=sleep, after_4=wake)
        _, watcher, results = grade(slow, tmp_path / "out", machines.address, watcher)
        assert rows(results) == slow_rows
        assert sorted(watcher.told) == sorted(watcher.ran) == sorted(slow_rows)
        counts = [begun.read_text().split().count(digest) for digest in submissions]
        assert max(counts) == 2  # or this test would not be about anything


@pytest.mark.slow
def test_one_that_ends_every_worker_needs_review(
    slow: Path, slow_rows: dict[str, Any], known: Path, tmp_path: Path
) -> None:
    """And those that were lost with it do not."""
    with Machines(tmp_path) as machines:
        machines.scheduler(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1")
        machines.worker("--nanny", preload=FRAGILE, recalls=known)
        _, watcher, results = grade(slow, tmp_path / "out", machines.address)
    found = rows(results)
    bad = next(row for row in results.submissions if row.submission == "slow-3")
    assert (bad.status, bad.score) == (SubmissionStatus.CRASHED, 0.0)
    assert "the worker it ran on was lost, 4 times in a row" in bad.needs_human[0]
    assert "the worker it ran on was lost, 4 times in a row" in bad.exercises[0].checks[0].happened
    assert {name: row for name, row in found.items() if name != "slow-3"} == {
        name: row for name, row in slow_rows.items() if name != "slow-3"
    }
    assert sorted(watcher.told) == sorted(slow_rows)


def test_a_damaged_reply_is_asked_for_again(
    lonely: Machines, slow: Path, slow_rows: dict[str, Any], known: Path, tmp_path: Path
) -> None:
    worker = lonely.worker(threads=3, preload=TAMPERED.format(count=2), recalls=known)
    try:
        _, watcher, results = grade(slow, tmp_path, lonely.address)
    finally:
        lonely.away(worker)
    assert rows(results) == slow_rows
    assert sorted(watcher.told) == sorted(watcher.ran) == sorted(slow_rows)
