"""`torch.profiler` on the virtual device.

torch's own profiler records. Around the work of the device this package adds events, called marks,
and afterwards turns what is between them into work of the device. Where a GPU was chosen, the times
of the device are modelled ones.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

import torch
import torch.profiler

from virtual_cuda.clock.lanes import HOST as HOST_LANE
from virtual_cuda.clock.lanes import Interval
from virtual_cuda.device.state import now
from virtual_cuda.device.tensor import Plan, operator_hooks
from virtual_cuda.internals import find_internal
from virtual_cuda.ledger.rows import AllocationRow, OperationRow, SyncRow, TransferRow
from virtual_cuda.ops.attention import FusedAttention
from virtual_cuda.ops.recurrent import CudnnRnn, FusedCell
from virtual_cuda.ops.rms_norm import FusedRmsNorm
from virtual_cuda.patching import Opening, Patch, around, torch_patches

MARK: Final = "[virtual device]"
VIEW: Final = "[virtual device, nothing to do]"  # views and allocations launch no kernel
_OURS: Final = f"{__name__.partition('.')[0]}/"
# An event of the host, of this package, between the marks, of the device.
HOST, PASSED, MARKED, DEVICE = range(4)
_profile: Final[Any] = torch.autograd.profiler.profile
_Activity: Final = torch.profiler.ProfilerActivity
_IDLE: Final = (
    "aten::empty",
    "aten::new_empty",
    "aten::_has_compatible",
    "aten::set_",
    "aten::resize_",
)


_RecordFunction: Final = find_internal("torch._C._profiler._RecordFunctionFast", "the profiler")
_recording: Final[list[Any]] = []  # the profilers that record now


def _mark() -> Any:
    """An event whose name tells which row of the ledger the operator inside will write."""
    row = "" if now.gpu is None else len(now.gpu.ledger.rows)
    return _RecordFunction(f"{MARK}{row}")


def _run_in_mark(func: Any, plan: Plan, args: Any, kwargs: Any) -> Any:
    """Run an operator inside a mark."""
    idle = func.is_view or func._schema.name.startswith(_IDLE)
    with _RecordFunction(VIEW) if idle else _mark():
        return plan(args, kwargs)


def _marking(function: Any) -> Any:
    """A function that does what this one does, inside a mark."""

    def marked(*args: Any) -> Any:
        # With `create_graph`: made of operators, each with its own mark.
        if torch.is_grad_enabled():
            return function(*args)
        with _mark():
            return function(*args)

    return staticmethod(marked)


# What is one operator of CUDA and not one of torch's dispatcher here; their functions are marked
# while recording.
_FUSED: Final = {
    cls: {name: vars(cls)[name] for name in ("forward", "backward")}
    for cls in (FusedRmsNorm, FusedAttention, FusedCell, CudnnRnn)
}


def _mark_fused(on: bool) -> None:
    for cls, methods in _FUSED.items():
        for name, method in methods.items():
            setattr(cls, name, _marking(method.__func__) if on else method)


def _row(mark: str) -> int | None:
    """The number of the row that the operator of a mark has written, or None."""
    row = mark.removeprefix(MARK)
    gpu = now.gpu
    if gpu is None or not row.isdigit():
        return None
    rows = gpu.ledger.rows
    number = int(row)
    # Past what it keeps for the backward pass.
    while number < len(rows) and isinstance(rows[number], AllocationRow):
        number += 1
    return number if number < len(rows) and isinstance(rows[number], OperationRow) else None


def _is_mark(name: str) -> bool:
    return name == VIEW or name.startswith(MARK)


def _modelled(mark: str) -> list[Interval] | None:
    """What the device did for an operator, according to the modelled clock.

    None where times are measured.
    """
    gpu = now.gpu
    first = _row(mark)
    clock = None if gpu is None else gpu.clock()
    if gpu is None or clock is None:
        return None
    if first is None:
        return []
    until = first
    rows = gpu.ledger.rows
    while until < len(rows) and (until == first or isinstance(rows[until], (TransferRow, SyncRow))):
        until += 1
    key = lambda interval: interval.row  # noqa: E731
    found = clock.intervals[
        bisect_left(clock.intervals, first, key=key) : bisect_left(clock.intervals, until, key=key)
    ]
    return [interval for interval in found if interval.lane != HOST_LANE]


def _transparent(name: str) -> bool:
    """True for events that only a tensor subclass has.

    They are its dispatch, and the functions of this package.
    """
    return name == "PythonSubclass" or _OURS in name or name.removesuffix("Backward") in _NAMES


_NAMES: Final = frozenset(cls.__name__ for cls in _FUSED)


class _EventTree:
    """The events of one thread, as a tree.

    It tells which events are ours and which are the device's, and what time they take.
    """

    def __init__(self) -> None:
        self.open: list[tuple[Any, int]] = []
        self.works = True
        self.owner: Any = None  # the operator whose work on the device is being read
        self.kept: list[Any] = []
        self.parent: dict[int, Any] = {}
        self.device: dict[int, float] = {}  # id of an operator -> microseconds on the device
        self.spans: dict[int, tuple[Any, list[tuple[float, float]]]] = {}

    def add(self, event: Any) -> None:
        """Put the next event into the tree.

        Events come by their start, the longer one first. An event of a fused operator is given the
        operator's name.
        """
        start = event.time_range.start
        end = event.time_range.end
        while self.open and (
            self.open[-1][0].time_range.end < end or self.open[-1][0].time_range.end <= start
        ):
            self.open.pop()
        kind = self.open[-1][1] if self.open else HOST
        # Between marks: an operator of the host there is the device's work.
        if kind in (MARKED, DEVICE):
            if (
                kind == MARKED
                and ".py(" not in event.name
                and not event.name.startswith("<built-in")
            ):
                key = id(self.owner)
                kind = DEVICE
                self.spans[key][1].append((start, end))
                if self.works:
                    self.device[key] = self.device.get(key, 0.0) + end - start
            self.open.append((event, kind))
        # A mark: its work belongs to the operator around it, or to the mark itself.
        elif _is_mark(event.name):
            modelled = _modelled(event.name)
            self.works = event.name.startswith(MARK) and modelled is None
            above = self._above()
            self.owner = (
                above
                if above is not None and "::" in above.name and "autograd::" not in above.name
                else event
            )
            if (
                self.owner is event
                and (row := _row(event.name)) is not None
                and now.gpu is not None
            ):
                operation = now.gpu.ledger.rows[row]
                assert isinstance(operation, OperationRow)
                event.name = "::".join(operation.name.split(".")[:2])
                self.kept.append(event)
                self.parent[id(event)] = above
            self.spans.setdefault(id(self.owner), (self.owner, []))
            if modelled:
                spent = sum(interval.seconds for interval in modelled) * 1e6
                self.device[id(self.owner)] = self.device.get(id(self.owner), 0.0) + spent
            self.open.append((event, MARKED))
        elif _transparent(event.name):
            self.open.append((event, PASSED))
        else:
            self.kept.append(event)
            self.parent[id(event)] = self._above()
            self.open.append((event, HOST))

    def _above(self) -> Any:
        return next((event for event, kind in reversed(self.open) if kind == HOST), None)

    def lost(self) -> list[tuple[float, float]]:
        """The stretches of time in which only this package was at work."""
        gaps = []
        for owner, work in self.spans.values():
            at = owner.time_range.start
            for start, end in work:
                gaps.append((at, start))
                at = end
            gaps.append((at, owner.time_range.end))
        return sorted((a, b) for a, b in gaps if b > a)


def _cut(events: list[Any], gaps: list[tuple[float, float]]) -> None:
    """Move the events in time, in place, as if the gaps were not there."""
    starts = [a for a, _ in gaps]
    before = list(accumulate((b - a for a, b in gaps), initial=0.0))

    def moved(at: float) -> float:
        index = bisect_right(starts, at)
        if index and at < gaps[index - 1][1]:
            return starts[index - 1] - before[index - 1]
        return at - before[index]

    for event in events:
        event.time_range.start, event.time_range.end = (
            moved(event.time_range.start),
            moved(event.time_range.end),
        )


def tidy(events: list[Any], use_device: str | None, host: bool = True) -> list[Any]:
    """The events as they would be if the device had done its work.

    Changes their times and memory. Without `host`, only those with work on the device are returned.
    """
    threads: dict[int, _EventTree] = {}
    for event in sorted(events, key=_order):
        threads.setdefault(event.thread, _EventTree()).add(event)
    kept: list[Any] = []
    for line in threads.values():
        # Memory and time of the device's work, for the operator and its callers.
        total: dict[int, float] = {}  # device time, of each operator and of all that called it
        for event in line.kept:
            if id(event) not in line.device:
                continue
            moved = event.cpu_memory_usage
            above = event
            while above is not None:
                above.cpu_memory_usage -= moved
                above.device_memory_usage += moved
                total[id(above)] = total.get(id(above), 0.0) + line.device[id(event)]
                above = line.parent[id(above)]
        # The time of this package is taken out.
        _cut(line.kept, line.lost())
        kept += line.kept
        if use_device is not None:  # as torch's own timing by events has it
            for event in line.kept:
                event.is_legacy = True
                if total.get(id(event)):
                    event.append_kernel(event.name, 0, total[id(event)])
    return [event for event in sorted(kept, key=_order) if host or event.kernels]


def _order(event: Any) -> tuple[float, float]:
    return event.time_range.start, -event.time_range.end


class _Results:
    """What the profiler recorded; the trace that it writes has a timeline of the device."""

    def __init__(self, results: Any, device: bool) -> None:
        self._results = results
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def save(self, path: str) -> None:
        """Write the trace to a file, with the device's work in it."""
        self._results.save(path)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        trace["traceEvents"] = _with_device(trace["traceEvents"], self._device)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)


