"""`torch.profiler` on the virtual device."""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import Any, Final

import torch
import torch.profiler

from virtual_cuda.device.tensor import Tensor
from virtual_cuda.patching import Opening, Patch, torch_patches

MARK: Final = "[virtual device]"
VIEW: Final = "[virtual device, nothing to do]"  # views and allocations launch no kernel
_OURS: Final = f"{__name__.partition('.')[0]}/"
HOST, PASSED, MARKED, DEVICE = range(4)  # an event of the host, of this package, between the marks, of the device
_profile: Final[Any] = torch.autograd.profiler.profile
_Activity: Final = torch.profiler.ProfilerActivity
_IDLE: Final = ("aten::empty", "aten::new_empty", "aten::_has_compatible", "aten::set_", "aten::resize_")
_dispatch: Final = Tensor.__torch_dispatch__


class _Recording:
    """How many profilers record now."""

    depth: int = 0


_recording: Final = _Recording()


def _marked(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    idle = func.is_view or func._schema.name.startswith(_IDLE)
    with torch._C._profiler._RecordFunctionFast(VIEW if idle else MARK):
        return _dispatch(func, types, args, kwargs)


def _began() -> None:
    _recording.depth += 1
    Tensor.__torch_dispatch__ = staticmethod(_marked)  # type: ignore[method-assign]


def _ended() -> None:
    _recording.depth = max(0, _recording.depth - 1)
    if not _recording.depth:
        Tensor.__torch_dispatch__ = staticmethod(_dispatch)  # type: ignore[method-assign]


def _is_python(event: Any) -> bool:
    return ".py(" in event.name or event.name.startswith("<built-in")


def _transparent(event: Any) -> bool:
    """Events that only a tensor subclass has: its dispatch, and the functions of this package."""
    return event.name == "PythonSubclass" or _OURS in event.name


class _EventTree:
    """The events of one thread, as a tree; which are ours, which are the device's, and what time they leave."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, int]] = []
        self.works = True
        self.owner: Any = None  # the operator whose work on the device is being read
        self.kept: list[Any] = []
        self.parent: dict[int, Any] = {}
        self.device: dict[int, float] = {}  # id of an operator -> microseconds on the device
        self.spans: dict[int, tuple[Any, list[tuple[float, float]]]] = {}

    def add(self, event: Any) -> None:
        start, end = event.time_range.start, event.time_range.end
        while self.open and (self.open[-1][0].time_range.end < end or self.open[-1][0].time_range.end <= start):
            self.open.pop()
        kind = self.open[-1][1] if self.open else HOST
        if kind in (MARKED, DEVICE):
            if kind == MARKED and not _is_python(event):
                self._ran(start, end)
                kind = DEVICE
            self.open.append((event, kind))
        elif event.name in (MARK, VIEW):
            self.works = event.name == MARK
            above = self._above()
            self.owner = above if above is not None and "::" in above.name and "autograd::" not in above.name else event
            self.spans.setdefault(id(self.owner), (self.owner, []))
            self.open.append((event, MARKED))
        elif _transparent(event):
            self.open.append((event, PASSED))
        else:
            self.kept.append(event)
            self.parent[id(event)] = self._above()
            self.open.append((event, HOST))

    def _above(self) -> Any:
        return next((event for event, kind in reversed(self.open) if kind == HOST), None)

    def _ran(self, start: float, end: float) -> None:
        key = id(self.owner)
        self.spans[key][1].append((start, end))
        if self.works:
            self.device[key] = self.device.get(key, 0.0) + end - start

    def lost(self) -> list[tuple[float, float]]:
        """The stretches in which only this package was at work."""
        gaps = []
        for owner, work in self.spans.values():
            at = owner.time_range.start
            for start, end in work:
                gaps.append((at, start))
                at = end
            gaps.append((at, owner.time_range.end))
        return sorted((a, b) for a, b in gaps if b > a)


def _cut(events: list[Any], gaps: list[tuple[float, float]]) -> None:
    starts = [a for a, _ in gaps]
    before = [0.0]
    for a, b in gaps:
        before.append(before[-1] + b - a)

    def moved(at: float) -> float:
        index = bisect_right(starts, at)
        if index and at < gaps[index - 1][1]:
            return starts[index - 1] - before[index - 1]
        return at - before[index]

    for event in events:
        event.time_range.start, event.time_range.end = moved(event.time_range.start), moved(event.time_range.end)


def tidy(events: list[Any], use_device: str | None, host: bool = True) -> list[Any]:
    """The events as they would be had the device done its work."""
    threads: dict[int, _EventTree] = {}
    for event in sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end)):
        threads.setdefault(event.thread, _EventTree()).add(event)
    kept: list[Any] = []
    for line in threads.values():
        for event in line.kept:
            moved = event.cpu_memory_usage if id(event) in line.device else 0
            above: Any = event
            while moved and above is not None:
                above.cpu_memory_usage -= moved
                above.device_memory_usage += moved
                above = line.parent[id(above)]
        _cut(line.kept, line.lost())
        kept += line.kept
        if use_device is not None:
            _attribute(line)
    return [
        event for event in sorted(kept, key=lambda e: (e.time_range.start, -e.time_range.end)) if host or event.kernels
    ]


def _attribute(line: _EventTree) -> None:
    """Device time to each operator and to all that called it, as torch's own timing by events has it."""
    total: dict[int, float] = {}
    for event in line.kept:
        took = line.device.get(id(event), 0.0)
        above: Any = event
        while took and above is not None:
            total[id(above)] = total.get(id(above), 0.0) + took
            above = line.parent[id(above)]
    for event in line.kept:
        event.is_legacy = True
        if total.get(id(event)):
            event.append_kernel(event.name, 0, total[id(event)])


class _Results:
    """What the profiler recorded; the trace it writes has a device timeline."""

    def __init__(self, results: Any, device: bool) -> None:
        self._results, self._device = results, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def save(self, path: str) -> None:
        self._results.save(path)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        trace["traceEvents"] = _with_device(trace["traceEvents"], self._device)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)


