"""What limits a program, and whether a CPU would be faster: sentences made from modelled times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from virtual_cuda.clock.gpu_models import Gpu, cpu_to_compare_with
from virtual_cuda.clock.host_costs import HostCosts, is_transfer, kernel_call_of
from virtual_cuda.clock.kernel_rules import kernels_of
from virtual_cuda.clock.lanes import HOST, Times
from virtual_cuda.ledger.rows import (
    GRAD,
    OperationRow,
    Row,
    ScalerRow,
    StreamRow,
    SyncRow,
    TransferRow,
)
from virtual_cuda.ledger.texts import count_phrase, duration

# The share of the time from which copies, or a GPU that waits, are what limits a program.
MUCH: Final = 0.4
CLOSE: Final = 1.2  # times as fast is as good as the same
# Times as much data that are tried to find out when the GPU is faster, in ascending order.
_FACTORS: Final = tuple(2.0**power for power in range(-10, 15))


def format_seconds(seconds: float) -> str:
    """A time with three digits: "12.3 ms"."""
    return duration(round(seconds * 1e9))


def what_limits(times: Times) -> str:
    """One sentence on what limits a program, and what to do about it."""
    if not times.on_device or not times.end:
        return "Nothing ran on the GPU."
    shares = _copy_shares(times)
    if shares.total >= MUCH:
        advice = "pin the memory, or copy once, before the loop"
        if shares.pinned > shares.pageable:
            advice = "copy less, or once, before the loop"
        return f"Copies take {shares.total:.0%} of the time: {advice}."
    idle = times.idle_share
    if idle >= MUCH:
        advice = _why_it_is_idle(times)
        return f"The GPU is idle {idle:.0%} of the time: {advice} keep it busy."
    return f"The GPU works {1 - idle:.0%} of the time: the work itself limits the speed."


def _why_it_is_idle(times: Times) -> str:
    """The reason why the GPU is idle, and the beginning of the advice."""
    work = _work_on_device(times)
    kernel_count = count_phrase(work.kernels, "kernel")
    if work.kernels >= work.copies:
        issue = format_seconds(times.issued / work.kernels)
        run = format_seconds(work.kernel_seconds / work.kernels)
        what = f"the CPU takes {issue} for each of {kernel_count}, which run {run}"
        return f"{what}. Fewer and larger operations, or a larger batch,"
    what = count_phrase(work.copies, "copy", "copies")
    if work.kernels:
        what += f" and {kernel_count}"
    issued = format_seconds(times.issued)
    busy = format_seconds(work.seconds)
    return f"the CPU takes {issued} for {what}, the GPU {busy}. Fewer and larger copies"


@dataclass
class _WorkOnDevice:
    """What the streams of all devices did, and how long that took them."""

    copies: int = 0
    kernels: int = 0
    seconds: float = 0.0  # of both
    kernel_seconds: float = 0.0


def _work_on_device(times: Times) -> _WorkOnDevice:
    """The number of copies and kernels of all streams, and their seconds."""
    work = _WorkOnDevice()
    for interval in times.on_device:
        work.seconds += interval.seconds
        if interval.kind == "copy":
            work.copies += 1
        if interval.kernels:
            work.kernels += interval.kernels
            work.kernel_seconds += interval.seconds
    return work


class CopyShares(NamedTuple):
    """The shares of the time that copies of pageable and of pinned memory take."""

    pageable: float
    pinned: float

    @property
    def total(self) -> float:
        """The share of all copies."""
        return self.pageable + self.pinned


def _copy_shares(times: Times) -> CopyShares:
    """The shares of the whole time, which is not 0, that copies take; kernels are left out."""
    pageable = 0.0
    pinned = 0.0
    for interval in times.on_device:
        if interval.kernels:
            continue
        if interval.name.endswith("pageable"):
            pageable += interval.seconds
        elif interval.name.endswith("pinned"):
            pinned += interval.seconds
    return CopyShares(pageable / times.end, pinned / times.end)


# ---- the same program on a CPU -------------------------------------------------------------------


class OnCpu(NamedTuple):
    """Modelled seconds of the same program on a CPU.

    `fixed` is what operators cost however small they are, `work` is what grows with the data.
    """

    fixed: float
    work: float

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self.fixed + self.work


def on_cpu(rows: Sequence[Row], cpu: Gpu) -> OnCpu:
    """The modelled time of these rows on a CPU: no copies, no waits, one after the other.

    `cpu` describes the CPU by the figures of a GPU.
    """
    host = HostCosts()
    chip = cpu.chip()
    fixed = 0.0
    work = 0.0
    for number, row in enumerate(rows):
        if _is_for_a_gpu_only(row):
            continue
        call = None
        if isinstance(row, OperationRow):
            if is_transfer(rows, number):
                continue
            call = kernel_call_of(row)
            kernels = kernels_of(call, chip)
            work += sum(cpu.kernel_seconds(kernel) for kernel in kernels)
        for cost, times in host.of_row(number, row, call, 1):
            fixed += cpu.host[cost] * times
    return OnCpu(fixed, work)


def _is_for_a_gpu_only(row: Row) -> bool:
    """True for what a program on a CPU does not do: copies, waits, streams, scaling."""
    if isinstance(row, StreamRow):
        return row.what != "list"
    return isinstance(row, (TransferRow, SyncRow, ScalerRow))


def compare_with_cpu(rows: Sequence[Row], times: Times, gpu: Gpu) -> list[str]:
    """Lines to print: how much faster the GPU is than a CPU, and from how much data on.

    `rows` are those of a whole ledger, `times` their modelled times on `gpu`.
    """
    cpu = cpu_to_compare_with()
    other = on_cpu(rows, cpu)
    on_gpu = f"{times.label} {format_seconds(times.end)}"
    on_host = f"CPU {format_seconds(other.seconds)} ({cpu.title}, {cpu.figures})"
    took = f"{on_gpu}, {on_host}, both modelled"
    if not times.end or not other.seconds:
        return [f"{took}."]
    verdict = _which_is_faster(rows, times, other)
    advice = _from_when_on(rows, times, gpu, other)
    return [f"{took}: {verdict}.", advice]


def _which_is_faster(rows: Sequence[Row], times: Times, other: OnCpu) -> str:
    """Which of GPU and CPU is faster; where it is not the GPU, also why.

    `times` are those of the GPU, `other` those of the CPU. Neither may end at 0.
    """
    ratio = other.seconds / times.end
    if ratio >= CLOSE:
        return f"the GPU is {ratio:.1f} times as fast"
    reason = _why_not_faster(rows, times)
    if ratio > 1 / CLOSE:
        return f"{reason}: the CPU is as fast"
    return f"{reason}: the CPU is {1 / ratio:.1f} times as fast"


def _why_not_faster(rows: Sequence[Row], times: Times) -> str:
    """The reason why the GPU is not faster, as the beginning of a sentence."""
    if _copy_shares(times).total >= MUCH:
        return "the copies cost more than the GPU gains"
    batch = batch_of(rows)
    work = f"a batch of {batch}" if batch else "the work"
    return f"{work} is too small for this GPU"


def _from_when_on(rows: Sequence[Row], times: Times, gpu: Gpu, other: OnCpu) -> str:
    """A sentence that says from how much data on the GPU is faster, with these operations.

    `times` are those of the rows on this GPU, `other` those on the CPU.
    """
    factor = _least_factor_for_gpu(rows, times, gpu, other)
    if factor is None:
        return "More data would not change that."
    if factor == _FACTORS[0]:
        return "Less data would not change that."
    batch = batch_of(rows)
    wanted = f"about {factor:g} times the data"
    if batch:
        larger_batch = max(round(batch * factor), 1)
        wanted = f"batches of about {larger_batch:,}"
    return f"With the same operations, the GPU is faster from {wanted} on."


def _least_factor_for_gpu(
    rows: Sequence[Row], times: Times, gpu: Gpu, other: OnCpu
) -> float | None:
    """The least of `_FACTORS` of the data with which the GPU is faster; None if it never is.

    `times` are those of the rows on this GPU, `other` those on the CPU. The host issues as much as
    before; the rest grows or shrinks with the data.
    """
    issuing = 0.0
    for interval in times.intervals:
        if interval.lane == HOST and interval.kind == "issue":
            issuing += interval.seconds
    busy = _work_on_device(times).seconds
    growing = max(busy - _least_seconds(rows, gpu), 0.0)
    for factor in _FACTORS:
        gpu_seconds = max(issuing, busy + (factor - 1) * growing)
        cpu_seconds = other.fixed + factor * other.work
        if gpu_seconds < cpu_seconds:
            return factor
    return None


def _least_seconds(rows: Sequence[Row], gpu: Gpu) -> float:
    """The time that the kernels of all operations would take with next to no data."""
    chip = gpu.chip()
    seconds = 0.0
    for row in rows:
        if isinstance(row, OperationRow):
            kernels = kernels_of(kernel_call_of(row), chip)
            seconds += sum(gpu.least_seconds(kernel) for kernel in kernels)
    return seconds


# Operators of layers, and which of the tensors they are given has the batch as its first dimension.
_BATCHED: Final = {"addmm": 1, "mm": 0, "convolution": 0, "linear": 0}


def batch_of(rows: Sequence[Row]) -> int:
    """The most frequent first dimension of what layers are given; 0 where there are none.

    Only operators that ran with gradients on are looked at.
    """
    found: Counter[int] = Counter()
    for row in rows:
        if not isinstance(row, OperationRow) or not row.mode & GRAD:
            continue
        call = kernel_call_of(row)
        place = _BATCHED.get(call.name)
        if place is None or len(call.inputs) <= place + 1:
            continue
        shape = call.inputs[place]
        if len(shape) > 1:
            found[shape[0]] += 1
    if not found:
        return 0
    return max(found, key=found.__getitem__)
