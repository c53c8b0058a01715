"""The modelled clock: when the host issued each row of a ledger, when a stream worked on it, what limits a program."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from virtual_cuda.clock.gpu_models import Gpu, a_cpu, way_of
from virtual_cuda.clock.kernels import COPY, VIEWS, Kernel, KernelCall, kernels_of
from virtual_cuda.ledger import records
from virtual_cuda.ledger.exports import TraceEvent, details_of, named_tracks, title_of
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.records import Row
from virtual_cuda.ledger.timeline import (
    MOST_LANES,
    PARTS,
    Lane,
    LaneKind,
    Scaled,
    counted,
    duration,
)

MUCH: Final = (
    0.4  # the share of the time from which copies, or a GPU that waits, are what limits a program
)
CLOSE: Final = 1.2  # times as fast is as good as the same


def spent(seconds: float) -> str:
    """A time with three digits: "12.3 ms"."""
    return duration(round(seconds * 1e9))


def what_limits(times: Times) -> str:
    """One sentence on what limits a program, and what to do about it."""
    on_device = times.on_device
    if not on_device or not times.end:
        return "Nothing ran on the GPU."
    pageable, pinned = _copied(times)
    copied = pageable + pinned
    waits = times.idle_share
    if copied >= MUCH:
        advice = (
            "copy less, or once, before the loop"
            if pinned > pageable
            else "pin the memory, or copy once, before the loop"
        )
        return f"Copies take {copied:.0%} of the time: {advice}."
    if waits >= MUCH:
        copies = sum(i.kind == "copy" for i in on_device)
        count = sum(i.kernels for i in on_device)
        busy = sum(i.seconds for i in on_device)
        if count >= copies:
            issue = times.issued / count
            run = sum(i.seconds for i in on_device if i.kernels) / count
            what = f"the CPU takes {spent(issue)} for each of {counted(count, 'kernel')}, which run {spent(run)}"
            larger = "operations, or a larger batch,"
        else:
            work = counted(copies, "copy", "copies") + (
                f" and {counted(count, 'kernel')}" if count else ""
            )
            what = f"the CPU takes {spent(times.issued)} for {work}, the GPU {spent(busy)}"
            larger = "copies"
        return f"The GPU waits {waits:.0%} of the time: {what}. Fewer and larger {larger} keep it busy."
    return f"The GPU works {1 - waits:.0%} of the time: the work itself limits the speed."


def _copied(times: Times) -> tuple[float, float]:
    """The shares of the time that copies of pageable and of pinned memory take."""
    copies = [interval for interval in times.on_device if not interval.kernels]
    pageable, pinned = (
        sum(i.seconds for i in copies if i.name.endswith(way)) for way in ("pageable", "pinned")
    )
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
        if row[0] in (records.TRANSFER, records.SYNC, records.SCALER_CALL) or (
            row[0] == records.STREAM and row[6] != "list"
        ):
            continue
        call = call_of(row) if row[0] == records.OPERATION else None
        if call is not None and is_transfer(ledger, number):
            continue
        fixed += sum(cpu.host[cost] * times for cost, times in host.costs(number, row, call, 1))
        work += (
            sum(cpu.seconds(kernel) for kernel in _kernels(row, cpu)) if call is not None else 0.0
        )
    return OnCpu(fixed, work)


def compared(ledger: Sequence[Row], times: Times, gpu: Gpu) -> list[str]:
    """How much faster a GPU is than a CPU for a whole ledger, and when it is not: lines to print."""
    cpu = a_cpu()
    other = on_cpu(ledger, cpu)
    took = (
        f"{times.gpu} {spent(times.end)}, CPU {spent(other.seconds)} ({cpu.title}), both modelled"
    )
    if not times.end or not other.seconds:
        return [f"{took}."]
    ratio = other.seconds / times.end
    batch = batch_of(ledger)
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
    growing = busy - sum(
        gpu.least(k) for row in ledger if row[0] == records.OPERATION for k in _kernels(row, gpu)
    )

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
    wanted = (
        f"batches of about {max(round(batch * start), 1):,}"
        if batch
        else f"about {start:g} times the data"
    )
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
    shares: dict[
        str, tuple[list[tuple[LaneKind, int]], defaultdict[int, dict[LaneKind, float]]]
    ] = {}
    scale = PARTS / times.end if times.end else 0.0
    for lane in (HOST, *(interval.lane for interval in times.intervals)):
        if lane not in shares:
            shares[lane] = [("issue", 0)] * PARTS, defaultdict(dict)
    for _, lane, _, begun, ended, _, kind in times.intervals:
        done, parts = shares[lane]
        start = begun * scale
        end = ended * scale
        first = int(start)
        last = min(int(end), PARTS - 1)
        if first > last:  # nothing, at the very end
            continue
        part = parts[first]
        part[kind] = part.get(kind, 0.0) + ((end if first == last else first + 1) - start)
        if first < last:
            part = parts[last]
            part[kind] = part.get(kind, 0.0) + (end - last)
            done[first + 1 : last] = [(kind, 100)] * (
                last - first - 1
            )  # no lane does two things at a time
    for done, parts in shares.values():
        for place, part in parts.items():
            done[place] = _most(part)
    lanes = [Lane(name, done) for name, (done, _) in shares.items()]
    limit = what_limits(times)
    idle = round(times.idle_share * 100)
    return Scaled(times.gpu, round(times.end * 1e9), idle, limit, lanes[:MOST_LANES])


def _most(part: dict[LaneKind, float]) -> tuple[LaneKind, int]:
    """What took most of a part of the time, and the percentage in which the lane did anything."""
    most = max(part, key=part.__getitem__) if len(part) > 1 else next(iter(part))
    return most, min(math.ceil(sum(part.values()) * 100 - 1e-6), 100)


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
        events.append(
            {
                "name": title,
                "cat": interval.kind,
                "ph": "X",
                "pid": 1,
                "tid": track,
                **lasts,
                "args": told,
            }
        )
    names = {track: f"{lane}, modelled on {times.gpu}" for lane, track in tracks.items()}
    return {"traceEvents": [*named_tracks(names), *events]}


HOST: Final = "host"
HZ: Final = 1.98e9  # cycles per second, for `torch.cuda._sleep`
_FILLING: Final = (
    4  # times the least time of its kind: a kernel that takes so long has work for the whole GPU
)
_SEGMENT: Final = (
    20 << 20
)  # what the allocator asks CUDA for at least, so that the next tensors cost nothing


class Interval(NamedTuple):
    """Work of one row on one lane, in seconds since the first row that the clock has read."""

    row: int
    lane: str  # "host", or a device and the number of one of its streams: "cuda:0 stream 0"
    name: str
    start: float
    end: float
    kernels: int = 0  # 0 for copies and for the host
    kind: Literal["kernel", "copy", "issue", "wait"] = "kernel"

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Times(NamedTuple):
    """What the model says of a part of a ledger. All times are modelled, none is measured."""

    gpu: str
    intervals: list[Interval]
    issued: float  # when the host had issued everything
    end: float  # when the devices were done, too
    steps: Sequence[
        float
    ] = ()  # how long each step of an optimizer took on the device, from kernel to kernel

    @property
    def on_device(self) -> list[Interval]:
        return [interval for interval in self.intervals if interval.lane != HOST]

    @property
    def kernels(self) -> int:
        """As torch's profiler counts them: the range of an optimizer's step is one more."""
        return sum(interval.kernels for interval in self.intervals) + len(self.steps)

    @property
    def kernel_seconds(self) -> float:
        """As torch's profiler adds them up, with the range of an optimizer's step."""
        return sum(interval.seconds for interval in self.intervals if interval.kernels) + sum(
            self.steps
        )

    @property
    def copy_seconds(self) -> float:
        return sum(interval.seconds for interval in self.on_device if not interval.kernels)

    @property
    def idle_share(self) -> float:
        """The share of the time in which no stream had anything to do."""
        busy = until = 0.0
        for start, end in sorted((interval.start, interval.end) for interval in self.on_device):
            if end > until:
                busy += end - (start if start > until else until)
                until = end
        return 1 - busy / self.end if self.end else 0.0

    def by_row(self) -> dict[int, tuple[float, float]]:
        """Seconds of the host and of the devices for each row that took any."""
        found: dict[int, tuple[float, float]] = {}
        for interval in self.intervals:
            host, device = found.get(interval.row, (0.0, 0.0))
            of_host = interval.lane == HOST
            found[interval.row] = (
                host + interval.seconds * of_host,
                device + interval.seconds * (not of_host),
            )
        return found

    def by_record(self, ledger: Ledger) -> dict[int, tuple[float, float]]:
        """The same for the records of a ledger, by their index."""
        found = self.by_row()
        return {record.index: found[row] for row, record in ledger.by_row().items() if row in found}


def times_of(ledger: Sequence[Row], gpu: Gpu, first: int = 0, until: int | None = None) -> Times:
    """The modelled times of the rows `first` to `until` of a whole ledger.

    The rows before tell which memory is cached, and whether products may use TF32.
    """
    clock = Clock(ledger, gpu, first)
    clock.advance(until)
    return Times(gpu.name, clock.intervals, clock.now, clock.idle_at(), clock.steps)


# ---- the host --------------------------------------------------------------------------------------------------------

# Operators whose functions do more on the host than to launch a kernel, by the library or the checks behind them.
_LIBRARIES: Final = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"), "cuBLAS"),
    **dict.fromkeys(("convolution", "convolution_backward"), "cuDNN"),
    **dict.fromkeys(("native_batch_norm", "native_batch_norm_backward"), "cuDNN norm"),
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward"), "cuDNN recurrent"),
    **dict.fromkeys(
        ("sum", "mean", "max", "min", "std", "var", "argmax", "argmin", "linalg_vector_norm"),
        "reduction",
    ),
    **dict.fromkeys(
        ("index", "index_put_", "index_put", "nonzero", "index_add", "sort", "topk"), "indexing"
    ),
    "_scaled_dot_product_efficient_attention": "attention",
    "_scaled_dot_product_efficient_attention_backward": "attention",
}
_ALLOCATING: Final = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
)
_SPANS: Final = {
    records.FORWARD: "module",
    records.BACKWARD: "backward",
    records.OPTIMIZER_STEP: "step",
}


class Host:
    """What the host does for each row, and the passes and steps it is in."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # row of a span that has not ended -> its kind

    def costs(
        self, number: int, row: Row, call: KernelCall | None, kernels: int
    ) -> Iterator[tuple[str, float]]:
        """Pairs of a cost's name and how often it arises."""
        kind = row[0]
        if kind == records.OPERATION and call is not None:
            grad = row[6] & records.GRAD and not row[6] & records.INFERENCE
            yield from self._operator(call, kernels, bool(grad))
        elif kind in _SPANS:
            self._open[number] = kind
            yield _SPANS[kind], 1
        elif kind == records.END:
            self._open.pop(row[4], None)
        elif kind == records.SYNC:
            yield ("synchronize" if row[5] else "wait"), 1
        elif kind == records.TRANSFER:
            yield "transfer", 1
        elif kind == records.SCALER_CALL:
            yield "scaler", 1
        elif kind == records.STREAM and row[6] != "tf32":
            names = {"record": ("event", 1), "list": ("list number", row[7])}
            yield names.get(row[6], ("stream", 1))

    def _operator(self, call: KernelCall, kernels: int, grad: bool) -> Iterator[tuple[str, float]]:
        spans = self._open.values()
        # Autograd runs its own operators; in a forward pass with gradients, operators also build the graph.
        where = (
            " backward"
            if records.BACKWARD in spans
            else " gradient"
            if grad and records.FORWARD in spans
            else ""
        )
        if call.name in VIEWS:
            backward = where if where == " backward" else ""
            yield ("allocation" if call.name in _ALLOCATING else f"view{backward}"), 1
            return
        if call.name == "_local_scalar_dense":
            yield "item", 1
        elif call.name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
            yield "list", 1
            yield "list tensor", len(call.given)
        else:
            yield f"operator{where}", 1
        library = _LIBRARIES.get(call.name)
        if library is not None and (
            library != "cuDNN norm" or len(call.given[0] if call.given else ()) > 2
        ):
            yield library, 1
        if kernels > 1:
            recurrent = {
                "_cudnn_rnn": "recurrent launch",
                "_cudnn_rnn_backward": "recurrent launch backward",
            }
            yield recurrent.get(call.name, "launch"), kernels - 1


