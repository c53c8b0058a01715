"""Fits the figures of a GPU to a record: programs, and the times that the GPU took for them.

Everything that is fitted enters the model linearly, so that a fit is a least-squares problem over
relative errors, with weights that make it robust and a small pull towards usual figures for what
the record says little about.

    python -m virtual_cuda fit RECORD.json [RECORD.json ...]
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from virtual_cuda.clock.gpu_models import (
    CopyPoint,
    Gpu,
    KernelFigures,
    gpu_named,
    gpus,
    way_of_copy,
)
from virtual_cuda.clock.host_costs import (
    HostCosts,
    is_copy_into_old_tensor,
    is_transfer,
    kernel_call_of,
)
from virtual_cuda.clock.kernel_rules import kernels_of
from virtual_cuda.clock.kernels import COPY
from virtual_cuda.clock.lanes import Times, times_of_rows
from virtual_cuda.errors import VirtualCudaError
from virtual_cuda.fitting.agreement import agreement_of
from virtual_cuda.fitting.least_squares import Equation, UsualFigure, solve_equations
from virtual_cuda.fitting.program_runs import ProgramRun, run_programs
from virtual_cuda.fitting.records import ClockRecord, Program, read_records
from virtual_cuda.ledger.rows import OperationRow, StepRow, TransferRow
from virtual_cuda.single_options import SingleOptionsParser

# The least share of the usual figure: of times, and of what bytes and FLOPs cost. No kernel beats
# the memory by much, also where the record has small ones only; some algorithms need fewer FLOPs
# than are counted.
_LEAST_SHARES: Final = KernelFigures(0.25, 0.8, 0.5)
_NEW_KERNEL: Final = KernelFigures(1.5e-6, 1.0, 1.0)  # of a kind without figures
# How much the usual figures of the host count. Whole programs tell the sum of its costs well, and
# each of them badly; the usual figures are of single operators, repeated on the host of the H200.
# With a smaller pull whole programs come out a little better, and single operators a little worse.
_HOST_PULL: Final = 0.75
# Usual figures, in seconds. Of kernels: the least time; bytes and FLOPs take what the peak rates
# say.
_USUAL: Final = {
    "event": 12e-6,
    "module": 4e-6,
    "attention module": 40e-6,
    "layer module": 60e-6,
    "recurrent module": 30e-6,
    "backward": 100e-6,
    "step": 150e-6,
    "adaptive step": 150e-6,
    "scaler": 20e-6,
    "transfer": 12e-6,
    "launch": 8e-6,
    "library launch": 5e-6,
    "inner operator": 13e-6,
    "recurrent launch": 8e-6,
    "recurrent launch backward": 12e-6,
    "allocation": 3e-6,
    "view": 1.5e-6,
    "view backward": 1.5e-6,
    "operator": 13e-6,
    "gradient": 2e-6,
    "computed again": 30e-6,
    "operator backward": 25e-6,
    "product backward": 30e-6,
    "simple operator backward": 20e-6,
    "gradient sum": 10e-6,
    "cuBLAS": 9e-6,
    "cuDNN": 28e-6,
    "cuDNN backward": 28e-6,
    "cuDNN norm": 35e-6,
    "cuDNN recurrent": 100e-6,
    "cuDNN recurrent backward": 200e-6,
    "norm": 12e-6,
    "attention": 16e-6,
    "attention backward": 50e-6,
    "norms of a list": 80e-6,
    "embedding bag": 25e-6,
    "indexing": 4e-6,
}
# What programs on a busy host do not tell: waits, what is rare or small, and what of an optimizer's
# step comes between its kernels and not before them: the profiler's ranges of steps say that.
_FIXED: Final = {
    "item": 4e-6,
    "wait": 1e-6,
    "stream": 3e-6,
    "synchronize": 9e-6,
    "cudaMalloc": 150e-6,
    "graph": 10e-6,
    "graph kernel": 0.3e-6,
    "list": 17e-6,
    "list tensor": 2e-6,
    "list number": 0.17e-6,
    "reduction": 4e-6,
}
_USUAL_KERNEL: Final = {
    "block sort": 14e-6,
    "radix sort": 6e-6,
    "attention": 8e-6,
    "half attention": 4e-6,
    "loss": 3.5e-6,
    "softmax": 3.3e-6,
    "norm": 3e-6,
    "convolution": 3e-6,
    "multi-tensor function": 2e-6,
    "shared reduction": 5e-6,
    "layout": 2.5e-6,
    "linear product": 5e-6,
}


class KernelPart(NamedTuple):
    """One of the figures of a kind of kernel: by its place in `KernelFigures`."""

    kind: str
    place: int


class Features(NamedTuple):
    """What a step does, as the coefficients of what is fitted."""

    kernels: dict[KernelPart, float]
    host: dict[str, float]  # how often each cost of the host arises


# ---- the fit -------------------------------------------------------------------------------------


def fit_gpu(
    record: ClockRecord,
    runs: Mapping[str, ProgramRun],
    base: Gpu,
    weights: Mapping[str, float] | None = None,
) -> Gpu:
    """The GPU whose model fits a record best; its size and its peaks are those of `base`.

    `runs` and `weights` are by the names of the record's programs; each has a run, and one without
    a weight has 1.
    """
    weights = weights or {}
    features = {name: _features_of(runs[name], base) for name in record.programs}
    host = _fit_host(record.programs, features, base, weights)
    with_host = msgspec.structs.replace(base, host=host)
    kernels = _fit_kernels(record.programs, features, runs, with_host, weights)
    copies = _fit_copies(record.programs, runs, base, host)
    timed = f"timed on {record.gpu} with torch {record.torch}"
    source = f"fitted to {len(record.programs)} programs, {timed}"
    return msgspec.structs.replace(
        base,
        figures="measured",
        kernels=dict(sorted(kernels.items())),
        host=host,
        copies=copies,
        source=source,
    )


def _features_of(run: ProgramRun, gpu: Gpu) -> Features:
    """The work of a step's kernels by kind and part, and the host's costs by name.

    `gpu` says how fast bytes and FLOPs are, so that parts are in seconds.
    """
    chip = gpu.chip()
    host = HostCosts()
    work: defaultdict[KernelPart, float] = defaultdict(float)
    costs: defaultdict[str, float] = defaultdict(float)
    for number in range(run.first, len(run.rows) - 1):  # without the wait at the end
        row = run.rows[number]
        call = None
        kernels = []
        if isinstance(row, OperationRow):
            call = kernel_call_of(row)
            if not is_transfer(run.rows, number):
                kernels = kernels_of(call, chip)
        for cost, times in host.of_row(number, row, call, len(kernels)):
            costs[cost] += times
        for kernel in kernels:
            if kernel.kind == COPY:
                continue
            moving = gpu.bytes_from_memory(kernel.bytes) / gpu.bandwidth
            computing = kernel.flops / gpu.flops_per_second(kernel.unit) + kernel.seconds
            for place, amount in enumerate((1, moving, computing)):
                work[KernelPart(kernel.kind, place)] += amount
    return Features(work, costs)


def _fit_host(
    programs: Mapping[str, Program],
    features: Mapping[str, Features],
    base: Gpu,
    weights: Mapping[str, float],
) -> dict[str, float]:
    """The costs of the host in seconds, by name, from the programs that wait for it.

    `features` and `weights` are by the names of programs.
    """
    fixed = dict(_FIXED)
    fixed["item"] = base.latency + base.gap + _FIXED["item"] + _FIXED["wait"]
    equations = []
    for name, program in programs.items():
        costs = features[name].host
        if not costs or not _waits_for_host(program):
            continue
        # What issuing took, without the costs that are not fitted.
        known = sum(fixed.get(cost, 0.0) * times for cost, times in costs.items())
        seconds = max(program.queue_s - known, 0.2 * program.queue_s)
        equations.append(Equation(costs, seconds, weights.get(name, 1.0)))
    usual = {cost: UsualFigure(value, _LEAST_SHARES.least) for cost, value in _USUAL.items()}
    return {**_USUAL, **_FIXED, **solve_equations(equations, usual, _HOST_PULL)}


def _waits_for_host(program: Program) -> bool:
    """True if the host's costs can be seen: the device was not what everybody waited for."""
    if program.copy_s >= 1e-5 and not program.kernels:
        return False
    busy = program.kernel_s + program.copy_s
    return busy < 0.45 * program.queue_s or program.queue_s < 0.9 * program.event_s


