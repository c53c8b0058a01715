"""What an estimate says: plain data, made from a run without values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from virtual_cuda.clock.advice import format_seconds, what_limits
from virtual_cuda.clock.gpu_models import Gpu, gpu_named, gpus
from virtual_cuda.clock.host_costs import kernel_call_of
from virtual_cuda.clock.lanes import Times, times_of_rows
from virtual_cuda.device.state import VirtualGpu
from virtual_cuda.estimate.memory_record import (
    ACTIVATIONS,
    BACKWARD,
    OTHER,
    PARTS,
    MemoryRecord,
    Moment,
)
from virtual_cuda.estimate.steps import ModelInput, Step, StepWatch, outer_passes
from virtual_cuda.ledger.ledger import Sites
from virtual_cuda.ledger.rows import OperationRow, Row

# What CUDA itself takes of a GPU's memory in a process that uses torch. Both are assumptions, on
# the high and on the low side of what GPUs since 2018 show.
CONTEXT: Final = 600 << 20
LEAST_CONTEXT: Final = 300 << 20
# How much more memory torch may reserve on a GPU than is modelled, and how much less it may need.
# Of 24 programs that an H200 was recorded with, the worst reserved 10.1 % more than was modelled,
# and the worst peak was 3.7 % lower (`python -m tools.estimates` has the large ones).
MORE_RESERVED: Final = 0.12
LESS_NEEDED: Final = 0.04
# How the size of an input is told by the operator that first takes it: which of the shapes it was
# given, and whether each element is a token.
_FIRST_SHAPES: Final = {"embedding": 1, "convolution": 0, "addmm": 1, "mm": 0, "bmm": 0}


# A step that takes so many times as long as the usual one does something else besides.
_MUCH_LONGER: Final = 1.5
_TIMES_REMARK: Final = (
    "The time is that of the usual step; the longest took {longest}. What the script does between "
    "two steps, such as an evaluation, counts for the second of them."
)
_SIZES_REMARK: Final = (
    "The batches differed in size, from {smallest} to {largest}. A larger one than these needs "
    "more memory: put the largest first, or say with --steps N how many steps have it among them."
)


class OnGpu(msgspec.Struct, frozen=True):
    """What a GPU would do with the program."""

    gpu: str
    label: str  # with "(estimated)" where its figures are
    memory: int
    fits: str  # "yes", "close" or "no"
    step_seconds: float | None
    idle_share: float | None


class AssumptionCount(msgspec.Struct, frozen=True):
    """Something that was assumed on a line, and how often."""

    what: str
    line: str
    count: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run without values says of a program."""

    program: str
    gpu: str
    label: str
    ended: str  # why the run ended
    steps: int
    step_is: str  # what it is: "optimizer step", "training step", "forward pass", "" for none
    peak: int
    reserved: int
    parts: dict[str, int]  # of the peak
    peak_line: str
    peak_code: str
    step_seconds: float | None
    idle_share: float | None
    limits: str
    batch: int | None  # samples in a step
    tokens: int | None  # likewise
    pass_batch: int | None  # samples in one call of the model, of which a step may have several
    largest_batch: int | None  # of those, by the slope of what grows with the batch
    on_gpus: list[OnGpu]
    assumptions: list[AssumptionCount]
    remarks: list[str] = []  # sentences on what the run has not shown
    variants: list[ChangedRun] = []  # what `--try` asked for
    search: BatchSearch | None = None  # what `--batch` asked for


class ChangedRun(msgspec.Struct, frozen=True):
    """The script with something changed."""

    change: str
    estimate: Estimate | None = None
    why_not: str = ""  # there is no estimate: a sentence


class BatchRun(msgspec.Struct, frozen=True):
    """A run of the script with one batch."""

    batch: int
    peak: int
    fits: str  # as in OnGpu, on the GPU that was asked for


class BatchSearch(msgspec.Struct, frozen=True):
    """The search for the largest batch that fits, by an option of the script."""

    option: str
    largest: int | None  # 0 if none fits
    runs: list[BatchRun]
    why_not: str = ""  # nothing was found: a sentence


class Inputs(NamedTuple):
    """The size of what a model is given in one step."""

    samples: int
    tokens: int | None
    in_pass: int  # samples in the largest call


