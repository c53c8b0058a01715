"""What the fork server does where the kernel does not count a child's processes apart."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this is read from /proc")


@pytest.mark.parametrize(("count", "ends"), [(80, True), (20, False)])
def test_a_child_with_too_many_processes_is_ended(tmp_path: Path, count: int, ends: bool) -> None:
    from gpudojo.sandbox.fork_server import ForkServer
    from gpudojo.sandbox.isolation import Isolation
    from gpudojo.sandbox.protocol import REQUEST, Request

    ready, told = os.pipe()

    def run(number: int) -> None:
        os.setsid()
        for _ in range(count):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        os.write(told, b".")
        time.sleep(60)

    here, there = socket.socketpair()
    with here, there:
        server = ForkServer(there, Isolation(str(tmp_path)), run)
        assert server.memory is not None
        socket.send_fds(here, [REQUEST.pack(Request.SPAWN, 1, 1 << 40, 0, 0)], [])
        assert server._handle_request()
        (child,) = server.children
        try:
            assert os.read(ready, 1) == b"."
            server._limit_memory()
            end = time.monotonic() + 30
            while (
                (ended := os.waitpid(child, os.WNOHANG)[0]) == 0 and ends and time.monotonic() < end
            ):
                time.sleep(0.05)
            assert (ended == child) == ends
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
            os.close(ready)
            os.close(told)
            server.selector.close()


def test_only_what_a_child_waited_for_others_is_told() -> None:
    """Waiting while it has processes of its own does not count, also when they have ended."""
    from gpudojo.sandbox.fork_server import Child
    from gpudojo.sandbox.memory_watch import MemoryLimits, Usage

    child = Child(1, MemoryLimits(1))
    assert not child.add_wait(Usage(processes=1, waited=0.1))
    assert child.add_wait(Usage(processes=1, waited=1.0))
    child.reported_wait = child.waited
    assert not child.add_wait(Usage(processes=9, waited=8.0))
    assert not child.add_wait(Usage(processes=1, waited=8.1))
    assert child.add_wait(Usage(processes=1, waited=8.5))
    assert child.waited == pytest.approx(1.5)


SERVE = """
import os, sys
from gpudojo.sandbox import fork_server

class Looking:  # prints what the process is like when it would fork its first child
    def __init__(self, *given): pass
    def serve(self):
        from gpudojo.grading.student_code import in_sandbox
        threads = len(os.listdir('/proc/self/task'))
        print(threads, in_sandbox(), 'greenlet' in sys.modules, flush=True)
        os._exit(0)

fork_server.ForkServer = Looking
fork_server.main(int(sys.argv[1]), False)
"""


@pytest.mark.slow
def test_it_forks_from_one_thread_and_children_run_code_under_the_watch() -> None:
    here, there = socket.socketpair()
    with here, there:
        command = [sys.executable, "-P", "-c", SERVE, str(there.fileno())]
        done = subprocess.run(
            command, pass_fds=[there.fileno()], capture_output=True, text=True, check=True
        )
    threads, is_watched, has_greenlets = done.stdout.split()
    assert (int(threads), is_watched, has_greenlets) == (1, "True", "False")


def test_validators_of_notebooks_are_made_before_children_need_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpudojo.grading.notebooks import parse_notebook
    from gpudojo.sandbox import warm_up
    from nbformat import validator

    monkeypatch.setattr(validator, "validators", {})
    warm_up.read_notebooks()
    made = dict(validator.validators)
    assert {minor for _, _, minor, *_ in made} == set(warm_up.NOTEBOOK_MINORS)
    for minor in warm_up.NOTEBOOK_MINORS:
        cell = {
            "cell_type": "code",
            "metadata": {},
            "source": "x = 1",
            "outputs": [],
            "execution_count": None,
        }
        data = {
            "cells": [cell | ({"id": "a"} if minor == 5 else {})],
            "metadata": {},
            "nbformat": 4,
        }
        assert (
            parse_notebook(json.dumps(data | {"nbformat_minor": minor}).encode()).source
            == "x = 1\n"
        )
    assert validator.validators == made