def _fit_kernels(
    programs: Mapping[str, Program],
    features: Mapping[str, Features],
    runs: Mapping[str, ProgramRun],
    gpu: Gpu,
    weights: Mapping[str, float],
) -> dict[str, KernelFigures]:
    """The figures of kernels, by kind, from the programs that ran any.

    `features`, `runs` and `weights` are by the names of programs. `gpu` has the fitted costs of the
    host. Kinds that no program has keep its figures.
    """
    usual: dict[KernelPart, UsualFigure] = {}
    equations = []
    for name, program in programs.items():
        work = features[name].kernels
        if not program.kernel_s or not work:
            continue
        seconds = _seconds_without_steps(program, runs[name], gpu)
        equations.append(Equation(work, seconds, weights.get(name, 1.0)))
        for part in work:
            usual[part] = _usual_figure_of(part)
    found = solve_equations(equations, dict(sorted(usual.items())))
    kernels = dict(gpu.kernels)
    for kind in {part.kind for part in found}:
        old = kernels.get(kind, _NEW_KERNEL)
        figures = [found.get(KernelPart(kind, place), old[place]) for place in range(3)]
        kernels[kind] = KernelFigures(*figures)
    return kernels


def _usual_figure_of(part: KernelPart) -> UsualFigure:
    """A usual least time; for bytes and FLOPs, what the peak rates say."""
    value = 1.0
    if part.place == 0:
        value = _USUAL_KERNEL.get(part.kind, _NEW_KERNEL.least)
    return UsualFigure(value, _LEAST_SHARES[part.place])


