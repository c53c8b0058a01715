"""What modelled times mean: what limits a program, how it compares with a CPU, and its lanes to scale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from virtual_cuda.clock.gpus import Gpu, a_cpu
from virtual_cuda.clock.kernels import Kernel, kernels_of
from virtual_cuda.clock.lanes import HOST, Host, Times, call_of, is_transfer
from virtual_cuda.ledger import records
from virtual_cuda.ledger.drawing import duration
from virtual_cuda.ledger.exports import TraceEvent, details_of, named_tracks, title_of
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.records import Row
from virtual_cuda.ledger.timeline import MOST_LANES, PARTS, Lane, LaneKind, Scaled

MUCH: Final = 0.4  # the share of the time from which copies, or a GPU that waits, are what limits a program
CLOSE: Final = 1.2  # times as fast is as good as the same


def spent(seconds: float) -> str:
    """A time with three digits: "12.3 ms"."""
    return duration(round(seconds * 1e9))


def what_limits(times: Times) -> str:
    """One sentence on what limits a program, and what to do about it."""
    if not times.on_device or not times.end:
        return "Nothing ran on the GPU."
    pageable, pinned = _copied(times)
    copied, waits = pageable + pinned, times.idle_share
    if copied >= MUCH:
        advice = (
            "copy less, or once, before the loop"
            if pinned > pageable
            else "pin the memory, or copy once, before the loop"
        )
        return f"Copies take {copied:.0%} of the time: {advice}."
    if waits >= MUCH:
        copies, launches = sum(i.kind == "copy" for i in times.on_device), _number(times.kernels, "launch", "launches")
        if times.kernels >= copies:
            issue, run = times.issued / times.kernels, times.kernel_seconds / times.kernels
            what = f"{launches} of {spent(issue)}, for kernels of {spent(run)}"
            larger = "operations, or a larger batch,"
        else:
            work = _number(copies, "copy", "copies") + (f" and {launches}" if times.kernels else "")
            busy = spent(times.kernel_seconds + times.copy_seconds)
            what, larger = f"the CPU takes {spent(times.issued)} for {work}, the GPU {busy}", "copies"
        return f"The GPU waits {waits:.0%} of the time: {what}. Fewer and larger {larger} keep it busy."
    return f"The GPU works {1 - waits:.0%} of the time: the work itself limits the speed."


def _copied(times: Times) -> tuple[float, float]:
    """The shares of the time that copies of pageable and of pinned memory take."""
    ways = ("pageable", "pinned")
    pageable, pinned = (sum(i.seconds for i in times.on_device if i.name.endswith(way)) for way in ways)
    return pageable / times.end, pinned / times.end


class OnCpu(NamedTuple):
    """Modelled seconds of the same program on a CPU: what each operator costs at least, and the work in it."""

    fixed: float
    work: float

    @property
    def seconds(self) -> float:
        return self.fixed + self.work


def on_cpu(ledger: Sequence[Row], cpu: Gpu) -> OnCpu:
    """The same operators on a CPU: no copies, no waits, one after the other."""
    host = Host()
    fixed = work = 0.0
    for number, row in enumerate(ledger):
        if row[0] in (records.TRANSFER, records.SYNC, records.STREAM, records.SCALER_CALL):
            continue
        call = call_of(row) if row[0] == records.OPERATION else None
        if call is not None and is_transfer(ledger, number):
            continue
        fixed += sum(cpu.host[cost] * times for cost, times in host.costs(number, row, call, 1))
        work += sum(cpu.seconds(kernel) for kernel in _kernels(row, cpu)) if call is not None else 0.0
    return OnCpu(fixed, work)


def compared(ledger: Sequence[Row], times: Times, gpu: Gpu) -> list[str]:
    """How much faster a GPU is than a CPU for a whole ledger, and when it is not: lines to print."""
    cpu = a_cpu()
    other = on_cpu(ledger, cpu)
    took = f"{times.gpu} {spent(times.end)}, CPU {spent(other.seconds)} ({cpu.title}), both modelled"
    if not times.end or not other.seconds:
        return [f"{took}."]
    ratio, batch = other.seconds / times.end, batch_of(ledger)
    small = f"{f'a batch of {batch}' if batch else 'the work'} is too small for this GPU"
    why = "the copies cost more than the GPU gains" if sum(_copied(times)) >= MUCH else small
    if ratio >= CLOSE:
        verdict = f"the GPU is {ratio:.1f} times as fast"
    elif ratio > 1 / CLOSE:
        verdict = f"{why}: the CPU is as fast"
    else:
        verdict = f"{why}: the CPU is {1 / ratio:.1f} times as fast"
    return [f"{took}: {verdict}.", _when(ledger, times, gpu, other)]


def _when(ledger: Sequence[Row], times: Times, gpu: Gpu, other: OnCpu) -> str:
    """From how much data on, relative to this, the same operations are faster on the GPU."""
    issue = sum(i.seconds for i in times.intervals if i.lane == HOST and i.kind == "issue")
    busy = sum(i.seconds for i in times.on_device)
    growing = busy - sum(gpu.least(k) for row in ledger if row[0] == records.OPERATION for k in _kernels(row, gpu))

    def faster(data: float) -> bool:
        # The host issues as much as before; the rest grows or shrinks with the data.
        return max(issue, busy + (data - 1) * max(growing, 0.0)) < other.fixed + data * other.work

    steps = [2.0**power for power in range(-10, 15)]
    start = next((data for data in steps if faster(data)), None)
    batch = batch_of(ledger)
    if start is None:
        return "More data would not change that."
    if start == steps[0]:
        return "Less data would not change that."
    wanted = f"batches of about {max(round(batch * start), 1):,}" if batch else f"about {start:g} times the data"
    return f"With the same operations, the GPU is faster from {wanted} on."


def _kernels(row: Row, gpu: Gpu) -> list[Kernel]:
    return kernels_of(call_of(row), gpu.chip())


def batch_of(ledger: Sequence[Row]) -> int:
    """The most frequent first dimension of what layers are given; 0 where there are none."""
    places = {"addmm": 1, "mm": 0, "convolution": 0, "linear": 0}
    found: Counter[int] = Counter()
    for row in ledger:
        if row[0] == records.OPERATION and row[6] & records.GRAD:
            call = call_of(row)
            place = places.get(call.name)
            if place is not None and len(call.given) > place + 1 and len(call.given[place]) > 1:
                found[call.given[place][0]] += 1
    return found.most_common(1)[0][0] if found else 0


# ---- to scale --------------------------------------------------------------------------------------------------------


def scaled(times: Times) -> Scaled:
    """The lanes of modelled times as plain data: for each part of the time what a lane did, and how much of it."""
    shares: dict[str, list[dict[LaneKind, float]]] = {HOST: [{} for _ in range(PARTS)]}
    scale = PARTS / times.end if times.end else 0.0
    for interval in times.intervals:
        parts = shares.setdefault(interval.lane, [{} for _ in range(PARTS)])
        start, end = interval.start * scale, interval.end * scale
        for place in range(int(start), min(int(end) + 1, PARTS)):
            share = min(end, place + 1) - max(start, place)
            parts[place][interval.kind] = parts[place].get(interval.kind, 0.0) + share
    lanes = [Lane(name, [_most(part) for part in parts]) for name, parts in shares.items()]
    limit, idle = what_limits(times), round(times.idle_share * 100)
    return Scaled(times.gpu, round(times.end * 1e9), idle, limit, lanes[:MOST_LANES])


def _most(part: dict[LaneKind, float]) -> tuple[LaneKind, int]:
    """What took most of a part of the time, and the percentage in which the lane did anything."""
    if not part:
        return "issue", 0
    return max(part, key=lambda kind: part[kind]), min(math.ceil(sum(part.values()) * 100 - 1e-6), 100)


def modelled_trace(ledger: Ledger, times: Times) -> dict[str, list[TraceEvent]]:
    """The trace events of modelled times for Perfetto: a track for the host and one for each stream, to scale."""
    known = ledger.by_row()
    tracks = {HOST: 1}
    events: list[TraceEvent] = []
    for interval in times.intervals:
        record = known.get(interval.row)
        track = tracks.setdefault(interval.lane, len(tracks) + 1)
        title = interval.name or (title_of(record) if record is not None else interval.kind)
        lasts = {"ts": round(interval.start * 1e6, 3), "dur": round(interval.seconds * 1e6, 3)}
        told = {**(details_of(record) if record is not None else {}), "time": "modelled"}
        events.append({"name": title, "cat": interval.kind, "ph": "X", "pid": 1, "tid": track, **lasts, "args": told})
    names = {track: f"{lane}, modelled on {times.gpu}" for lane, track in tracks.items()}
    return {"traceEvents": [*named_tracks(names), *events]}


def _number(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