def describe_run(
    program: str,
    watch: StepWatch,
    memory: MemoryRecord,
    steps: Sequence[Step],
    ended: str,
    remarks: Sequence[str] = (),
) -> Estimate:
    """The estimate of a run that has ended."""
    gpu = watch.gpu
    assert gpu.model is not None
    rows = gpu.ledger.rows
    sites = Sites()
    step_is = "optimizer step"
    if watch.steps_by_hand:
        step_is = "training step"
    if not steps:
        steps = outer_passes(rows)
        step_is = "forward pass" if steps else ""
    moments = memory.moments()
    peak = max(moments, key=lambda moment: moment.total, default=Moment(0, {}))
    unlimited = memory.replay(1 << 60)
    timed = _times_of_steps(rows, steps, gpu.model)
    usual = None if timed is None else timed.usual
    times = _times_of_step(rows, usual, gpu.model)
    inputs = _inputs_of(rows, usual, watch.inputs)
    row = row_with_site(rows, peak.row)
    site = None if row is None else sites.find(row.code, row.offset)
    spread = unlimited.reserved / peak.total if peak.total else 1.0
    sentences = [*remarks, *_sentences_on_sizes(steps, watch)]
    if watch.steps and timed is not None and timed.longest > _MUCH_LONGER * timed.seconds:
        sentences.append(_TIMES_REMARK.format(longest=format_seconds(timed.longest)))
    parts = {part: peak.parts[part] for part in PARTS if peak.parts.get(part)}
    return Estimate(
        program=program,
        gpu=gpu.model.name,
        label=gpu.model.label,
        ended=ended,
        steps=len(steps),
        step_is=step_is,
        peak=peak.total,
        reserved=unlimited.reserved,
        parts=parts,
        peak_line="" if site is None else str(site),
        peak_code="" if row is None else row.name,
        step_seconds=None if times is None else times.end,
        idle_share=None if times is None else times.idle_share,
        limits="" if times is None else what_limits(times),
        batch=None if inputs is None else inputs.samples,
        tokens=None if inputs is None else inputs.tokens,
        pass_batch=None if inputs is None else inputs.in_pass,
        largest_batch=_largest_batch(gpu.model, moments, spread, inputs),
        on_gpus=[_on_gpu(each, memory, rows, usual) for each in gpus()],
        assumptions=_count_assumptions(gpu, sites),
        remarks=sentences,
    )


class _TimedSteps(NamedTuple):
    """The modelled times of several steps."""

    usual: Step
    seconds: float  # of the usual one
    longest: float  # in seconds