# ---- lanes -----------------------------------------------------------------------------------------------------------


def call_of(row: Row) -> KernelCall:
    """The operator of an OPERATION row, with its dtype and shapes as plain data."""
    dtype, out, *given = (len(row) > 10 and row[10]) or (None, None)
    dim = given.pop() if given and isinstance(given[-1], int) else None
    name = row[4].split(".", 2)[1] if "." in row[4] else row[4]
    return KernelCall(
        name,
        "float32" if dtype is None else str(dtype).removeprefix("torch."),
        out,
        tuple(given),
        row[8],
        dim,
    )


def is_transfer(ledger: Sequence[Row], number: int) -> bool:
    """Whether the operator of this row is the copy that the next row tells of."""
    return number + 1 < len(ledger) and ledger[number + 1][0] == records.TRANSFER


def is_into_used(ledger: Sequence[Row], number: int) -> bool:
    """Whether the copy of this row goes into a tensor that was there before."""
    return (
        number > 0
        and ledger[number - 1][0] == records.OPERATION
        and ledger[number - 1][4].startswith("aten.copy_")
    )


class Clock:
    """Reads a ledger as it grows. All times are in seconds since its first row."""

    def __init__(self, ledger: Sequence[Row], gpu: Gpu, first: int = 0) -> None:
        self.gpu = gpu
        self.now = 0.0  # of the host
        self.intervals: list[Interval] = []
        self.events: dict[int, float] = {}  # row of an event's record -> when the stream reached it
        self.steps: list[float] = []
        self._begun: dict[
            int, int
        ] = {}  # row of an optimizer's step -> how many intervals there were
        self._ledger = ledger
        self._next = first
        self._chip = gpu.chip()
        self._kernels: dict[KernelCall, list[Kernel]] = {}
        self._host = Host()
        self._free: defaultdict[tuple[str, int], float] = defaultdict(
            float
        )  # device and stream -> when it is done
        self._engines: defaultdict[tuple[str, str], float] = defaultdict(
            float
        )  # device and direction, likewise
        self._using: dict[str, int] = {}  # device -> current stream
        self._numbers: dict[
            tuple[str, int], int
        ] = {}  # streams, in the order of their use; the default one is 0
        self._last = ("cuda:0", 0)  # the stream that was given something to do last
        self._awaited: float | None = (
            None  # what the next explicit wait waits for, where that is not everything
        )
        self._reserved: dict[str, int] = {}  # device -> bytes; what is more must be asked of CUDA
        for row in ledger[:first]:
            if row[0] == records.OPERATION:
                self._reserve(row)
            elif row[0] == records.STREAM and row[6] == "tf32":
                self._allow_tf32(bool(row[7]))

    def advance(self, until: int | None = None) -> float:
        """Read the rows written since; returns the time of the host."""
        end = len(self._ledger) if until is None else min(until, len(self._ledger))
        while self._next < end:
            self._read(self._next, self._ledger[self._next])
            self._next += 1
        return self.now

    def _allow_tf32(self, allowed: bool) -> None:
        """Torch's setting for matrix products, from here on."""
        if allowed != self._chip.tf32:
            self._chip = self._chip._replace(tf32=allowed)
            self._kernels.clear()

    def idle_at(self) -> float:
        """When the host and all streams are done with what was issued."""
        return max([self.now, *self._free.values()])

    def _read(self, number: int, row: Row) -> None:
        kind = row[0]
        before = self.now
        call = None
        kernels = []
        if kind == records.OPERATION:
            call = call_of(row)
            if not is_transfer(self._ledger, number):
                if call not in self._kernels:
                    self._kernels[call] = kernels_of(call, self._chip)
                kernels = self._kernels[call]
        for cost, times in self._host.costs(number, row, call, len(kernels)):
            self.now += self.gpu.host[cost] * times
        if kind == records.OPERATION:
            self._operation(number, row, kernels, before)
        elif kind == records.TRANSFER:
            self._transfer(number, row)
        elif kind == records.SYNC:
            self._wait(row)
        elif kind == records.STREAM:
            self._stream(number, row)
        elif kind == records.OPTIMIZER_STEP:
            self._begun[number] = len(self.intervals)
        elif kind == records.END and row[4] in self._begun:
            kernels_of_step = [i for i in self.intervals[self._begun.pop(row[4]) :] if i.kernels]
            if kernels_of_step:
                self.steps.append(max(i.end for i in kernels_of_step) - kernels_of_step[0].start)
        if self.now > before:
            name = str(row[4]) if kind in (records.OPERATION, records.FORWARD, records.SYNC) else ""
            waits = kind == records.SYNC or (
                kind == records.TRANSFER and self.now >= self._free[self._last]
            )
            self.intervals.append(
                Interval(number, HOST, name, before, self.now, 0, "wait" if waits else "issue")
            )

    def _run(
        self, number: int, lane: tuple[str, int], name: str, seconds: float, kernels: int, at: float
    ) -> None:
        self._last = lane
        start = max(self._free[lane], at + self.gpu.latency)
        self._free[lane] = start + seconds + self.gpu.gap
        stream = 0 if lane[1] == 0 else self._numbers.setdefault(lane, len(self._numbers) + 1)
        where = f"{lane[0]} stream {stream}"
        made = Interval(
            number, where, name, start, start + seconds, kernels, "kernel" if kernels else "copy"
        )
        self.intervals.append(made)

    def _lane(self, device: str) -> tuple[str, int]:
        return device, self._using.get(device, 0)

    def _reserve(self, row: Row) -> bool:
        """Whether the memory of this row is more than what is cached, which is more from then on."""
        more: bool = row[8] > 0 and row[9] > self._reserved.get(row[5], 0)
        if more:
            self._reserved[row[5]] = row[9] + (_SEGMENT if row[8] < _SEGMENT else 0)
        return more

    def _operation(self, number: int, row: Row, kernels: list[Kernel], before: float) -> None:
        if self._reserve(row):
            self.now += self.gpu.host["cudaMalloc"]
        lane = self._lane(row[5])
        spent = self.now - before
        for place, kernel in enumerate(kernels, 1):  # launched one by one while the host is at it
            at = before + spent * place / len(kernels)
            seconds = self.gpu.seconds(kernel)
            engine = (row[5], "kernels")
            if fills := seconds > _FILLING * self.gpu.least(
                kernel
            ):  # two of these take turns, whatever their streams
                self._free[lane] = max(self._free[lane], self._engines[engine])
            self._run(number, lane, row[4], seconds, int(kernel.kind != COPY), at)
            if fills:
                self._engines[engine] = self._free[lane]

    def _transfer(self, number: int, row: Row) -> None:
        direction, size, pinned, _, source, target = row[4:10]
        device = target if direction == "to_device" else source
        lane, engine = self._lane(device), (device, direction)
        on_host, there = self.gpu.copy(direction, size, pinned, is_into_used(self._ledger, number))
        # Memory that is not pinned is copied by the host, piece by piece, into a buffer that is, or out of it.
        staged = self.now + max(on_host - there, 0.0)
        self._free[lane] = max(self._free[lane], self._engines[engine], staged)
        self._run(number, lane, way_of(direction, pinned), there, 0, self.now)
        self._engines[engine] = self._free[lane]
        if on_host:
            self.now = self._free[lane]

    def _wait(self, row: Row) -> None:
        if not row[5]:
            until = self._free[self._last]
        else:
            until = (
                max(self._free.values(), default=0.0) if self._awaited is None else self._awaited
            )
            self._awaited = None
        self.now = max(self.now, until + self.gpu.host["synchronize" if row[5] else "wait"])

    def _stream(self, number: int, row: Row) -> None:
        device, stream, what, other = row[4:8]
        lane = device, stream
        if what == "use":
            self._using[device] = stream
        elif what == "tf32":
            self._allow_tf32(bool(other))
        elif what == "record":
            self.events[number] = self._free[lane] = max(self._free[lane], self.now)
        elif what == "wait":
            self._free[lane] = max(self._free[lane], self.events.get(other, 0.0))
        elif what == "wait_stream":
            self._free[lane] = max(self._free[lane], self._free[device, other])
        elif what == "sleep":
            self._run(number, lane, "sleep", other / HZ, 1, self.now)
        elif what != "list":
            self._awaited = (
                self.events.get(other, 0.0) if what == "synchronize_event" else self._free[lane]
            )
