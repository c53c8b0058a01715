"""Operators take the durations that are chosen, however their events are read, on host and virtual
device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpudojo.days.day8.timing_and_profiling.chosen_durations import operators_taking
from gpudojo.grading.probing import open_machine

TAKING = {"aten::mm": 5000.0, "aten::exp": 300.0, "aten::add": 2.0}


def work(device: Any) -> Any:
    x = torch.ones(2, 2, device=device)

    def run() -> None:
        for _ in range(3):
            torch.add(x, x)
            torch.exp(x)
        torch.mm(x, x)

    return run


@pytest.mark.parametrize("machine", ["laptop", "one gpu"])
@pytest.mark.parametrize(
    "options", [{}, {"with_stack": True, "profile_memory": True}, {"record_shapes": True}]
)
def test_rows_have_the_chosen_time(machine: str, options: dict[str, bool]) -> None:
    with open_machine(machine, "virtual") as bench, operators_taking(TAKING):
        run = work(bench.device)
        with (
            torch.profiler.profile(**options) as profiler,
            torch.profiler.record_function("all of it"),
        ):  # type: ignore[arg-type]
            run()
        rows = {row.key: row for row in profiler.key_averages()}
    for name, calls in (("aten::mm", 1), ("aten::exp", 3), ("aten::add", 3)):
        assert rows[name].count == calls
        assert rows[name].cpu_time_total == pytest.approx(TAKING[name] * calls)
        assert rows[name].self_cpu_time_total == pytest.approx(TAKING[name] * calls)
        if machine == "one gpu":
            assert rows[name].self_device_time_total == pytest.approx(TAKING[name] * calls)
    assert rows["all of it"].cpu_time_total == pytest.approx(5000 + 3 * 302)


def test_afterwards_times_are_real_again() -> None:
    with operators_taking({"aten::add": 1e9}):
        pass
    x = torch.ones(2)
    with torch.profiler.profile() as profiler:
        torch.add(x, x)
    assert all(row.cpu_time_total < 1e8 for row in profiler.key_averages())
