"""Fits the figures of a GPU to a record: programs, and the times that the GPU took for them.

Everything that is fitted enters the model linearly, so that a fit is a least-squares problem over
relative errors, with weights that make it robust and a small pull towards usual figures for what
the record says little about.

    python -m tools.fitting RECORD.json [RECORD.json ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
import torch
from virtual_cuda.clock.gpu_models import (
    CopyPoint,
    Gpu,
    KernelFigures,
    gpu_named,
    gpus,
    way_of_copy,
)
from virtual_cuda.clock.host_costs import HostCosts, is_into_used, is_transfer, kernel_call_of
from virtual_cuda.clock.kernel_rules import kernels_of
from virtual_cuda.clock.kernels import COPY
from virtual_cuda.clock.lanes import Times, times_of_rows
from virtual_cuda.device.state import VirtualGpu
from virtual_cuda.devices import virtual_cuda
from virtual_cuda.errors import VirtualCudaError
from virtual_cuda.ledger.rows import OperationRow, Row, StepRow, StreamRow, TransferRow


@dataclass(eq=False, repr=False)
class BadClockRecord(VirtualCudaError, ValueError):
    """A file with the times of a GPU cannot be used."""

    file: str
    reason: str
    text = "{self.file} is no record of a GPU's times: {self.reason}"


class Program(msgspec.Struct, frozen=True):
    """One program, and the seconds that a step of it took.

    All times are medians but those of kernels and copies.
    """

    setup: str
    step: str
    wall_s: float = 0.0  # until the device was idle again
    queue_s: float = 0.0  # until the host had issued everything
    event_s: float = 0.0  # between two events
    kernel_s: float = 0.0  # sum over the kernels
    kernels: int = 0
    copy_s: float = 0.0
    copies: int = 0
    error: str = ""


class ClockRecord(msgspec.Struct, frozen=True):
    """What a GPU took for many programs."""

    gpu: str
    torch: str
    programs: dict[str, Program]


def read_records(paths: Sequence[str | Path]) -> tuple[ClockRecord, dict[str, float]]:
    """The programs of several records of one GPU, and the weight of each program.

    Every record counts as much as another. Raises BadClockRecord for a bad file, or for two GPUs.
    """
    records = [read_record(path) for path in paths]
    if len({record.gpu for record in records}) > 1:
        raise BadClockRecord(
            str(paths[-1]), f"a record of {records[-1].gpu}, the first one is of {records[0].gpu}"
        )
    several = len(records) > 1
    programs = {}
    weights = {}
    for place, record in enumerate(records):
        share = sum(len(r.programs) for r in records) / len(records) / len(record.programs)
        for name, program in record.programs.items():
            programs[f"{name} ({place + 1})" if several else name] = program
            weights[f"{name} ({place + 1})" if several else name] = share
    return msgspec.structs.replace(records[0], programs=programs), weights


def read_record(path: str | Path) -> ClockRecord:
    """The record in a file, without the programs that failed.

    Raises BadClockRecord, which says what is wrong with it.
    """
    try:
        record = msgspec.json.decode(Path(path).read_bytes(), type=ClockRecord)
    except OSError as error:
        raise BadClockRecord(str(path), error.strerror or str(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadClockRecord(str(path), str(error)) from None
    ran = {name: program for name, program in record.programs.items() if not program.error}
    # Every figure must be a time, and every program Python.
    for name, program in ran.items():
        figures = {f: getattr(program, f) for f in Program.__struct_fields__ if f.endswith("_s")}
        wrong = [f for f, v in figures.items() if not math.isfinite(v) or v < 0]
        if wrong or not program.wall_s:
            raise BadClockRecord(str(path), f"{name}: {', '.join(wrong) or 'wall_s'} is no time")
        try:
            compile(program.setup, name, "exec"), compile(program.step, name, "exec")
        except SyntaxError as error:
            raise BadClockRecord(str(path), f"{name}: {error}") from None
    if len(ran) < FEWEST:
        raise BadClockRecord(
            str(path), f"{len(ran)} programs that ran, at least {FEWEST} are needed"
        )
    return msgspec.structs.replace(record, programs=ran)


# ---- running the programs ------------------------------------------------------------------------

FEWEST: Final = 20
_WARM_UP: Final = 1
# A recorder warms up until all memory that a step needs is cached.
_CACHED: Final = OperationRow(
    at=0.0,
    code=None,
    offset=None,
    name="aten.empty.memory_format",
    device="cuda:0",
    mode=0,
    autocast=None,
    bytes=1,
    live=1 << 50,
)


@contextlib.contextmanager
def without_arithmetic() -> Iterator[None]:
    """Make products, convolutions, sorts and recurrent layers give zeros inside the block.

    Only shapes are wanted, and the host may be slow. Replaces torch's kernels, and uses
    one thread; both are put back at the end.
    """

    # What stands in for the operators: zeros of the right shape.
    def zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=like.dtype)

    def convolution(
        x: Any,
        w: Any,
        b: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        more: Any,
        groups: int,
    ) -> Any:
        """Zeros in the shape that a convolution, or a transposed one, would give."""
        steps = zip(
            x.shape[2:], padding, dilation, w.shape[2:], stride, more or stride, strict=True
        )
        if transposed:
            sizes = [(n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, p, d, k, s, m in steps]
            return zeros(x, x.shape[0], w.shape[1] * groups, *sizes)
        return zeros(
            x,
            x.shape[0],
            w.shape[0],
            *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s, _ in steps),
        )

    def gradients(g: Any, x: Any, w: Any, *rest: Any) -> Any:
        shapes = x.shape, w.shape, g.shape[1:2]
        return tuple(
            zeros(x, *shape) if wanted else None
            for shape, wanted in zip(shapes, rest[-1], strict=True)
        )

    def recurrent(x: Any, hx: Any, weights: Any, *rest: Any) -> Any:
        both = rest[4]
        states = hx if isinstance(hx, (list, tuple)) else [hx]
        linked = weights[0].flatten()[0] * 0  # so that gradients can be asked for
        return zeros(x, *x.shape[:2], states[0].shape[2] * (2 if both else 1)) + linked, *(
            s + linked for s in states
        )

    # By the name of the operator.
    stand_ins = {
        "mm": lambda a, b: zeros(a, a.shape[0], b.shape[1]),
        "addmm": lambda c, a, b, *, beta=1, alpha=1: zeros(a, a.shape[0], b.shape[1]),
        "bmm": lambda a, b: zeros(a, *a.shape[:2], b.shape[2]),
        "baddbmm": lambda c, a, b, *, beta=1, alpha=1: zeros(a, *a.shape[:2], b.shape[2]),
        "sort.stable": lambda x, **named: (
            zeros(x, *x.shape),
            torch.zeros(x.shape, dtype=torch.int64),
        ),
        "convolution": convolution,
        "convolution_backward": gradients,
        "_scaled_dot_product_flash_attention_for_cpu": lambda q, *rest, **named: (
            zeros(q, *q.shape),
            torch.zeros(q.shape[:3]),
        ),
        "_scaled_dot_product_flash_attention_for_cpu_backward": lambda g, q, k, v, *rest, **named: (
            tuple(zeros(t, *t.shape) for t in (q, k, v))
        ),
    }
    # Replace the kernels until the block ends.
    library = torch.library.Library("aten", "IMPL")
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced, which is what is meant
        for name, function in stand_ins.items():
            library.impl(name, function, "CPU")
        for name in ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"):
            library.impl(name, recurrent, "CompositeImplicitAutograd")
    torch.set_num_threads(1)
    try:
        yield
    finally:
        library._destroy()
        torch.set_num_threads(threads)


def run(program: Program, name: str, gpu: VirtualGpu) -> int:
    """Run a program on the open device as the recorder does.

    Returns the number of the ledger's row at which its step begins.
    """
    scope: dict[str, Any] = {}
    exec(compile(program.setup, name, "exec"), scope)
    step = compile(program.step, name, "exec")
    for _ in range(_WARM_UP):
        exec(step, scope)
    torch.cuda.synchronize()
    first = len(gpu.ledger.rows)
    torch.cuda.Event(enable_timing=True).record()
    exec(step, scope)
    torch.cuda.Event(enable_timing=True).record()
    torch.cuda.synchronize()
    return first


Ran = tuple[list[Row], int]  # the rows of a ledger, and the first of the step


def run_all(programs: Mapping[str, Program]) -> dict[str, Ran]:
    """The rows of every program, by its name.

    Executes the code that a record holds.
    """
    found: dict[str, Ran] = {}
    with without_arithmetic(), virtual_cuda(memory="1 TiB") as gpu:
        for name, program in programs.items():
            with contextlib.suppress(Exception):
                found[name] = _rows(program, name, gpu)
    # What cannot do without products, as a solver that is given zeros, is run once more with them.
    if left := {name: program for name, program in programs.items() if name not in found}:
        with virtual_cuda(memory="1 TiB") as gpu:
            found |= {name: _rows(program, name, gpu) for name, program in left.items()}
    return {name: found[name] for name in programs}


def _rows(program: Program, name: str, gpu: VirtualGpu) -> Ran:
    gpu.ledger.rows.clear()
    torch.manual_seed(0)
    first = run(program, name, gpu)
    rows = gpu.ledger.rows  # by their numbers, later rows refer to earlier ones
    before = [r if isinstance(r, StreamRow) and r.what == "tf32" else _CACHED for r in rows[:first]]
    return [*before, *rows[first:]], first


# ---- agreement -----------------------------------------------------------------------------------


class Agreement(msgspec.Struct, frozen=True):
    """How well a model fits a record.

    `wall` and `kernel` are factors of error, `rank` is the correlation of ranks.
    """

    programs: int
    wall: tuple[float, float]  # median and 90th percentile
    kernel: tuple[float, float]
    rank: float
    counted: float  # share of the programs whose number of kernels is within 20 %


def agreement(programs: Mapping[str, Program], modelled: Mapping[str, Times]) -> Agreement:
    """The agreement of the modelled times with the recorded ones."""
    walls = [(modelled[name].end, p.wall_s) for name, p in programs.items()]
    kernels = [
        (modelled[name].kernel_seconds, p.kernel_s) for name, p in programs.items() if p.kernel_s
    ]
    counted = [
        abs(modelled[name].kernels - p.kernels) <= 0.2 * p.kernels for name, p in programs.items()
    ]
    ranks = np.array(
        [np.argsort(np.argsort(side)) for side in zip(*walls, strict=True)], dtype=float
    )
    rank = float(np.corrcoef(ranks)[0, 1]) if len(walls) > 1 else 1.0
    return Agreement(
        len(walls), _errors(walls), _errors(kernels), rank, sum(counted) / max(len(counted), 1)
    )


def _errors(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    factors = [max(a / b, b / a) if a > 0 else math.inf for a, b in pairs]
    return (median(factors), float(np.percentile(factors, 90))) if factors else (1.0, 1.0)


# ---- the fit -------------------------------------------------------------------------------------

_PULL: Final = 0.02
_ROUNDS: Final = 30
# The least share of the usual figure: of times, and of what bytes and FLOPs cost. No kernel beats
# the memory by much, also where the record has small ones only; some algorithms need fewer FLOPs
# than are counted.
_LEAST: Final = (0.25, 0.8, 0.5)
# Usual figures, in seconds. Of kernels: the least time; bytes and FLOPs take what the peak rates
# say.
_USUAL: Final = {
    "event": 9e-6, "module": 4e-6, "backward": 100e-6, "step": 100e-6, "scaler": 30e-6,
    "transfer": 10e-6, "launch": 4e-6, "recurrent launch": 8e-6,
    "recurrent launch backward": 12e-6,
    "allocation": 3e-6, "view": 3e-6, "view backward": 2e-6, "operator": 10e-6,
    "operator gradient": 15e-6, "operator backward": 20e-6, "cuBLAS": 8e-6,
    "cuDNN": 20e-6, "cuDNN norm": 20e-6, "cuDNN recurrent": 100e-6, "attention": 20e-6, "indexing": 10e-6,
}  # fmt: skip
# What programs on a busy host do not tell: waits, what is rare or small, and what of an optimizer's
# step comes between its kernels and not before them: the profiler's ranges of steps say that.
_FIXED: Final = {
    "item": 4e-6, "wait": 1e-6, "stream": 3e-6, "synchronize": 9e-6, "cudaMalloc": 150e-6, "list": 17e-6,
    "list tensor": 2e-6, "list number": 0.17e-6, "reduction": 4e-6,
}  # fmt: skip
_USUAL_KERNEL: Final = {
    "block sort": 14e-6, "radix sort": 6e-6, "attention": 10e-6, "half attention": 8e-6, "loss": 3.5e-6,
    "softmax": 3.3e-6, "norm": 3e-6, "convolution": 3e-6, "multi-tensor function": 20e-6, "shared reduction": 5e-6,
    "layout": 2.5e-6, "linear product": 5e-6,
}  # fmt: skip


def solve(
    rows: Sequence[Mapping[Any, float]],
    wanted: Sequence[float],
    usual: Mapping[Any, float],
    counts: Sequence[float],
) -> dict[Any, float]:
    """The coefficients with which the sums come close to what is wanted, relatively.

    None is far below the usual one. `counts` are the weights of the rows.
    """
    names = [name for name in usual if any(row.get(name) for row in rows)]
    if not names:
        return {}
    # Everything relative: to what is wanted, and to the usual figures.
    scale = np.array([usual[name] for name in names])
    least = [_LEAST[name[1]] if isinstance(name, tuple) else _LEAST[0] for name in names]
    matrix = (
        np.array([[row.get(name, 0.0) for name in names] for row in rows])
        / np.array(wanted)[:, None]
        * scale
    )
    found = np.ones(len(names))
    weights = np.array(counts)
    for _ in range(_ROUNDS):  # reweighted, so that what fits badly counts less
        square = (matrix * weights[:, None]).T @ matrix + _PULL * np.eye(len(names))
        right = (matrix * weights[:, None]).sum(axis=0) + _PULL
        # One coefficient after the other, many times over.
        for _ in range(200):
            for place in range(len(names)):
                step = (right[place] - square[place] @ found) / square[place, place]
                found[place] = max(least[place], found[place] + step)
        sums = np.maximum(matrix @ found, 1e-9)
        error = np.log(sums)  # so that twice as long and half as long weigh the same
        weights = (
            counts
            * (np.where(error, error, 1) / np.where(error, sums - 1, 1)) ** 2
            / np.maximum(abs(error), 0.08)
        )
    return {name: float(f"{value:.3g}") for name, value in zip(names, found * scale, strict=True)}


def _features(ran: Ran, gpu: Gpu) -> tuple[dict[Any, float], dict[str, float]]:
    """The work of a step's kernels by kind and part, and the host's costs by name."""
    ledger, first = ran
    chip = gpu.chip()
    host = HostCosts()
    done: defaultdict[Any, float] = defaultdict(float)
    costs: defaultdict[str, float] = defaultdict(float)
    for number in range(first, len(ledger) - 1):  # without the wait at the end
        row = ledger[number]
        call = kernel_call_of(row) if isinstance(row, OperationRow) else None
        kernels = [] if call is None or is_transfer(ledger, number) else kernels_of(call, chip)
        for cost, times in host.of_row(number, row, call, len(kernels)):
            costs[cost] += times
        for kernel in kernels:
            if kernel.kind != COPY:
                done[kernel.kind, 0] += 1
                done[kernel.kind, 1] += gpu.bytes_from_memory(kernel.bytes) / gpu.bandwidth
                done[kernel.kind, 2] += kernel.flops / gpu.flops_per_second(kernel.unit)
    return done, costs


def fit(
    record: ClockRecord,
    ran: Mapping[str, Ran],
    base: Gpu,
    weights: Mapping[str, float] | None = None,
) -> Gpu:
    """The GPU whose model fits a record best; its size and its peaks are those of `base`."""
    weights = weights or {}
    programs = record.programs
    features = {name: _features(ran[name], base) for name in programs}
    # The host alone can be seen where the device was not what everybody waited for.
    alone = [
        n
        for n, p in programs.items()
        if p.kernel_s + p.copy_s < 0.45 * p.queue_s or p.queue_s < 0.9 * p.event_s
    ]
    alone = [
        n for n in alone if features[n][1] and (programs[n].copy_s < 1e-5 or programs[n].kernels)
    ]
    # What issuing took, without the costs that are given.
    given = _FIXED | {"item": base.latency + base.gap + _FIXED["item"] + _FIXED["wait"]}
    counts = [weights.get(n, 1.0) for n in alone]
    issued = [
        max(
            p.queue_s - sum(given.get(c, 0.0) * times for c, times in features[n][1].items()),
            0.2 * p.queue_s,
        )
        for n, p in ((n, programs[n]) for n in alone)
    ]
    host = {**_USUAL, **_FIXED, **solve([features[n][1] for n in alone], issued, _USUAL, counts)}
    # The kernels, from the programs that ran any.
    timed = [name for name, p in programs.items() if p.kernel_s and features[name][0]]
    usual: dict[Any, float] = {}
    for name in timed:
        for kind, part in features[name][0]:
            usual[kind, part] = _USUAL_KERNEL.get(kind, 1.5e-6) if part == 0 else 1.0
    issuing = msgspec.structs.replace(base, host=host)
    alone_s = [_without_steps(programs[name], ran[name], issuing) for name in timed]
    counts = [weights.get(n, 1.0) for n in timed]
    found = solve([features[n][0] for n in timed], alone_s, dict(sorted(usual.items())), counts)
    kernels = dict(base.kernels)
    for kind in {kind for kind, _ in found}:
        old = kernels.get(kind, KernelFigures(1.5e-6, 1.0, 1.0))
        fitted = [found.get((kind, part), old[part]) for part in range(3)]
        kernels[kind] = KernelFigures(*fitted)
    # The figures of `base`, with those that were found.
    source = f"fitted to {len(programs)} programs, timed on {record.gpu} with torch {record.torch}"
    copies = _copies(programs, ran, base, host)
    changed = {
        "kernels": dict(sorted(kernels.items())),
        "host": host,
        "copies": copies,
        "source": source,
    }
    return msgspec.structs.replace(base, **changed)


def _without_steps(program: Program, ran: Ran, gpu: Gpu) -> float:
    """The recorded time of the kernels, without the ranges of optimizers' steps.

    The profiler takes these ranges for kernels as well.
    """
    if not any(isinstance(row, StepRow) for row in ran[0][ran[1] :]):
        return program.kernel_s
    return max(
        program.kernel_s - sum(times_of_rows(*_split(ran, gpu)).steps), 0.3 * program.kernel_s
    )


def _copies(
    programs: Mapping[str, Program], ran: Mapping[str, Ran], base: Gpu, host: Mapping[str, float]
) -> Any:
    """The times of copies, from the programs that do nothing else.

    Sizes beyond theirs are scaled like the nearest one.
    """
    copies = dict(base.copies)
    # What was recorded, by way and size.
    seen: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    for name, program in programs.items():
        rows = ran[name][0][ran[name][1] :]
        moved = [row for row in rows if isinstance(row, TransferRow)]
        if len(moved) == 1 and not program.kernels and program.copies == 1:
            pinned = moved[0].pinned
            issue = 2 * host["event"] + host["operator"] + host["transfer"]
            on_host = 0.0 if pinned else max(program.queue_s - issue, program.copy_s)
            again = is_into_used(rows, rows.index(moved[0]))
            seen[way_of_copy(moved[0].direction, pinned, again)][moved[0].bytes] = (
                program.copy_s,
                on_host,
            )
    # Sizes that `base` has, and the record does not.
    for way, points in seen.items():
        least = min(points)
        most = max(points)
        for size, there, on_host in base.copies[way]:
            near = least if size < least else most
            if not least <= size <= most:
                direction, _, pinning = way.partition(" ")
                scale = (
                    points[near][0]
                    / base.copy_seconds(
                        direction, near, pinning == "pinned", pinning == "used"
                    ).device
                )
                points[int(size)] = (there * scale, on_host * scale)
        copies[way] = [
            CopyPoint(size, float(f"{a:.3g}"), float(f"{b:.3g}"))
            for size, (a, b) in sorted(points.items())
        ]
    return copies


def main(arguments: Sequence[str] | None = None, prog: str = "python -m tools.fitting") -> int:
    """Fit a GPU to the records that the arguments name, and print its figures.

    Returns the exit status.
    """
    parser = argparse.ArgumentParser(
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
        base, (record, weights) = gpu_named(options.like), read_records(options.records)
    except VirtualCudaError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    ran = run_all(record.programs)
    gpu = msgspec.structs.replace(fit(record, ran, base, weights), name=options.name or record.gpu)
    # The figures go to standard output, how well they fit to standard error.
    reached = agreement(
        record.programs, {name: times_of_rows(*_split(ran[name], gpu)) for name in record.programs}
    )
    print(
        json.dumps(
            {gpu.name: {k: v for k, v in msgspec.to_builtins(gpu).items() if k != "name"}}, indent=1
        )
    )
    print(f"modelled against recorded: {msgspec.json.encode(reached).decode()}", file=sys.stderr)
    return 0


def _split(ran: Ran, gpu: Gpu) -> tuple[list[Row], Gpu, int]:
    return ran[0], gpu, ran[1]


if __name__ == "__main__":
    sys.exit(main())
