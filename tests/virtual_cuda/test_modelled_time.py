"""Python's clocks tell modelled time: all of them, only inside the block, and with nothing left
behind.
"""

from __future__ import annotations

import threading
import time
import timeit
from typing import Any

import pytest
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.hooks import CYCLES_PER_SECOND, modelled_time, patch_imported_names

CLOCKS = ("perf_counter", "monotonic", "time")


@pytest.mark.parametrize("name", CLOCKS)
def test_every_clock_shows_sleep_that_nobody_waits_for(name: str) -> None:
    began = time.perf_counter()
    with modelled_time() as clock:
        start, start_ns = getattr(time, name)(), getattr(time, f"{name}_ns")()
        time.sleep(100)
        assert getattr(time, name)() - start == pytest.approx(100, abs=1e-5)
        assert getattr(time, f"{name}_ns")() - start_ns == pytest.approx(100e9, abs=1e4)
    assert time.perf_counter() - began < 50
    assert clock.slept == 100
    assert clock.clocks_read == {name, f"{name}_ns"}
    assert clock.was_read


def test_a_processor_has_nothing_to_do_while_one_sleeps_or_waits() -> None:
    with virtual_cuda(), modelled_time() as clock:
        start = time.process_time()
        time.sleep(100)
        torch.cuda._sleep(round(2 * CYCLES_PER_SECOND))
        torch.cuda.synchronize()
        assert 0 < time.process_time() - start < 1e-3
    assert not clock.was_read


def test_timeit_lives_by_the_clock_too() -> None:
    with modelled_time():
        for took in (
            timeit.timeit(lambda: time.sleep(2), number=3),
            timeit.Timer(lambda: time.sleep(2)).timeit(3),
            *timeit.repeat(lambda: time.sleep(2), number=3, repeat=2),
        ):
            assert took == pytest.approx(6, abs=1e-5)


def test_a_file_that_was_run_before_may_have_imported_a_clock() -> None:
    names: dict[str, Any] = {}
    exec("from time import perf_counter as now\nfrom timeit import default_timer", names)
    with modelled_time(), patch_imported_names(names):
        start, first = names["now"](), names["default_timer"]()
        time.sleep(5)
        assert names["now"]() - start == pytest.approx(5, abs=1e-5)
        assert names["default_timer"]() - first == pytest.approx(5, abs=1e-5)
    assert names["now"] is time.perf_counter


def test_nothing_is_left_behind() -> None:
    modules = [dict(vars(time)), dict(vars(timeit))]
    with modelled_time():
        pass
    assert [dict(vars(time)), dict(vars(timeit))] == modules


def test_a_negative_sleep_is_refused_as_by_python() -> None:
    with modelled_time(), pytest.raises(ValueError, match="must be non-negative"):
        time.sleep(-1)


def test_who_asks_an_event_or_a_stream_again_and_again_gets_there() -> None:
    with virtual_cuda(), modelled_time():
        event, stream = torch.cuda.Event(), torch.cuda.current_stream()
        for ask in (event.query, stream.query):
            torch.cuda._sleep(round(0.01 * CYCLES_PER_SECOND))
            event.record()
            start = time.perf_counter()
            while not ask():
                pass
            assert time.perf_counter() - start == pytest.approx(0.01, rel=0.01)


def test_an_event_that_is_not_reached_has_no_time() -> None:
    with virtual_cuda(), modelled_time():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(round(0.5 * CYCLES_PER_SECOND))
        end.record()
        with pytest.raises(RuntimeError, match="must be completed"):
            start.elapsed_time(end)
        end.synchronize()
        assert start.elapsed_time(end) == pytest.approx(500, rel=1e-3)


def test_one_waits_for_the_gpu_that_one_names() -> None:
    with virtual_cuda(devices=2), modelled_time():
        with torch.cuda.device(1):
            torch.cuda._sleep(CYCLES_PER_SECOND.__ceil__())
        start = time.perf_counter()
        torch.cuda.synchronize()
        assert time.perf_counter() - start < 1e-3
        torch.cuda.synchronize(1)
        assert time.perf_counter() - start == pytest.approx(1, rel=1e-3)


def test_a_wait_for_what_has_no_work_is_found() -> None:
    with virtual_cuda(devices=2) as gpu, modelled_time():
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        assert gpu.ledger.useless_wait() is None
        other = torch.cuda.Stream()
        other.synchronize()
        wait = gpu.ledger.useless_wait()
        assert wait is not None
        assert wait.device_works
        assert wait.site is not None
        assert wait.site.function == "test_a_wait_for_what_has_no_work_is_found"
        mark = gpu.ledger.mark()
        torch.cuda._sleep(1000)
        torch.cuda.synchronize(1)
        wait = gpu.ledger.since(mark).useless_wait()
        assert wait is not None
        assert not wait.device_works


def test_work_takes_its_time_in_whichever_thread_it_is_done() -> None:
    with modelled_time() as clock:
        began = time.perf_counter()
        thread = threading.Thread(target=clock.work, args=(2.0,))
        thread.start()
        thread.join()
        clock.work(1.0)
        assert time.perf_counter() - began == pytest.approx(3.0, abs=1e-3)
        assert clock.slept == 3.0


def test_a_thread_in_the_background_sleeps_in_real_time_and_adds_nothing() -> None:
    slept: list[float] = []

    def beat() -> None:
        began = time.perf_counter()
        time.sleep(0.05)
        time.monotonic_ns()
        slept.append(time.perf_counter() - began)

    with modelled_time() as clock:
        start = clock.now()
        thread = threading.Thread(target=beat)
        thread.start()
        thread.join()
        assert clock.now() - start < 1e-3
    assert slept[0] >= 0.05
    assert clock.slept == 0
    assert not clock.was_read
