"""The modelled clock: when the host issued each row of a ledger, and when a stream worked on it.

A lane is the host or one stream of a device: what does one thing at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from virtual_cuda.clock.gpu_models import Gpu, way_of_copy
from virtual_cuda.clock.host_costs import (
    HostCosts,
    is_copy_into_old_tensor,
    is_transfer,
    kernel_call_of,
)
from virtual_cuda.clock.kernel_rules import kernels_of
from virtual_cuda.clock.kernels import COPY, Kernel, KernelCall
from virtual_cuda.clock.stream_queues import Engine, StreamQueues
from virtual_cuda.ledger.ledger import Ledger
from virtual_cuda.ledger.line_table import ModelledSeconds
from virtual_cuda.ledger.rows import (
    CollectiveRow,
    EndRow,
    ForwardRow,
    OperationRow,
    Row,
    StepRow,
    StreamRow,
    SyncRow,
    TransferRow,
)
from virtual_cuda.ledger.stream_waits import StreamKey

HOST: Final = "host"
CYCLES_PER_SECOND: Final = 1.98e9  # cycles per second, for `torch.cuda._sleep`
# Times the least time of its kind: a kernel that takes so long has work for the whole GPU.
_FILLING: Final = 4
# What the allocator asks CUDA for at least, so that the next tensors cost nothing.
_SEGMENT: Final = 20 << 20


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
    # How long each step of an optimizer took on the device, from kernel to kernel.
    steps: Sequence[float] = ()
    label: str = ""  # the GPU, as it is named beside a time: `Gpu.label`

    @property
    def seconds(self) -> float:
        """How long it takes in all: until the host and the devices are done."""
        return max(self.issued, self.end)

    @property
    def on_device(self) -> list[Interval]:
        """The intervals of all streams, without the host's."""
        return [interval for interval in self.intervals if interval.lane != HOST]

    @property
    def kernels(self) -> int:
        """The number of kernels as torch's profiler counts them.

        The profiler counts a step of an optimizer as one more.
        """
        kernels = sum(interval.kernels for interval in self.intervals)
        return kernels + len(self.steps)

    @property
    def kernel_seconds(self) -> float:
        """The time of kernels as torch's profiler adds it up.

        The profiler adds the time from the first to the last kernel of each optimizer's step.
        """
        seconds = sum(interval.seconds for interval in self.intervals if interval.kernels)
        return seconds + sum(self.steps)

    @property
    def idle_share(self) -> float:
        """The share of the time in which no stream had anything to do."""
        if not self.end:
            return 0.0
        busy = 0.0
        busy_until = 0.0
        # In the order of their starts, so that what several streams do at a time counts once.
        stretches = sorted((interval.start, interval.end) for interval in self.on_device)
        for start, end in stretches:
            if end > busy_until:
                busy += end - max(start, busy_until)
                busy_until = end
        return 1 - busy / self.end

    def by_record(self, ledger: Ledger) -> dict[int, ModelledSeconds]:
        """Seconds of the host and of the devices for each record of the ledger, by its index.

        Records that took no time are left out. Raises ValueError for a row of no known kind.
        """
        host: defaultdict[int, float] = defaultdict(float)  # by row
        device: defaultdict[int, float] = defaultdict(float)
        for interval in self.intervals:
            spent = host if interval.lane == HOST else device
            spent[interval.row] += interval.seconds
        found = {}
        for row, record in ledger.records_by_row().items():
            if row in host or row in device:
                found[record.index] = ModelledSeconds(host[row], device[row])
        return found


def times_of(ledger: Ledger, gpu: Gpu) -> Times:
    """The modelled times of a ledger, or of a part of one.

    What was written before a part tells which memory is cached, and whether products may use TF32.
    """
    return times_of_rows(ledger.rows, gpu, *ledger.bounds)


def times_of_rows(rows: Sequence[Row], gpu: Gpu, first: int = 0, until: int | None = None) -> Times:
    """The modelled times of the rows `first` to `until` of a whole ledger; None is its end.

    The rows before `first` only tell which memory is cached, and whether products may use TF32.
    """
    clock = Clock(rows, gpu, first)
    clock.advance(until)
    return Times(
        gpu=gpu.name,
        intervals=clock.intervals,
        issued=clock.now,
        end=clock.idle_at(),
        steps=clock.steps,
        label=gpu.label,
    )