def _with_device(events: list[Any], device: bool) -> list[Any]:
    """The events of a trace without marks; with `device`, the device's work is among them."""
    timed = [e for e in events if e.get("ph") == "X" and "dur" in e]
    others = [e for e in events if e.get("ph") != "X" or "dur" not in e]
    found: list[Any] = []
    begun: float | None = None  # of the modelled clock, on the profiler's
    marks: dict[Any, list[Any]] = {}
    for event in sorted(timed, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        inside = marks.setdefault((event.get("pid"), event.get("tid")), [])
        end = float(event["ts"]) + float(event["dur"])
        while inside and inside[-1][1] < end:
            inside.pop()
        # A mark, what is inside one, or an event of the host.
        if _is_mark(event["name"]):
            modelled = _modelled(event["name"])
            inside.append((event, end, event["name"].startswith(MARK) and modelled is None))
            if modelled and device:
                begun = float(event["ts"]) - modelled[0].start * 1e6 if begun is None else begun
                found += [_kernel(interval, begun) for interval in modelled]
        elif inside:
            if device and inside[-1][2] and event.get("cat") == "cpu_op":
                kernel = {"device": 0, "stream": 7}
                found.append({**event, "cat": "kernel", "pid": 0, "tid": 7, "args": kernel})
            inside.append((event, end, inside[-1][2] and event.get("cat") == "python_function"))
        elif not _transparent(event["name"]):
            found.append(event)
    return others + found


def _kernel(interval: Interval, begun: float) -> dict[str, Any]:
    """An event of a trace for a stretch of modelled time; `begun` is when the clock was 0."""
    lane = int(interval.lane.rpartition(" ")[2])
    return {
        "ph": "X",
        "cat": "kernel" if interval.kernels else "gpu_memcpy",
        "name": interval.name,
        "pid": 0,
        "tid": lane or 7,
        "ts": begun + interval.start * 1e6,
        "dur": interval.seconds * 1e6,
        "args": {"device": 0, "stream": lane or 7, "time": "modelled"},
    }


def _made(
    original: Any,
    self: Any,
    enabled: bool = True,
    *,
    use_cuda: bool = False,
    use_device: Any = None,
    **kwargs: Any,
) -> None:
    """Make a profiler.

    One for "cuda" records the host, too, because the device's work is done there.
    """
    if not use_cuda and use_device != "cuda":
        original(self, enabled, use_device=use_device, **kwargs)
        return
    self._host_shown = kwargs.get("use_cpu", True)
    kwargs["use_cpu"] = (
        True  # the device's work is done on the host: without it there is nothing to see
    )
    original(self, enabled, **kwargs)
    self.use_device = "cuda"
    self.use_cuda = use_cuda


def _began(original: Any, self: Any) -> Any:
    if not _recording:
        operator_hooks.append(_run_in_mark)
        _mark_fused(True)
    _recording.append(self)
    return original(self)


def _left(original: Any, self: Any, *error: Any) -> Any:
    """Stop a profiler, and wrap what it has recorded.

    After the last one, operators are no longer marked.
    """
    if self in _recording:
        _recording.remove(self)
        if not _recording:
            operator_hooks.remove(_run_in_mark)
            _mark_fused(False)
    out = original(self, *error)
    if getattr(self, "kineto_results", None) is not None:
        self.kineto_results = _Results(self.kineto_results, self.use_device is not None)
    return out


def _parsed(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    return tidy(
        original(self, *args, **kwargs), self.use_device, getattr(self, "_host_shown", True)
    )


@torch_patches()
def _patches(opening: Opening) -> Iterator[Patch]:
    """The patches of torch's profiler."""
    yield around(_profile, "__init__", _made)
    yield around(_profile, "_start_trace", _began)
    yield around(_profile, "__exit__", _left)
    yield around(_profile, "_parse_kineto_results", _parsed)
    for home in (torch.profiler, torch.profiler.profiler):
        yield home, "supported_activities", lambda: {_Activity.CPU, _Activity.CUDA}
