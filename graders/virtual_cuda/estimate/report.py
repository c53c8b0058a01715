"""An estimate as lines for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from virtual_cuda.clock.advice import format_seconds
from virtual_cuda.estimate.result import CONTEXT, Estimate, OnGpu
from virtual_cuda.ledger.texts import count_phrase, short_line, short_size

_Number = TypeVar("_Number", int, float)

_BAR: Final = 30  # characters of a bar
FITS: Final = {"yes": "fits", "close": "too close to say", "no": "does not fit"}
_MOST_ASSUMPTIONS: Final = 6


def report_lines(estimate: Estimate) -> Iterator[str]:
    """The lines of an estimate: memory, time, GPUs, and what was assumed."""
    yield f"{estimate.program} on {estimate.label}, without values ({estimate.ended})"
    yield ""
    yield from _memory_lines(estimate)
    yield ""
    yield from _time_lines(estimate)
    yield ""
    yield from _gpu_lines(estimate)
    if estimate.remarks:
        yield ""
        yield from estimate.remarks
    yield from _assumption_lines(estimate)


def _memory_lines(estimate: Estimate) -> Iterator[str]:
    """The peak with its line, and a table of its parts."""
    peak = f"Peak memory {short_size(estimate.peak)}"
    if estimate.peak_line:
        peak += f", at {short_line(estimate.peak_line)} ({estimate.peak_code})"
    yield peak
    parts = _parts_of_memory(estimate)
    largest = max(parts.values())
    for part, size in parts.items():
        row = _memory_row(part, size)
        bar = "█" * round(_BAR * size / largest)
        yield f"{row}  {bar}"
    total = estimate.reserved + CONTEXT
    yield _memory_row("in all", total)


def _parts_of_memory(estimate: Estimate) -> dict[str, int]:
    """The bytes of each part of the peak, and of what the allocator and CUDA need besides."""
    parts = dict(estimate.parts)
    fragments = estimate.reserved - estimate.peak
    if fragments > 0:
        parts["fragmentation"] = fragments
    parts["CUDA itself"] = CONTEXT
    return parts


def _memory_row(part: str, size: int) -> str:
    """The name of a part and its size, as a row of the table."""
    return f"  {part:22}{short_size(size):>10}"


def _time_lines(estimate: Estimate) -> Iterator[str]:
    """The time of a step, the speed, and what limits it."""
    if estimate.step_seconds is None or estimate.idle_share is None:
        yield "No step was found: neither an optimizer's step nor a call of a model (nn.Module)."
        yield "So there is no time of a step; the memory is that of all that ran."
        return
    took = format_seconds(estimate.step_seconds)
    figures = [f"One {estimate.step_is} {took} on {estimate.label}"]
    counts = {"samples": estimate.batch, "tokens": estimate.tokens}
    for unit, count in counts.items():
        if count and estimate.step_seconds:
            rate = format_rate(count / estimate.step_seconds)
            figures.append(f"{rate} {unit}/s")
    figures.append(f"GPU idle {estimate.idle_share:.0%}")
    yield ", ".join(figures)
    yield estimate.limits
    if estimate.largest_batch is not None:
        now = f"a batch of {estimate.pass_batch} now"
        if estimate.pass_batch and estimate.batch != estimate.pass_batch:
            now += f", of {estimate.batch} samples in a step"
        largest = _rounded_down(estimate.largest_batch)
        yield (
            f"With {now}, about {largest:,} would fit on {estimate.label}, if activations grow "
            "with the batch."
        )


def _rounded_down(number: int) -> int:
    """A number of which only the first two digits are known: 1,500 for 1,573."""
    unknown: int = 10 ** max(len(str(number)) - 2, 0)
    return number // unknown * unknown


def format_rate(rate: float) -> str:
    """A number per second: whole from 100 on, with three digits below."""
    if rate >= 100:
        return f"{rate:,.0f}"
    return f"{rate:.3g}"


class _GpuRow(NamedTuple):
    """A row in the table of GPUs."""

    gpu: str
    memory: str
    fits: str = ""
    step: str = ""
    idle: str = ""

    def line(self) -> str:
        """The row with each cell as wide as its column."""
        cells = [
            self.gpu.ljust(28),
            self.memory.rjust(10),
            "  ",
            self.fits.ljust(18),
            self.step.rjust(10),
            self.idle.rjust(7),
        ]
        return "".join(cells).rstrip()


def _gpu_lines(estimate: Estimate) -> Iterator[str]:
    """A table of all GPUs: whether it fits, and how long a step takes."""
    heading = _GpuRow("GPU", "memory", step="one step", idle="idle")
    yield heading.line()
    for each in sorted(estimate.on_gpus, key=_by_memory):
        yield _row_of_gpu(each).line()


def _by_memory(each: OnGpu) -> tuple[int, str]:
    """What GPUs are sorted by."""
    return each.memory, each.label


def _row_of_gpu(each: OnGpu) -> _GpuRow:
    """The row of one GPU; it has no times where the program does not fit, or has no step."""
    row = _GpuRow(each.label, short_size(each.memory), FITS[each.fits])
    if each.fits == "no":
        return row
    if each.step_seconds is None or each.idle_share is None:
        return row
    step = format_seconds(each.step_seconds)
    idle = f"{each.idle_share:.0%}"
    return row._replace(step=step, idle=idle)


def _assumption_lines(estimate: Estimate) -> Iterator[str]:
    """What was assumed of values, with its lines."""
    if not estimate.assumptions:
        return
    yield ""
    yield "There are no values, so the script"
    for each in estimate.assumptions[:_MOST_ASSUMPTIONS]:
        what = each.what
        if each.count != 1:
            what += f" ({count_phrase(each.count, 'time')})"
        line = short_line(each.line) or "a library"
        yield f"  {what}: {line}"
    rest = len(estimate.assumptions) - _MOST_ASSUMPTIONS
    if rest > 0:
        yield f"  and {count_phrase(rest, 'more line')}"
    yield "What depends on these is not real; --json has all of them."


def compared_lines(change: str, before: Estimate, after: Estimate) -> Iterator[str]:
    """The peak and the time of a step with a change, beside those without it."""
    yield f"{change}:"
    yield _compared_row("peak memory", before.peak, after.peak, short_size)
    if before.step_seconds and after.step_seconds:
        name = f"one {after.step_is}"
        yield _compared_row(name, before.step_seconds, after.step_seconds, format_seconds)


def _compared_row(
    name: str, before: _Number, after: _Number, in_words: Callable[[_Number], str]
) -> str:
    """The words for two numbers with their name, and by how much the second one is larger."""
    words = f"{in_words(before)} → {in_words(after)}"
    growth = after / before - 1
    return f"  {name:22}{words} ({growth:+.0%})"