def _with_device(events: list[Any], device: bool) -> list[Any]:
    timed = [e for e in events if e.get("ph") == "X" and "dur" in e]
    others = [e for e in events if e.get("ph") != "X" or "dur" not in e]
    found: list[Any] = []
    marks: dict[Any, list[Any]] = {}
    for event in sorted(timed, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        inside = marks.setdefault((event.get("pid"), event.get("tid")), [])
        end = float(event["ts"]) + float(event["dur"])
        while inside and inside[-1][1] < end:
            inside.pop()
        if event["name"] in (MARK, VIEW):
            inside.append((event, end, event["name"] == MARK))
        elif inside:
            if device and inside[-1][2] and event.get("cat") == "cpu_op":
                kernel = {"device": 0, "stream": 7}
                found.append({**event, "cat": "kernel", "pid": 0, "tid": 7, "args": kernel})
            inside.append((event, end, inside[-1][2] and event.get("cat") == "python_function"))
        elif _OURS not in event["name"] and event["name"] != "PythonSubclass":
            found.append(event)
    return others + found


def _start(original: Any) -> Any:
    def start(
        self: Any, enabled: bool = True, *, use_cuda: bool = False, use_device: Any = None, **kwargs: Any
    ) -> None:
        wanted = "cuda" if use_cuda else use_device
        host = kwargs.get("use_cpu", True)
        if wanted != "cuda":
            original(self, enabled, use_device=use_device, **kwargs)
            return
        kwargs["use_cpu"] = True  # the device's work is done on the host: without it there is nothing to see
        original(self, enabled, **kwargs)
        self.use_device, self.use_cuda, self._host_shown = "cuda", use_cuda, host

    return start


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    start_trace, leave, parse = _profile._start_trace, _profile.__exit__, _profile._parse_kineto_results

    def began(self: Any) -> Any:
        _began()
        return start_trace(self)

    def left(self: Any, *error: Any) -> Any:
        if self.enabled:
            _ended()
        out = leave(self, *error)
        if getattr(self, "kineto_results", None) is not None:
            self.kineto_results = _Results(self.kineto_results, self.use_device is not None)
        return out

    def parsed(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        return tidy(parse(self, result, *args, **kwargs), self.use_device, getattr(self, "_host_shown", True))

    return [
        (_profile, "__init__", _start(_profile.__init__)),
        (_profile, "_start_trace", began),
        (_profile, "__exit__", left),
        (_profile, "_parse_kineto_results", parsed),
        (torch.profiler.profiler, "supported_activities", lambda: {_Activity.CPU, _Activity.CUDA}),
        (torch.profiler, "supported_activities", lambda: {_Activity.CPU, _Activity.CUDA}),
    ]
