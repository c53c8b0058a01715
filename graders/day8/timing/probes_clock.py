"""What do `time_on_device` and `compare_devices` say of work whose durations we chose?"""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any, Final

from graders.day8.timing.functions import clock, compare
from graders.probes.calling import Call, StudentRaised
from graders.probes.clock import Clock, Skipping, Sleeping, running
from graders.probes.late import torch
from graders.probes.late_work import Queue, Work, working_later

MILLISECOND: Final = 1e-3


def _durations(call: Call, name: str, *milliseconds: float) -> list[float]:
    """About these durations, in seconds: other ones for every seed, so that no answer is known beforehand."""
    dice = random.Random(f"{call.seed} {name}")
    return [value * dice.uniform(0.9, 1.1) * MILLISECOND for value in milliseconds]


def _bounds(right: float, repeats: int, watch: Clock) -> dict[str, float]:
    """What may be said of work that took `right` seconds per call."""
    if not watch.really:
        return {"right": right, "least": right * 0.98, "most": right * 1.02}
    # What the host overslept is not the student's fault, and neither is a busy machine's odd millisecond.
    return {"right": right, "least": right * 0.9, "most": right * 1.25 + MILLISECOND + watch.late / repeats}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _fits(row: dict[str, Any]) -> bool:
    return row["value"] is None or bool(row["least"] <= row["value"] <= row["most"])


def _timed(call: Call, durations: list[float], device: Any, later: bool = False, **options: int) -> dict[str, Any]:
    """What it says of such work; if it looked at no clock of ours, it is asked once more, in real time."""
    watch = Skipping()
    found = _timed_by(watch, call, durations, device, later, options)
    if not _fits(found) and not watch.was_read():
        with contextlib.suppress(StudentRaised):
            found["really"] = _timed_by(Sleeping(), call, durations, device, later, options)
    return found


def _timed_by(
    watch: Clock, call: Call, durations: list[float], device: Any, later: bool, options: dict[str, int]
) -> dict[str, Any]:
    with running(watch), _working(call, watch) if later else contextlib.nullcontext() as queue:
        work = Work(durations, watch, queue)
        value = call(work, device, **options)
    repeats = options.get("repeats", 5)
    return {
        "class": type(value).__name__,
        "value": _number(value),
        "took": work.took[:50],
        "calls": len(work.took),
        "repeats": repeats,
        "clocks": sorted(watch.read),
        **_bounds(math.fsum(work.took[-repeats:]) / repeats, repeats, watch),
    }


@contextlib.contextmanager
def _working(call: Call, watch: Clock) -> Any:
    from graders.bench.patching import imported_into

    with working_later(watch) as queue, imported_into(getattr(call.function, "__globals__", {})):
        yield queue


@clock.probe(machine="one gpu")
def uneven_calls(call: Call) -> dict[str, Any]:
    """On the CPU and without warm-up: three short calls and a long one."""
    return _timed(call, _durations(call, "uneven", 8, 8, 8, 40), "cpu", repeats=4, warmup=0)


@clock.probe(machine="one gpu")
def slow_first_calls(call: Call) -> dict[str, Any]:
    """On the CPU, where nothing has to be waited for: two slow calls to warm up."""
    return _timed(call, _durations(call, "slow", 50, 50, 10), torch.device("cpu"), repeats=3, warmup=2)


@clock.probe(machine="one gpu")
def as_it_comes(call: Call) -> dict[str, Any]:
    """With the defaults: one warm-up, five calls."""
    return _timed(call, _durations(call, "defaults", 4), "cpu")


@clock.probe(machine="one gpu")
def a_device_that_works_later(call: Call) -> dict[str, Any]:
    return _timed(call, _durations(call, "later", 60, 60, 10), call.device, later=True, repeats=4, warmup=2)


@clock.probe(machine="mac")
def an_apple_gpu_that_works_later(call: Call) -> dict[str, Any]:
    try:
        return _timed(call, _durations(call, "mac", 60, 10), "mps", later=True, repeats=4, warmup=1)
    except StudentRaised as error:
        return error_of(error)


@clock.probe(machine="laptop")
def a_machine_without_a_gpu(call: Call) -> dict[str, Any]:
    try:
        return _timed(call, _durations(call, "laptop", 4), "cpu", repeats=3, warmup=1)
    except StudentRaised as error:
        return error_of(error)


def error_of(error: StudentRaised) -> dict[str, Any]:
    return {"raised": error.evidence.type, "text": error.evidence.message[:120], "line": error.evidence.line}


class _Makers:
    """Work for several devices: what `make_work` was asked for, and how long each device's calls took."""

    def __init__(self, call: Call, watch: Clock, queue: Queue) -> None:
        self.call, self.watch, self.queue = call, watch, queue
        self.made: dict[str, Work] = {}

    def make_work(self, device: Any) -> Work:
        key = str(device)
        self.watch.work(15 * MILLISECOND)  # making it takes its time too, which is none of the work's
        if key not in self.made:
            on_cpu = torch.device(device).type == "cpu"
            durations = _durations(self.call, key, *((40, 4) if on_cpu else (60, 10)))
            self.made[key] = Work(durations, self.watch, None if on_cpu else self.queue)
        return self.made[key]


def _compared(call: Call, devices: list[Any], **options: int) -> dict[str, Any]:
    watch = Skipping()
    found = _compared_by(watch, call, devices, options)
    if not all(map(_fits, found["rows"])) and not watch.was_read():
        with contextlib.suppress(StudentRaised):
            found["really"] = _compared_by(Sleeping(), call, devices, options)
    return found


def _compared_by(watch: Clock, call: Call, devices: list[Any], options: dict[str, int]) -> dict[str, Any]:
    with running(watch), _working(call, watch) as queue:
        makers = _Makers(call, watch, queue)
        found = call(makers.make_work, devices, **options)
    repeats = options.get("repeats", 3)
    rows = []
    for key, value in dict.items(found) if isinstance(found, dict) else ():
        asked = str(key) in makers.made
        took = makers.made[str(key)].took if asked else []
        warm = took[1:]  # the first call of each device's work is the slow one
        right = math.fsum(warm) / len(warm) if warm else 0.0
        row = {"key": str(key), "is_text": isinstance(key, str), "value": _number(value), "asked": asked}
        rows.append({**row, "took": took[:50], **_bounds(right, repeats, watch)})
    return {
        "class": type(found).__name__,
        "is_dict": isinstance(found, dict),
        "rows": rows,
        "repeats": repeats,
        "calls": {key: len(work.took) for key, work in makers.made.items()},
    }


@compare.probe(machine="one gpu")
def gpu_first(call: Call) -> dict[str, Any]:
    return _compared(call, ["cuda", "cpu"])


@compare.probe(machine="one gpu")
def cpu_first(call: Call) -> dict[str, Any]:
    """The other way round, as devices, and with other repeats."""
    return _compared(call, [torch.device("cpu"), torch.device("cuda:0")], repeats=5)
