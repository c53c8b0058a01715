"""The file that `export_chrome_trace` writes, with a timeline of the device in it."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from virtual_cuda.clock.lanes import Interval
from virtual_cuda.torch_api.profiler_marks import MARK, is_mark, is_ours, modelled_work_of

_DEFAULT_STREAM: Final = 7  # the number that CUDA's own traces give it

# One event of a trace, as JSON has it: "ts" and "dur" are its start and duration in microseconds.
_Event = dict[str, Any]


class TracedResults:
    """What the profiler recorded; the trace that it writes has a timeline of the device."""

    def __init__(self, results: Any, with_device: bool) -> None:
        self._results = results
        self._with_device = with_device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def save(self, path: str) -> None:
        """Write the trace to a file, with the device's work in it.

        Raises OSError, and what the profiler's own results raise.
        """
        self._results.save(path)
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        events = content["traceEvents"]
        content["traceEvents"] = _trace_as_on_gpu(events, self._with_device)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)


def _trace_as_on_gpu(events: list[_Event], with_device: bool) -> list[_Event]:
    """The events of a trace without marks; `with_device`, the device's work is among them.

    Events without a duration come first, the others by their start.
    """
    timed = []
    others = []
    for event in events:
        if event.get("ph") == "X" and "dur" in event:
            timed.append(event)
        else:
            others.append(event)
    timed.sort(key=_outer_first)
    trace = _Trace(with_device)
    for event in timed:
        trace.add(event)
    return others + trace.events


def _outer_first(event: _Event) -> tuple[float, float]:
    """The key that sorts events by their start, the longer one first."""
    start = float(event["ts"])
    duration = float(event["dur"])
    return start, -duration


class _InsideMark(NamedTuple):
    """A mark, or an event inside one."""

    end: float
    is_measured: bool  # whether an operator directly inside is work of the device


class _Trace:
    """The events of a trace as they would be on a GPU."""

    def __init__(self, with_device: bool) -> None:
        """Begin without events; `with_device`, work of the device will be among them."""
        self.events: list[_Event] = []
        self._with_device = with_device
        self._clock_start: float | None = None  # 0 of the modelled clock, on the profiler's
        # By process and thread: the mark that is open, and what is open inside it.
        self._open: dict[tuple[Any, Any], list[_InsideMark]] = {}

    def add(self, event: _Event) -> None:
        """Add the next event. They come by their start, the longer one first."""
        thread = event.get("pid"), event.get("tid")
        open_here = self._open.setdefault(thread, [])
        end = float(event["ts"]) + float(event["dur"])
        while open_here and open_here[-1].end < end:
            open_here.pop()
        if is_mark(event["name"]):
            is_measured = self._add_mark(event)
            open_here.append(_InsideMark(end, is_measured))
        elif open_here:
            is_measured = self._add_inside_mark(event, open_here[-1])
            open_here.append(_InsideMark(end, is_measured))
        elif not is_ours(event["name"]):
            self.events.append(event)

    def _add_inside_mark(self, event: _Event, outer: _InsideMark) -> bool:
        """Add an event inside a mark as a kernel, if it is work of the device that is measured.

        Returns whether an operator directly inside the event is such work.
        """
        if not outer.is_measured:
            return False
        category = event.get("cat")
        if self._with_device and category == "cpu_op":
            self.events.append(_as_kernel(event))
        return category == "python_function"

    def _add_mark(self, mark: _Event) -> bool:
        """Add the modelled work of a mark; returns whether its work is measured instead.

        The modelled clock reads new rows for that; the first work tells where it was 0 on the
        profiler's. Without the device nothing is added.
        """
        modelled = modelled_work_of(mark["name"])
        if modelled is None:
            return str(mark["name"]).startswith(MARK)
        if modelled and self._with_device:
            if self._clock_start is None:
                start_on_clock = modelled[0].start * 1e6
                self._clock_start = float(mark["ts"]) - start_on_clock
            for interval in modelled:
                self.events.append(_modelled_kernel(interval, self._clock_start))
        return False


def _as_kernel(event: _Event) -> _Event:
    """An operator of the host, as a kernel of the device."""
    return {
        **event,
        "cat": "kernel",
        "pid": 0,
        "tid": _DEFAULT_STREAM,
        "args": {"device": 0, "stream": _DEFAULT_STREAM},
    }


def _modelled_kernel(interval: Interval, clock_start: float) -> _Event:
    """An event of a trace for a stretch of modelled time.

    `clock_start` is when the modelled clock was 0, in microseconds of the profiler's clock. Raises
    ValueError for an interval of the host, whose lane has no number.
    """
    lane = int(interval.lane.rpartition(" ")[2])
    stream = lane or _DEFAULT_STREAM
    return {
        "ph": "X",
        "cat": "kernel" if interval.kernels else "gpu_memcpy",
        "name": interval.name,
        "pid": 0,
        "tid": stream,
        "ts": clock_start + interval.start * 1e6,
        "dur": interval.seconds * 1e6,
        "args": {"device": 0, "stream": stream, "time": "modelled"},
    }
