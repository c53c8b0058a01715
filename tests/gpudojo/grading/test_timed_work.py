"""Work of known duration for exercise 10, by the modelled clock and by this machine's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from gpudojo.days.day8.timing_and_profiling.timed_work import (
    AppleEvent,
    AppleGpu,
    RealClock,
    Workshop,
)
from gpudojo.grading.load import load_submission
from virtual_cuda.hooks import modelled_time


def test_work_of_the_host_takes_as_long_as_it_should() -> None:
    with modelled_time() as clock:
        work = Workshop(clock, modelled=True).make([3.0, 1.0], "cpu")
        for _ in range(3):
            work()
    assert work.took == pytest.approx([3.0, 1.0, 1.0])


def test_a_macs_gpu_works_while_the_host_goes_on() -> None:
    with modelled_time() as clock:
        workshop = Workshop(clock, modelled=True)
        gpu = workshop.apple_gpu
        start, end = (AppleEvent(gpu, enable_timing=True) for _ in range(2))
        start.record()
        workshop.make([0.2], "mps")()
        end.record()
        assert clock.now() < 0.1
        with pytest.raises(RuntimeError, match="must be completed"):
            start.elapsed_time(end)
        while not end.query():
            pass
        gpu.synchronize()
    assert clock.now() == pytest.approx(0.2, rel=1e-3)
    assert start.elapsed_time(end) == pytest.approx(200, rel=1e-3)


def test_real_waits_are_real() -> None:
    gpu = AppleGpu(RealClock())
    began = time.perf_counter()
    gpu.launch(0.01)
    gpu.synchronize()
    assert time.perf_counter() - began >= 0.01


def test_a_clock_that_a_student_replaced_is_back_after_loading(tmp_path: Path) -> None:
    path = tmp_path / "student.py"
    path.write_text("import time\ntime.perf_counter = lambda: 0.0\ntime.sleep = print\n")
    before = time.perf_counter, time.sleep
    load_submission(path)
    assert (time.perf_counter, time.sleep) == before
