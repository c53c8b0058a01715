"""The fork server has one thread and has not touched CUDA when it forks, on any machine.

A process that has started CUDA cannot be forked: its children would find no GPU. A torch without
CUDA cannot start it, so its functions that would do so are replaced, in the fork server alone, by
ones that are counted.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import IO, Any

import pytest
from gpudojo.model.catalogue import exercises_of
from gpudojo.sandbox import fork_client
from gpudojo.sandbox.fork_client import ChildExit, ForkClient
from gpudojo.sandbox.protocol import ELSEWHERE, Job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
SECONDS = 120

# Runs in the fork server before everything else. A line about each fork goes to its log.
COUNTING = """
import importlib.util, json, os, sys, traceback

touched = []

def note(what):
    callers = [f"{each.filename}:{each.lineno}" for each in traceback.extract_stack()[:-2]]
    touched.append(f"{what} from {' '.join(callers[-4:])}")

def counted(name, original):
    def call(*args, **kwargs):
        note(name)
        if name.endswith("getDeviceCount"):
            return 0
        if original is None:
            raise RuntimeError("no CUDA in this test")
        return original(*args, **kwargs)
    return call

class CountedEngine:
    # Every backward pass asks each kind of device how many there are, and starts a thread for each.
    def __init__(self, engine):
        self.engine = engine
    def __getattr__(self, name):
        return getattr(self.engine, name)
    def run_backward(self, *args, **kwargs):
        note("a backward pass")
        return self.engine.run_backward(*args, **kwargs)

STARTING = ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getDevice", "_cuda_setDevice",
            "_cuda_synchronize", "_cuda_emptyCache", "_cuda_memoryStats",
            "_cuda_getDeviceProperties")

def count_calls(torch):
    for name in STARTING:
        setattr(torch._C, name, counted(name, getattr(torch._C, name, None)))
    torch.cuda._lazy_init = counted("_lazy_init", torch.cuda._lazy_init)
    variable = torch.autograd.Variable
    variable._execution_engine = CountedEngine(variable._execution_engine)

def spoil(torch):
    pass

class AfterTorch:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module
        def execute_and_count(module):
            execute(module)
            count_calls(module)
            spoil(module)
        spec.loader.exec_module = execute_and_count
        return spec

def watch(event, args):
    if event == "ctypes.dlopen" and any(word in str(args[0]) for word in ("cuda", "nvidia")):
        note(f"loading {args[0]}")

fork = os.fork

def told_fork():
    torch = sys.modules.get("torch")
    started = torch is not None and torch.cuda.is_initialized()
    threads = len(os.listdir("/proc/self/task"))
    seen = {"threads": threads, "torch": torch is not None, "started": started, "touched": touched}
    line = json.dumps(seen)
    os.write(2, f"FORK {line}\\n".encode())
    return fork()

sys.meta_path.insert(0, AfterTorch())
sys.addaudithook(watch)
os.fork = told_fork
"""


SPOILT = """
def spoil(torch):
    import ctypes, threading, time
    torch.ones(2, requires_grad=True).sum().backward()
    for touch in (torch.cuda.init, lambda: ctypes.CDLL("libcuda.so.1")):
        try:
            touch()
        except Exception:
            pass  # there is no GPU
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


def job_for_child(bench: str) -> Job:
    """A job whose child calls no real GPU: with `cuda`, it is the one for machines without."""
    seeds = {}
    for exercise in exercises_of("day8"):
        for function in exercise.functions:
            for probe in function.probes:
                seeds[f"{exercise.stem}::{function.name}::{probe.name}"] = 7
    source = b"import torch\n\ndef select_device(prefer=None):\n    return torch.device('cpu')\n"
    return Job(
        day="day8",
        bench=bench,
        seeds=seeds,
        known=frozenset({"01_checking_device::select_device"}),
        only=frozenset({"select_device"}),
        token=b"t" * 16,
        files={"01_checking_device.py": source},
        skip=frozenset(),
        machines=ELSEWHERE,
    )


def run_child(client: ForkClient, job: Job) -> ChildExit:
    """Start a child and wait for its end. Then the fork server has time to import what is rare."""
    pipes = client.spawn(job)
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            ready, _, _ = select.select([client, pipes.evidence, pipes.output], [], [], 1)
            for readable in ready:
                if readable is not client:
                    _drain(readable)
            events = (client.read_events() if client in ready else []) or []
            for event in events:
                if isinstance(event, ChildExit):
                    return event
    finally:
        pipes.close()
    raise TimeoutError("the child has not ended")


def _drain(end: int) -> None:
    if not os.read(end, 1 << 16):
        time.sleep(0.01)  # closed; its end will be told


def forks_of(bench: str, spoilt: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the fork server was like at each of its forks after torch was imported."""
    monkeypatch.setattr(fork_client, "_START", COUNTING + spoilt + fork_client._START)
    client = ForkClient(gpu=bench == "cuda")
    try:
        client.start_and_wait()
        for _ in range(2):
            assert run_child(client, job_for_child(bench)).code == 0
        log: IO[bytes] | None = client._log
        assert log is not None
        log.seek(0)
        lines = log.read().decode().splitlines()
    finally:
        client.close()
    forks = [json.loads(line.removeprefix("FORK ")) for line in lines if line.startswith("FORK ")]
    return [each for each in forks if each["torch"]]


@pytest.mark.parametrize("bench", ["virtual", "cuda"])
def test_the_fork_server_forks_from_one_thread_without_cuda(
    bench: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = forks_of(bench, "", monkeypatch)
    assert len(forks) == 2
    for each in forks:
        assert (each["threads"], each["started"]) == (1, False)
    if bench == "cuda":
        assert forks[-1]["touched"] == []


@pytest.mark.slow
def test_a_fork_server_that_has_touched_cuda_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = forks_of("cuda", SPOILT, monkeypatch)[-1]
    assert last["threads"] == 2
    touched = " ".join(last["touched"])
    for what in ("a backward pass", "_lazy_init", "loading libcuda.so.1"):
        assert what in touched
