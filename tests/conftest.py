"""What all tests share: compiled modules, a Python with torch loaded, and loaded fork servers."""

from __future__ import annotations

import compileall
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.sharing import LoadedForkServers, WarmPython

# A process that has used a real GPU cannot open a virtual one. The tests that want the real one are
# run by naming it: CUDA_VISIBLE_DEVICES=0 python -m pytest tests/virtual_cuda/test_real.py
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

VERDICTS = "DOJO_TEST_VERDICTS"  # as in `solution_tests`, which would import torch
# Variables that stay set in the process: pytest's, a notebook's first cell's, the compiler's, and
# the profiler's, which `gpudojo.grading` sets before torch reads it.
LASTING = ("PYTEST_CURRENT_TEST", "GPUDOJO_CELLS", "TORCH", "TRITON", "KINETO_LOG_LEVEL")
# fixtures of a file or of all workers that take more than a second
LONG = {
    "autograder",
    "graded",
    "known",
    "machines",
    "made",
    "pages",
    "released",
    "reports",
    "run",
    "seen",
    "tried",
}

# A busy machine is no reason to fail. `DOJO_FUZZ=100` tries a hundred times as many examples.
settings.register_profile(
    "dojo",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 * int(os.environ.get("DOJO_FUZZ", "1")),
)
settings.load_profile("dojo")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the packages before any worker starts, and give every process one thread.

    Hundreds of processes import them, often where Python is told to write no bytecode; and a test
    that watches the folder for changes must not see a `__pycache__` appear. Threads of many
    processes on few cores wait for each other.
    """
    # A shell lets what it starts in the background ignore Ctrl-C, and tests that send it would wait
    # in vain.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if "DOJO_CACHE" not in os.environ:  # one for all workers, and not the user's
        folder = tempfile.TemporaryDirectory(prefix="gpudojo-cache-")
        os.environ["DOJO_CACHE"] = folder.name
        config.add_cleanup(folder.cleanup)
    gc.disable()  # until all tests are collected
    sys.dont_write_bytecode = False  # half the time of collecting is compiling the tests themselves
    if not hasattr(config, "workerinput"):
        os.environ[VERDICTS] = tempfile.mkdtemp(prefix="verdicts-")
        compileall.compile_dir(Path(__file__).parents[1] / "graders", quiet=2)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(VERDICTS), ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For `-n auto`, one worker more than there are cores: workers wait for processes and locks a
    sixth of the time.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    return 1 + (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with slow tests, then with the files whose tests share what takes long to make.

    Towards the end workers take tests from each other: it would be made once more, or one would
    wait for the other, or for a long test that was begun last.
    """
    first = {item.path for item in items if LONG.intersection(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, item.path not in first))


def pytest_collection_finish() -> None:
    """Leave torch and thousands of tests out of collections: one would take 0.4 s, and pytest's own
    tests make five.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _process_left_as_it_was() -> Iterator[None]:
    """A test that leaves its process changed fails here, instead of a later one elsewhere."""
    before = _state_of_process()
    yield
    assert _state_of_process() == before


def _state_of_process() -> dict[str, object]:
    variables = {}
    for name, text in os.environ.items():
        if not name.startswith(LASTING):
            variables[name] = text
    return {**variables, "folder": os.getcwd(), "breakpoint()": sys.breakpointhook}


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    made = WarmPython()
    yield made
    made.close()


@pytest.fixture(scope="session")
def _fork_servers() -> Iterator[LoadedForkServers]:
    made = LoadedForkServers()
    yield made
    made.close()


@pytest.fixture(scope="module")
def loaded_fork_servers(_fork_servers: LoadedForkServers) -> Iterator[None]:
    """Gradings in this process start with a fork server that has everything loaded."""
    from gpudojo.sandbox import fork_client

    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(fork_client, "subprocess", _fork_servers)
        yield
