"""All threads of a worker share a fork server, which is started again when it dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from gpudojo.classes import dask_worker
from gpudojo.classes.dask_messages import (
    HASH,
    Order,
    Reply,
    pack_message,
    unpack_reply,
    versions_here,
)
from gpudojo.classes.dask_worker import ForkServerThread
from gpudojo.classes.grading_options import seeds_of_probes
from gpudojo.classes.records import Record, decode_record
from gpudojo.classes.submission_run import RunOptions, SubmissionRun
from gpudojo.model.catalogue import exercises_of
from gpudojo.model.errors import ForkServerFailed
from gpudojo.sandbox.fork_client import ForkClient

from tests.gpudojo.classes.cluster.machines import FIRST, REFERENCE, below, until

KEY = "01_checking_device::select_device"
SLOW = "import time\ntime.sleep(1.5)\n"


def options() -> RunOptions:
    drawn = seeds_of_probes("secret", exercises_of("day8"))
    return RunOptions(
        day="day8",
        bench="virtual",
        seeds=drawn,
        known=frozenset({KEY}),
        seconds=10.0,
        only=frozenset({"select_device"}),
    )


def submission_run(number: int) -> SubmissionRun:
    text = SLOW + (REFERENCE / FIRST).read_text(encoding="utf-8")
    return SubmissionRun(str(number), {FIRST: text.encode()}, options())


def always() -> bool:
    return True


def fork_server_processes() -> set[int]:
    """Processes of this one that fork submissions."""
    return {
        pid
        for pid in below(os.getpid())
        if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


@pytest.fixture(scope="module")
def others() -> set[int]:
    """Fork servers that are not the thread's."""
    return fork_server_processes()


@pytest.fixture(scope="module")
def thread(others: set[int]) -> Iterator[ForkServerThread]:
    made = ForkServerThread(options())
    yield made
    made.close()


def test_a_worker_without_a_fork_server_says_so_and_tries_again(
    thread: ForkServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first test of the thread, before it has one."""

    class Broken(ForkClient):
        def start_and_wait(self) -> None:
            raise ForkServerFailed("there is no room for it")

    with monkeypatch.context() as patched:
        patched.setattr("gpudojo.classes.dask_worker.fork_client_for", lambda bench: Broken())
        with pytest.raises(ForkServerFailed):
            thread.run_and_wait(lambda: submission_run(1))
        patched.setitem(dask_worker.fork_servers.threads, "virtual", thread)
        message = pack_message(Order(versions_here("day8"), "1", {}, options()))
        found = unpack_reply(dask_worker.run_order(message, always), message[:HASH], "1")
        assert found == "the process that runs submissions did not start: there is no room for it"
    assert KEY in thread.run_and_wait(lambda: submission_run(1)).seen


def test_threads_share_a_fork_server_and_survive_its_death(
    thread: ForkServerThread, others: set[int]
) -> None:
    began: list[float] = []

    def begin(number: int) -> SubmissionRun:
        made = submission_run(number)
        began.append(made.began)
        return made

    with ThreadPoolExecutor(3) as pool:
        waiting = [
            pool.submit(thread.run_and_wait, lambda number=number: begin(number))
            for number in range(3)
        ]
        until(lambda: len(began) == 3)
        mine = fork_server_processes() - others
        assert mine
        for pid in mine:
            os.kill(pid, signal.SIGKILL)
        records = [one.result(60) for one in waiting]
    assert [record.digest for record in records] == ["0", "1", "2"]
    assert all(KEY in record.seen and not record.incidents for record in records)
    # at once, and not one after another: each sleeps for one and a half
    assert max(began) - min(began) < 1.2


def test_a_worker_refuses_what_was_damaged_and_who_has_other_versions() -> None:
    ours = versions_here("day8")
    message = pack_message(Order(ours, "1", {}, options()))
    damaged = bytearray(message)
    damaged[-1] ^= 1
    said = unpack_reply(dask_worker.run_order(bytes(damaged), always), message[:HASH], "1")
    assert isinstance(said, str)
    assert "the worker received a damaged message" in said
    older = pack_message(Order(msgspec.structs.replace(ours, gpudojo="0.0.9"), "1", {}, options()))
    assert unpack_reply(dask_worker.run_order(older, always), older[:HASH], "1") == (
        f"it has gpudojo {ours.gpudojo}, and the grader 0.0.9"
    )


def test_an_error_of_our_own_is_sent_in_words_and_never_pickled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing:
        def run_and_wait(self, begin: object) -> Record:
            raise ZeroDivisionError("by our fault", threading.Lock())

    monkeypatch.setitem(dask_worker.fork_servers.threads, "virtual", Failing())
    message = pack_message(Order(versions_here("day8"), "1", {}, options()))
    reply = dask_worker.run_order(message, always)
    assert type(reply) is bytes
    found = unpack_reply(reply, message[:HASH], "1")
    assert isinstance(found, str)
    assert found.startswith("ZeroDivisionError: ")


def test_a_record_is_the_bytes_that_a_store_keeps(
    thread: ForkServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dask_worker.fork_servers.threads, "virtual", thread)
    text = (REFERENCE / FIRST).read_bytes()
    message = pack_message(Order(versions_here("day8"), "1", {FIRST: text}, options()))
    reply = msgspec.msgpack.decode(dask_worker.run_order(message, always)[HASH:], type=Reply)
    record = decode_record(reply.record)
    assert (record.digest, list(record.seen)) == ("1", [KEY])