def _seconds_without_steps(program: Program, run: ProgramRun, gpu: Gpu) -> float:
    """The recorded time of the kernels, without the ranges of optimizers' steps.

    The profiler takes these ranges for kernels as well.
    """
    if not any(isinstance(row, StepRow) for row in run.step_rows):
        return program.kernel_s
    of_steps = sum(modelled_times(run, gpu).steps)
    return max(program.kernel_s - of_steps, 0.3 * program.kernel_s)


def _fit_copies(
    programs: Mapping[str, Program],
    runs: Mapping[str, ProgramRun],
    base: Gpu,
    host: Mapping[str, float],
) -> dict[str, list[CopyPoint]]:
    """The times of copies, by way, from the programs that do nothing else.

    `host` has the fitted costs of the host. Sizes beyond theirs are scaled like the nearest one.
    """
    recorded: defaultdict[str, dict[int, CopyPoint]] = defaultdict(dict)  # by way and size
    issuing = 2 * host["event"] + host["operator"] + host["transfer"]
    for name, program in programs.items():
        rows = runs[name].step_rows
        transfers = [row for row in rows if isinstance(row, TransferRow)]
        if len(transfers) != 1 or program.kernels or program.copies != 1:
            continue
        transfer = transfers[0]
        again = is_copy_into_old_tensor(rows, rows.index(transfer))
        on_host = 0.0
        if not transfer.pinned:
            on_host = max(program.queue_s - issuing, program.copy_s)
        way = way_of_copy(transfer.direction, transfer.pinned, again)
        recorded[way][transfer.bytes] = CopyPoint(transfer.bytes, program.copy_s, on_host)
    copies = dict(base.copies)
    for way, points in recorded.items():
        copies[way] = _all_copy_points(way, points, base)
    return copies


def _all_copy_points(way: str, recorded: Mapping[int, CopyPoint], base: Gpu) -> list[CopyPoint]:
    """The recorded points of one way to copy, and those of `base` beyond them, in three digits."""
    least = min(recorded)
    most = max(recorded)
    direction, _, pinning = way.partition(" ")
    points = dict(recorded)
    for point in base.copies[way]:
        if least <= point.size <= most:
            continue
        if point.size < least:
            nearest = least
        else:
            nearest = most
        of_base = base.copy_seconds(direction, nearest, pinning == "pinned", pinning == "used")
        scale = recorded[nearest].device / of_base.device
        size = int(point.size)
        points[size] = CopyPoint(size, point.device * scale, point.host * scale)
    rounded = []
    for size, point in sorted(points.items()):
        rounded.append(CopyPoint(size, float(f"{point.device:.3g}"), float(f"{point.host:.3g}")))
    return rounded


def modelled_times(run: ProgramRun, gpu: Gpu) -> Times:
    """The modelled times of the step of a program."""
    return times_of_rows(run.rows, gpu, run.first)


# ---- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None, prog: str = "python -m virtual_cuda fit") -> int:
    """Fit a GPU to the records that the arguments name, and print its figures.

    Their programs are run for that; what one raises is raised. Returns the exit status: 2, after a
    message, for a record or GPU that cannot be used. Exits where the arguments are wrong.
    """
    parser = SingleOptionsParser(
        prog, description="Fit the modelled clock to the times of a real GPU."
    )
    parser.add_argument(
        "records",
        metavar="RECORD.json",
        nargs="+",
        help="programs and times; the programs are run here",
    )
    parser.add_argument(
        "--like", metavar="GPU", default="H200", help=f"size and peaks: {', '.join(gpus())}"
    )
    parser.add_argument("--name", help="name of the GPU (default: the record's)")
    options = parser.parse_args(arguments)
    # Read everything before anything is run.
    try:
        base = gpu_named(options.like)
        record, weights = read_records(options.records)
    except VirtualCudaError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    runs = run_programs(record.programs)
    gpu = fit_gpu(record, runs, base, weights)
    # The figures go to standard output, how well they fit to standard error.
    figures = msgspec.to_builtins(gpu)
    del figures["name"]
    print(json.dumps({options.name or record.gpu: figures}, indent=1))
    modelled = {name: modelled_times(runs[name], gpu) for name in record.programs}
    reached = msgspec.json.encode(agreement_of(record.programs, modelled)).decode()
    print(f"modelled against recorded: {reached}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