def _times_of_steps(rows: Sequence[Row], steps: Sequence[Step], gpu: Gpu) -> _TimedSteps | None:
    """Which step is the usual one, and how long it and the longest take; None without a step.

    It is the one in the middle, by time. The first one makes the optimizer's states or reads the
    text that is to be continued, so it only counts where it is alone.
    """
    if not steps:
        return None
    timed = []
    for step in steps[1:] or steps:
        timed.append((times_of_rows(rows, gpu, step.first, step.until).end, step))
    timed.sort()
    seconds, usual = timed[(len(timed) - 1) // 2]
    longest, _ = timed[-1]
    return _TimedSteps(usual, seconds, longest)


def _times_of_step(rows: Sequence[Row], step: Step | None, gpu: Gpu) -> Times | None:
    """The modelled times of a step on a GPU; None without a step."""
    if step is None:
        return None
    return times_of_rows(rows, gpu, step.first, step.until)


def _on_gpu(name: str, memory: MemoryRecord, rows: Sequence[Row], step: Step | None) -> OnGpu:
    """What one GPU would do with the program."""
    gpu = gpu_named(name)
    times = _times_of_step(rows, step, gpu)
    return OnGpu(
        gpu=gpu.name,
        label=gpu.label,
        memory=gpu.memory,
        fits=whether_it_fits(memory, gpu.memory),
        step_seconds=None if times is None else times.end,
        idle_share=None if times is None else times.idle_share,
    )


def whether_it_fits(memory: MemoryRecord, total: int) -> str:
    """ "yes", "close" or "no", for a GPU with so many bytes of memory.

    It is "yes" only if all that torch reserves has room, and so much more as an estimate has been
    known to miss: the cache need not be emptied. It is "no" only if that much less would not do.
    """
    roomy = memory.replay(int((total - CONTEXT) / (1 + MORE_RESERVED)))
    if roomy.fits and not roomy.was_emptied:
        return "yes"
    if memory.replay(int((total - LEAST_CONTEXT) / (1 - LESS_NEEDED))).fits:
        return "close"
    return "no"


def _largest_batch(
    gpu: Gpu, moments: Sequence[Moment], spread: float, inputs: Inputs | None
) -> int | None:
    """The largest batch of a call that fits on a GPU, if what grows does so with the batch.

    The moment that leaves least room decides. `spread` is how many bytes are reserved for each byte
    in use. None where no batch is known, nothing grows, or not even one sample would fit.
    """
    if inputs is None:
        return None
    room = (gpu.memory - CONTEXT) / (1 + MORE_RESERVED)
    factors = []
    for moment in moments:
        growing = sum(moment.parts.get(part, 0) for part in (ACTIVATIONS, BACKWARD, OTHER))
        fixed = moment.total - growing
        if growing:
            factors.append((room - fixed * spread) / (growing * spread))
    if not factors:
        return None
    largest = int(inputs.in_pass * min(factors))
    return largest if largest >= 1 else None


def _inputs_of(
    rows: Sequence[Row], step: Step | None, given: Sequence[ModelInput]
) -> Inputs | None:
    """The samples and tokens that the outer passes of a step are given; None if nothing tells.

    The module that is called first tells them, in all its calls: gradients may be accumulated.
    Where no tensor was found in what it was given, the first operator tells, whose input may be
    flattened.
    """
    if step is None:
        return None
    in_step = [each for each in given if step.first <= each.row < step.until]
    if in_step:
        return _inputs_of_module([each for each in in_step if each.module == in_step[0].module])
    part = list(rows[step.first : step.until])
    samples = 0
    tokens = 0
    in_pass = 0
    for outer in outer_passes(part) or [Step(0, len(part))]:
        found = _inputs_of_pass(part[outer.first : outer.until])
        if found is not None:
            samples += found.samples
            tokens += found.tokens or 0
            in_pass = max(in_pass, found.in_pass)
    return Inputs(samples, tokens or None, in_pass) if samples else None


def _inputs_of_module(calls: Sequence[ModelInput]) -> Inputs:
    """The samples and tokens in all inputs of one module; whole numbers in rows are tokens."""
    sizes = [each.shape[0] for each in calls]
    tokens = None
    if not calls[0].is_floating and len(calls[0].shape) == 2:
        tokens = sum(math.prod(each.shape) for each in calls)
    return Inputs(sum(sizes), tokens, max(sizes))


def _sentences_on_sizes(steps: Sequence[Step], watch: StepWatch) -> list[str]:
    """A sentence where the steps of a training had batches of different sizes; [] elsewhere."""
    if not watch.steps:
        return []
    given = [each for each in watch.inputs if each.row < steps[-1].until]
    shapes = {each.shape for each in given if each.module == given[0].module and each.trains}
    if len(shapes) < 2:
        return []
    smallest = min(shapes, key=math.prod)
    largest = max(shapes, key=math.prod)
    return [_SIZES_REMARK.format(smallest=_product(smallest), largest=_product(largest))]


def _product(shape: tuple[int, ...]) -> str:
    """A shape as people write it: "32 × 391"."""
    return " × ".join(str(length) for length in shape)


def _inputs_of_pass(rows: Sequence[Row]) -> Inputs | None:
    """The samples and tokens of one pass, by the first operator that tells them."""
    for row in rows:
        if not isinstance(row, OperationRow):
            continue
        call = kernel_call_of(row)
        place = _FIRST_SHAPES.get(call.name)
        if place is None or len(call.inputs) <= place or not call.inputs[place]:
            continue
        shape = call.inputs[place]
        if call.name == "embedding":
            count = 1
            for length in shape:
                count *= length
            samples = shape[0] if len(shape) > 1 else 1
            return Inputs(samples, count, samples)
        return Inputs(shape[0], None, shape[0])
    return None


def row_with_site(rows: Sequence[Row], number: int) -> OperationRow | None:
    """The operation at this row, or the next one after it; None if there is none."""
    for row in rows[number:]:
        if isinstance(row, OperationRow):
            return row
    return None


def _count_assumptions(gpu: VirtualGpu, sites: Sites) -> list[AssumptionCount]:
    """What was assumed on each line, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for assumption in gpu.assumptions:
        site = sites.find(assumption.code, assumption.offset)
        counts[assumption.what, "" if site is None else str(site)] += 1
    return [AssumptionCount(what, line, count) for (what, line), count in counts.most_common()]
