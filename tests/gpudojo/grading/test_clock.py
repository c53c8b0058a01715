"""Clocks for student code: real outside probes, ours inside, and nothing left in Python's own modules."""

from __future__ import annotations

import time
import timeit
from pathlib import Path

import pytest
from gpudojo.days.day8.late_work import Queue, Work
from gpudojo.grading.limits import Skipping, Sleeping, running
from gpudojo.grading.load import load_submission

SPELLINGS = {
    "from": "from time import perf_counter as now\n",
    "ns": "import time\nnow = lambda: time.perf_counter_ns() / 1e9\n",
    "monotonic": "from time import monotonic as now\n",
    "time": "import time\ndef now(clock=time.time):\n    return clock()\n",
    "timeit": "from timeit import default_timer as now\n",
}


def loaded(folder: Path, source: str) -> dict[str, object]:
    path = folder / "student.py"
    path.write_text(source, encoding="utf-8")
    return load_submission(path).names


@pytest.mark.parametrize("source", SPELLINGS.values(), ids=SPELLINGS)
def test_every_clock_shows_work_without_waiting(tmp_path: Path, source: str) -> None:
    now = loaded(tmp_path, source)["now"]
    assert callable(now)
    watch = Skipping()
    began = time.perf_counter()
    with running(watch):
        start = now()
        Work([100.0], watch)()
        took = now() - start
    assert took == pytest.approx(100.0, abs=1e-5)
    assert time.perf_counter() - began < 50
    assert watch.was_read()


def test_outside_a_probe_the_clock_is_real(tmp_path: Path) -> None:
    now = loaded(tmp_path, SPELLINGS["from"])["now"]
    assert callable(now)
    assert now() == pytest.approx(time.perf_counter(), abs=1.0)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    names = ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time", "sleep")
    before = [getattr(time, name) for name in names] + [
        timeit.default_timer,
        timeit.timeit.__defaults__,
    ]
    loaded(tmp_path, "import time\ntime.perf_counter = lambda: 0.0\ntime.sleep = print\n")
    with running(Skipping()):
        pass
    assert [getattr(time, name) for name in names] + [
        timeit.default_timer,
        timeit.timeit.__defaults__,
    ] == before


def test_a_clock_that_a_student_replaced_is_not_the_one_we_use(tmp_path: Path) -> None:
    names = loaded(
        tmp_path,
        "import time\ntime.perf_counter = lambda: 0.0\ndef now():\n    return time.perf_counter()\n",
    )
    now = names["now"]
    assert callable(now)
    with running(Skipping()) as _:
        assert now() > 0.0


def test_timeit_lives_by_the_clock_too() -> None:
    watch = Skipping()
    with running(watch):
        took = timeit.timeit(Work([2.0], watch), number=3)
    assert took == pytest.approx(6.0, abs=1e-5)


def test_processor_time_does_not_run_while_one_waits() -> None:
    watch = Skipping()
    with running(watch):
        start = time.process_time()
        Work([100.0], watch)()
        assert time.process_time() - start < 50
    assert not watch.was_read()


def test_who_polls_a_device_or_sleeps_gets_there() -> None:
    watch = Skipping()
    queue = Queue(watch, lambda: None)
    queue.launch(0.02)
    asked = 0
    while not queue.is_past(queue.done[None]):
        asked += 1
    assert 100 < asked < 1000
    with running(watch):
        start = watch.now()
        time.sleep(30)
    assert watch.now() - start == pytest.approx(30)


def test_real_waits_are_real() -> None:
    watch = Sleeping()
    queue = Queue(watch, lambda: None)
    began = time.perf_counter()
    with running(watch):
        queue.launch(0.01)
        queue.wait()
    assert time.perf_counter() - began >= 0.01
    assert watch.late >= 0.0