class _StreamWork(NamedTuple):
    """Work for a stream: one kernel, or a copy, which has none."""

    row: int
    name: str
    seconds: float
    issued: float  # when the host had issued it
    kernels: int = 0


def _name_on_host(row: Row) -> str:
    """What the host does for a row, as an interval names it; "" where it has no name."""
    match row:
        case OperationRow():
            return str(row.name)
        case ForwardRow():
            return str(row.module)
        case SyncRow():
            return str(row.what)
    return ""


class Clock:
    """Reads a ledger as it grows. All times are in seconds since its first row."""

    def __init__(self, rows: Sequence[Row], gpu: Gpu, first: int = 0) -> None:
        """Begin before row `first`, with nothing issued.

        The rows before it only tell which memory is cached, and whether products may use TF32.
        """
        self.gpu = gpu
        self.now = 0.0  # of the host
        self.idle = 0.0  # seconds in which the host's processor had nothing to do
        self.intervals: list[Interval] = []
        # When a stream reached an event, by the row in which the event was recorded.
        self.events: dict[int, float] = {}
        # How long each step of an optimizer took on the device.
        self.steps: list[float] = []
        self._rows = rows
        self._next = first  # the number of the row to read next
        self._chip = gpu.chip()
        self._kernels: dict[KernelCall, list[Kernel]] = {}
        self._host = HostCosts()
        self._queues = StreamQueues()
        # What the next explicit wait waits for, where that is not everything.
        self._awaited: float | None = None
        # By device: bytes that the allocator has. For more, CUDA must be asked.
        self._reserved: dict[str, int] = {}
        # By the row of a step: how many intervals there were when it began.
        self._intervals_before_step: dict[int, int] = {}
        for row in rows[:first]:
            self._follow_earlier_row(row)

    def _follow_earlier_row(self, row: Row) -> None:
        """Note what a row before the first one says of cached memory and of TF32."""
        if isinstance(row, OperationRow):
            self._reserve_memory(row)
        elif isinstance(row, StreamRow) and row.what == "tf32":
            self._allow_tf32(bool(row.other))

    def advance(self, until: int | None = None) -> float:
        """Read the rows written since, or those before `until`; returns the time of the host.

        All that the clock knows moves on.
        """
        end = len(self._rows)
        if until is not None:
            end = min(until, end)
        while self._next < end:
            row = self._rows[self._next]
            self._read_row(self._next, row)
            self._next += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time of the host pass in which its processor has nothing to do; streams go on.

        Reads the new rows first.
        """
        self.advance()
        self._idle_until(self.now + seconds)

    def spend(self, seconds: float) -> None:
        """Let time of the host pass in which its processor works; streams go on.

        Reads the new rows first.
        """
        self.advance()
        self.now += seconds

    def has_passed_event(self, event: int) -> bool:
        """True if a stream has reached the event that was recorded in this row.

        Reads the new rows first. Also true for a row in which no event was recorded.
        """
        self.advance()
        return self.events.get(event, 0.0) <= self.now

    def is_idle(self, device: str, stream: int) -> bool:
        """True if a stream is done with what was issued. Reads the new rows first."""
        self.advance()
        key = StreamKey(device, stream)
        return self._queues.free_at(key) <= self.now

    def idle_at(self) -> float:
        """The time at which the host and all streams are done with what was issued."""
        return max(self.now, self._queues.device_free_at(""))

    def _read_row(self, number: int, row: Row) -> None:
        """Move the host and the streams on by one row; `number` is its place in the ledger.

        Raises KeyError where the GPU lacks the figure of a cost.
        """
        before = self.now
        call = None
        kernels: list[Kernel] = []
        if isinstance(row, OperationRow):
            call = kernel_call_of(row)
            if not is_transfer(self._rows, number):
                kernels = self._kernels_of(call)
        # First what the host needs to issue the row, then what it sets off.
        costs = self._host.of_row(number, row, call, len(kernels))
        for cost, times in costs:
            self.now += self.gpu.host[cost] * times
        match row:
            case OperationRow():
                self._run_operation(number, row, kernels, before)
            case TransferRow():
                self._run_transfer(number, row)
            case SyncRow():
                self._wait_for_device(row)
            case StreamRow():
                self._follow_stream(number, row)
            case CollectiveRow():
                self._run_collective(number, row)
            case StepRow():
                self._intervals_before_step[number] = len(self.intervals)
            case EndRow():
                self._end_step(row)
        # What the host did since, waiting included.
        if self.now > before:
            self._add_host_interval(number, row, before)

    def _kernels_of(self, call: KernelCall) -> list[Kernel]:
        """The kernels of a call; equal calls are looked up once, and remembered."""
        if call not in self._kernels:
            self._kernels[call] = kernels_of(call, self._chip)
        return self._kernels[call]

    def _add_host_interval(self, number: int, row: Row, start: float) -> None:
        """Add what the host did for a row, from `start` until now, to the intervals."""
        interval = Interval(
            row=number,
            lane=HOST,
            name=_name_on_host(row),
            start=start,
            end=self.now,
            kind=self._kind_on_host(number, row),
        )
        self.intervals.append(interval)

    def _kind_on_host(self, number: int, row: Row) -> Literal["copy", "issue", "wait"]:
        """What the host did in this row, the last one it has read.

        A copy to the device that returns when it is on its way is no wait: nothing is read.
        """
        if isinstance(row, SyncRow):
            if row.what == "copy" and number and self._copies_to_device(number - 1):
                return "copy"
            return "wait"
        if not isinstance(row, TransferRow):
            return "issue"
        last_used = self._queues.last_used
        if self.now < self._queues.free_at(last_used):
            return "issue"
        if self._copies_to_device(number):
            return "copy"
        return "wait"

    def _copies_to_device(self, number: int) -> bool:
        """True if the row of this number is a copy from the host to a device."""
        row = self._rows[number]
        return isinstance(row, TransferRow) and row.direction == "to_device"

    def _put_into_stream(
        self, stream: StreamKey, work: _StreamWork, engine: Engine | None = None
    ) -> None:
        """Put work into a stream, behind what the stream was given before, and note its interval.

        If it needs an engine of the device, it also comes behind what that was given, and keeps the
        engine.
        """
        if engine is not None:
            self._queues.hold_for_engine(stream, engine)
        arrival = work.issued + self.gpu.latency
        start = max(self._queues.free_at(stream), arrival)
        end = start + work.seconds
        self._queues.set_free_at(stream, end + self.gpu.gap)
        if engine is not None:
            self._queues.occupy_engine(stream, engine)
        interval = Interval(
            row=work.row,
            lane=self._queues.lane_of(stream),
            name=work.name,
            start=start,
            end=end,
            kernels=work.kernels,
            kind="kernel" if work.kernels else "copy",
        )
        self.intervals.append(interval)

    def _reserve_memory(self, row: OperationRow) -> bool:
        """True if this operation needs more memory than is cached; False if not.

        Notes that so much is cached from then on.
        """
        reserved = self._reserved.get(row.device, 0)
        if row.bytes <= 0 or row.live <= reserved:
            return False
        more = _SEGMENT if row.bytes < _SEGMENT else 0
        self._reserved[row.device] = row.live + more
        return True

    def _run_operation(
        self, number: int, row: OperationRow, kernels: list[Kernel], before: float
    ) -> None:
        """Put the kernels of an operation into the current stream of its device.

        The host issued them from `before` until now. New memory costs the host more time.
        """
        if self._reserve_memory(row):
            self.now += self.gpu.host["cudaMalloc"]
        stream = self._queues.current_stream(row.device)
        whole_device = Engine(row.device, "kernels")
        issuing = self.now - before
        # Kernels are launched one by one while the host is at it.
        for number_of_kernel, kernel in enumerate(kernels, 1):
            issued = before + issuing * number_of_kernel / len(kernels)
            seconds = self.gpu.kernel_seconds(kernel)
            kernel_count = 0 if kernel.kind == COPY else 1
            work = _StreamWork(number, row.name, seconds, issued, kernel_count)
            # Two kernels that fill the device take turns, whatever their streams.
            fills_device = seconds > _FILLING * self.gpu.least_seconds(kernel)
            self._put_into_stream(stream, work, whole_device if fills_device else None)

    def _run_transfer(self, number: int, row: TransferRow) -> None:
        """Put a copy into the current stream of its device.

        The host waits for the end of the copy if the copy keeps it.
        """
        device = row.target if row.direction == "to_device" else row.source
        stream = self._queues.current_stream(device)
        into_used = is_copy_into_old_tensor(self._rows, number)
        seconds = self.gpu.copy_seconds(row.direction, row.bytes, row.pinned, into_used)
        # Memory that is not pinned is copied by the host, piece by piece, into a buffer that is, or
        # out of it.
        staging = max(seconds.host - seconds.device, 0.0)
        self._queues.hold(stream, self.now + staging)
        way = way_of_copy(row.direction, row.pinned)
        work = _StreamWork(number, way, seconds.device, issued=self.now)
        self._put_into_stream(stream, work, Engine(device, row.direction))
        if seconds.host:
            self._idle_until(self._queues.free_at(stream))

    def _run_collective(self, number: int, row: CollectiveRow) -> None:
        """Put an exchange with other ranks into the current stream of its device.

        One that takes no time is left out.
        """
        seconds = self.gpu.collective_seconds(row.name, row.bytes, row.ranks)
        if not seconds:
            return
        stream = self._queues.current_stream(row.device)
        work = _StreamWork(number, row.name, seconds, issued=self.now, kernels=1)
        self._put_into_stream(stream, work)

    def _wait_for_device(self, row: SyncRow) -> None:
        """Let the host wait for a device: its time moves on to when that is done.

        An explicit wait is for the awaited event or stream, which is forgotten then, or else for
        everything; an implicit one is for the stream that was given work last.
        """
        if not row.explicit:
            done = self._queues.free_at(self._queues.last_used)
            self._idle_until(done + self.gpu.host["wait"])
            return
        if self._awaited is not None:
            done = self._awaited
        else:
            device = row.device if row.what == "synchronize" else ""
            done = self._queues.device_free_at(device)
        self._awaited = None
        self._idle_until(done + self.gpu.host["synchronize"])

    def _idle_until(self, moment: float) -> None:
        """Let the host wait until this moment, with nothing for its processor to do."""
        if moment > self.now:
            self.idle += moment - self.now
            self.now = moment

    def _follow_stream(self, number: int, row: StreamRow) -> None:
        """Follow what a row says of streams: which is current, what it waits for, its events."""
        stream = StreamKey(row.device, row.stream)
        match row.what:
            case "use":
                self._queues.make_current(stream)
            case "tf32":
                self._allow_tf32(bool(row.other))
            case "record":
                self._queues.hold(stream, self.now)
                self.events[number] = self._queues.free_at(stream)
            case "wait":
                event = self.events.get(row.other, 0.0)
                self._queues.hold(stream, event)
            case "wait_stream":
                other = StreamKey(row.device, row.other)
                self._queues.hold(stream, self._queues.free_at(other))
            case "sleep":
                seconds = row.other / CYCLES_PER_SECOND
                work = _StreamWork(number, "sleep", seconds, issued=self.now, kernels=1)
                self._put_into_stream(stream, work)
            case "synchronize_event":
                self._awaited = self.events.get(row.other, 0.0)
            case "synchronize":
                self._awaited = self._queues.free_at(stream)

    def _allow_tf32(self, allowed: bool) -> None:
        """Follow torch's setting for matrix products, from here on; known kernels are forgotten."""
        if allowed != self._chip.tf32:
            self._chip = self._chip._replace(tf32=allowed)
            self._kernels.clear()

    def _end_step(self, row: EndRow) -> None:
        """Note how long a step of an optimizer took on the device, where this row ends one."""
        if row.opened not in self._intervals_before_step:
            return
        first = self._intervals_before_step.pop(row.opened)
        kernels = [interval for interval in self.intervals[first:] if interval.kernels]
        if kernels:
            end = max(interval.end for interval in kernels)
            self.steps.append(end - kernels[0].start)
