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
from typing import Any

import pytest

if sys.platform != "win32":
    from gpudojo.sandbox.bytecode_renaming import _renamed

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


def test_modules_of_the_device_are_loaded_with_names_that_nobody_knows() -> None:
    """In a process of its own, since modules are loaded once."""
    code = """
import sys
from gpudojo.sandbox.bytecode_renaming import RenamedInside, hidden_names
sys.meta_path.insert(0, renamed := RenamedInside())
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.device import hidden, tensor
from virtual_cuda.device.hidden_names import HIDDEN_IN_TENSORS
with virtual_cuda():
    x = torch.ones(2, device="cuda")
    names = {*hidden.attributes_of(x)}
    assert names <= {*renamed.names.values()}, names
    assert x.add(1).tolist() == [2.0, 2.0]
    assert x.to_sparse().to_dense().tolist() == [1.0, 1.0]
assert {*HIDDEN_IN_TENSORS} <= {*renamed.names.values()}, HIDDEN_IN_TENSORS
assert names.isdisjoint(hidden_names())
read = tensor.__loader__.get_code(tensor.__name__)
assert names.isdisjoint(repr(each) for each in read.co_names), "what it was loaded with"
assert all(name not in str(read.co_consts) for name in names)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_names_in_the_body_of_a_class_stay() -> None:
    source = (
        "class A:\n"
        "    _inner: int\n"
        "    def f(self): return self._inner, '_block', ('_parts',)\n"
        "n = '_inner'"
    )
    names = {"_inner": "one", "_block": "two", "_parts": "three"}
    space: dict[str, Any] = {}
    exec(_renamed(compile(source, "a file", "exec"), names), space)
    a = space["A"]()
    a.one = 1
    assert a.f() == (1, "two", ("three",))
    assert space["n"] == "one"
    assert [*space["A"].__annotations__] == ["_inner"]


SERVE = """
import builtins, gc, os, sys
gc.disable()
from types import FunctionType
from gpudojo.sandbox import fork_server

class Looking:  # prints what the process is like when it would fork its first child
    def __init__(self, *given): pass
    def serve(self):
        gc.unfreeze()
        every = [thing for thing in gc.get_objects() if type(thing) is FunctionType]
        packages = ("gpudojo.", "virtual_cuda.")
        ours = [one for one in every if str(one.__globals__.get("__name__")).startswith(packages)]
        pythons = [one for one in ours if one.__builtins__ is vars(builtins)]
        threads = len(os.listdir('/proc/self/task'))
        names = {f"{one.__module__}.{one.__qualname__}" for one in pythons}
        print(threads, len(ours), *names, flush=True)
        os._exit(0)

fork_server.ForkServer = Looking
fork_server.main(int(sys.argv[1]), False)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="see `reaching._definition`")
def test_it_forks_from_one_thread_and_no_function_of_ours_has_pythons_builtins() -> None:
    """Whether it was made before torch was imported, after that, or by what is installed last."""
    here, there = socket.socketpair()
    with here, there:
        command = [sys.executable, "-P", "-c", SERVE, str(there.fileno())]
        done = subprocess.run(
            command, pass_fds=[there.fileno()], capture_output=True, text=True, check=True
        )
    threads, count, *others = done.stdout.split()
    assert int(threads) == 1
    assert int(count) > 3000
    assert others == []


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
