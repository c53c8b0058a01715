"""Times programs on the GPU of this machine: `python -m virtual_cuda record OUT.json`.

The programs are those of an earlier record, by default the one in this folder. A step is run three
times to warm up. Then its wall time, the time to issue it and the time between two events are
medians of repeats; the profiler counts kernels and copies in one more step. A host that many use is
now fast, now slow: further passes, in random order, tell how much that is. The times are then
medians of all passes, and `walls_s` has those of each.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from rich.progress import track

from virtual_cuda.errors import VirtualCudaError
from virtual_cuda.fitting.records import USUAL_RECORD, Program, read_record
from virtual_cuda.single_options import SingleOptionsParser

_WARM_UP: Final = 3
_FEWEST_REPEATS: Final = 5
_MOST_REPEATS: Final = 50
_MOST_SECONDS: Final = 0.4  # of the repeats of one program
_ALL_SECONDS: Final = 120.0  # of the repeats of all, in one pass
_MEDIANS: Final = ("wall_s", "queue_s", "event_s")

Figures = dict[str, Any]  # of one program, by the names of the fields of `Program`


class _Round(NamedTuple):
    """The seconds of one step."""

    wall: float  # until the device was idle
    queue: float  # until everything was issued
    event: float  # between two events


class _StepCode:
    """A program whose setup has run and whose step is warm."""

    def __init__(self, program: Program) -> None:
        """Run the setup and a few steps; raises whatever they raise."""
        self.scope: dict[str, Any] = {}
        torch.backends.cuda.matmul.allow_tf32 = False
        exec(compile(program.setup, "<setup>", "exec"), self.scope)
        self.code = compile(program.step, "<step>", "exec")
        for _ in range(_WARM_UP):
            self.run()

    def run(self) -> None:
        """Run the step once; raises whatever it raises."""
        exec(self.code, self.scope)

    def time_once(self) -> _Round:
        """Run the step on an idle device, and wait for its end; raises whatever the step raises."""
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        first.record()
        self.run()
        last.record()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        ended = time.perf_counter()
        return _Round(ended - begun, issued - begun, first.elapsed_time(last) / 1e3)

    def time_repeats(self, seconds: float) -> Figures:
        """The medians of as many repeats as fit into so many seconds.

        Raises whatever the step raises.
        """
        once = self.time_once().wall
        count = int(seconds / max(once, 1e-6))
        count = max(_FEWEST_REPEATS, min(_MOST_REPEATS, count))
        rounds = [self.time_once() for _ in range(count)]
        return {
            "wall_s": statistics.median(each.wall for each in rounds),
            "queue_s": statistics.median(each.queue for each in rounds),
            "event_s": statistics.median(each.event for each in rounds),
            "repeats": count,
        }

    def count_kernels(self) -> Figures:
        """The number and the seconds of the kernels and copies of one step, by the profiler.

        The step is run for that; what it raises is raised.
        """
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            self.run()
            torch.cuda.synchronize()
        kernels: list[float] = []
        copies: list[float] = []
        for event in profile.events() or ():
            if event.device_type.name != "CUDA":
                continue
            if event.name.startswith(("Memset", "ProfilerStep")):
                continue
            seconds = event.device_time / 1e6
            if event.name.startswith("Memcpy"):
                copies.append(seconds)
            else:
                kernels.append(seconds)
        return {
            "kernels": len(kernels),
            "copies": len(copies),
            "kernel_s": sum(kernels),
            "copy_s": sum(copies),
        }


def _record_program(program: Program, seconds: float, with_kernels: bool) -> Figures:
    """What a program took; where it failed, its error instead.

    The program is run, at most so many seconds if it is fast; `with_kernels` counts its kernels,
    too. The cache of the GPU's memory is emptied afterwards.
    """
    try:
        step = _StepCode(program)
        figures = step.time_repeats(seconds)
        if with_kernels:
            figures |= step.count_kernels()
    except Exception as error:  # whatever a program raises: the record says so, and goes on
        figures = {"error": f"{type(error).__name__}: {error}"[:200]}
    torch.cuda.empty_cache()
    return figures


def record_programs(programs: Mapping[str, Program], passes: int) -> dict[str, Figures]:
    """Time all programs so many times, and return what each took, by its name.

    Shows a progress bar on stderr. Raises ZeroDivisionError without any program.
    """
    seconds = min(_MOST_SECONDS, _ALL_SECONDS / len(programs))
    by_name: dict[str, list[Figures]] = {name: [] for name in programs}
    order = list(_order_of_passes(list(programs), passes))
    for name in track(order, "Timing programs"):
        earlier = by_name[name]
        earlier.append(_record_program(programs[name], seconds, with_kernels=not earlier))
    rows = {}
    for name, recorded in by_name.items():
        source = {"setup": programs[name].setup, "step": programs[name].step}
        rows[name] = source | _median_figures(recorded)
    return rows


def _order_of_passes(names: list[str], passes: int) -> Iterator[str]:
    """The names in their order, then in a random one for each further pass."""
    yield from names
    for _ in range(passes - 1):
        yield from random.sample(names, len(names))


def _median_figures(recorded: Sequence[Figures]) -> Figures:
    """The medians of several recordings of a program; an error, if there was one."""
    for figures in recorded:
        if "error" in figures:
            return figures
    result = dict(recorded[0])
    if len(recorded) > 1:
        for field in _MEDIANS:
            result[field] = statistics.median(figures[field] for figures in recorded)
        result["walls_s"] = [figures["wall_s"] for figures in recorded]
    return result


def main(arguments: Sequence[str], prog: str = "python -m virtual_cuda record") -> int:
    """Time programs on this machine's GPU, and write a record; returns the exit status.

    It is 2, after a message, without a GPU or for programs that cannot be read. Exits where the
    arguments are wrong. Raises OSError where the record cannot be written.
    """
    parser = SingleOptionsParser(
        prog,
        description="Time programs on the GPU of this machine, for `python -m virtual_cuda fit`. "
        "This takes less than three minutes.",
    )
    parser.add_argument("out", type=Path, metavar="OUT.json", help="the record to write")
    parser.add_argument(
        "--programs",
        type=Path,
        default=USUAL_RECORD,
        metavar="RECORD.json",
        help="a record with other programs, which are run",
    )
    parser.add_argument(
        "--passes", type=int, default=1, metavar="N", help="time all programs so often (default: 1)"
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(f"{prog}: this machine has no GPU that torch can use", file=sys.stderr)
        return 2
    try:
        programs = read_record(options.programs).programs
    except VirtualCudaError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    rows = record_programs(programs, options.passes)
    record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "programs": rows}
    options.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    failed = [name for name, row in rows.items() if "error" in row]
    print(f"{len(rows)} programs timed, {len(failed)} failed: {', '.join(failed) or 'none'}")
    return 0
