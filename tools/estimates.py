"""Compares estimates of whole programs with what a GPU recorded.

`python -m tools.estimates [RECORD.json …] [--only PART] [--write]` runs the programs of records
without values on a virtual H200, and prints a row of a table for each: peak memory and the time of
a step, here and there. With `--write` the table goes into `docs/estimate.md`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from virtual_cuda import virtual_cuda
from virtual_cuda.estimate.memory_record import MemoryRecord
from virtual_cuda.estimate.result import CONTEXT, describe_run, whether_it_fits
from virtual_cuda.estimate.steps import Step, StepWatch

_PROJECT: Final = Path(__file__).parent.parent
RECORD: Final = _PROJECT / "tests" / "virtual_cuda" / "clock" / "h200-large.json"
PAGE: Final = _PROJECT / "docs" / "estimate.md"
MARKS: Final = ("<!-- agreement -->", "<!-- /agreement -->")
STEPS: Final = 3
_GIB: Final = 1 << 30
# The memories for which is asked whether a program fits, beside what it reserved on the GPU and
# CUDA itself: from half as much to twice as much.
_SIZES: Final = [0.5 + step / 50 for step in range(76)]


class RecordedProgram(msgspec.Struct, frozen=True):
    """One program, and what a step of it took on a GPU."""

    setup: str
    step: str
    wall_s: float
    peak: int = 0  # 0 where it was not recorded
    reserved: int = 0


class Record(msgspec.Struct, frozen=True):
    """What a GPU took for many programs."""

    gpu: str
    torch: str
    programs: dict[str, RecordedProgram]


class Comparison(NamedTuple):
    """An estimate beside what was recorded."""

    name: str
    recorded: RecordedProgram
    peak: int
    reserved: int
    seconds: float
    took: float  # seconds of this machine's processor
    verdicts: dict[int, str]  # whether it fits, by the memory of a GPU

    @property
    def peak_error(self) -> float:
        """How far the peak is off, as a part of the recorded one."""
        return self.peak / self.recorded.peak - 1

    @property
    def time_error(self) -> float:
        """How far the time of a step is off, as a part of the recorded one."""
        return self.seconds / self.recorded.wall_s - 1

    @property
    def wrong_verdicts(self) -> list[int]:
        """The memories for which it is said to fit, or not to fit, and that is not so.

        To fit, it must have room for all that torch reserved: whether torch could do with less was
        not recorded. CUDA itself is taken to need as much as is assumed for it.
        """
        wrong = []
        for total, verdict in self.verdicts.items():
            if verdict == "yes" and self.recorded.reserved + CONTEXT > total:
                wrong.append(total)
            if verdict == "no" and self.recorded.reserved + CONTEXT <= total:
                wrong.append(total)
        return wrong


def compare_program(name: str, program: RecordedProgram) -> Comparison:
    """Estimate one program; executes the code that a record holds."""
    began = time.process_time()
    with virtual_cuda(gpu="H200", memory="4096 TiB", values=False) as gpu:
        device_memory = gpu.devices[0].memory
        memory = MemoryRecord(device_memory, gpu.ledger.rows)
        device_memory.observe(memory)
        watch = StepWatch(gpu, memory, 0)
        scope: dict[str, Any] = {}
        exec(compile(program.setup, name, "exec"), scope)
        step = compile(program.step, name, "exec")
        steps = []
        with watch.watching():
            for _ in range(STEPS):
                first = len(gpu.ledger.rows)
                exec(step, scope)
                steps.append(Step(first, len(gpu.ledger.rows)))
        watch.name_modules()
        device_memory.observe(None)
        estimate = describe_run(name, watch, memory, steps, "")
    assert estimate.step_seconds is not None
    took = time.process_time() - began
    verdicts = {}
    for factor in _SIZES:
        total = int(program.reserved * factor) + CONTEXT
        verdicts[total] = whether_it_fits(memory, total)
    return Comparison(
        name, program, estimate.peak, estimate.reserved, estimate.step_seconds, took, verdicts
    )


def table_lines(found: list[Comparison]) -> Iterator[str]:
    """The table as Markdown, and a sentence that sums it up."""
    yield "| program | peak, GPU | here | reserved | one step, GPU | here | estimated in |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for each in found:
        reserved = each.reserved / each.recorded.reserved - 1
        yield (
            f"| {each.name} | {each.recorded.peak / _GIB:.2f} GiB | {each.peak_error:+.2%} | "
            f"{reserved:+.1%} | {each.recorded.wall_s * 1e3:,.1f} ms | {each.time_error:+.0%} | "
            f"{each.took:.0f} s |"
        )
    peaks = sorted(abs(each.peak_error) for each in found)
    times = sorted(abs(each.time_error) for each in found)
    yield ""
    yield (
        f"{len(found)} programs: the peak is off by {statistics.median(peaks):.2%} in the median, "
        f"{peaks[-1]:.1%} at worst; the time of a step by {statistics.median(times):.0%}, "
        f"{times[-1]:.0%} at worst."
    )
    yield ""
    every = [verdict for each in found for verdict in each.verdicts.values()]
    wrong = sum(len(each.wrong_verdicts) for each in found)
    yield (
        f"Asked for {len(found[0].verdicts)} sizes of memory each, from half of what a program "
        f'reserved to twice as much: {every.count("yes")} times "fits", {every.count("no")} times '
        f'"does not fit", {every.count("close")} times "too close to say"; {wrong} are wrong.'
    )


def write_page(lines: list[str]) -> None:
    """Put the table between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    table = "\n".join(lines)
    page = f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{after}"
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Print the table for the records of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, default=(RECORD,))
    parser.add_argument("--only", default="", help="only programs with this in their name")
    parser.add_argument("--write", action="store_true", help="put the table into docs/estimate.md")
    asked = parser.parse_args()
    found = []
    for path in asked.records:
        programs = msgspec.json.decode(path.read_bytes(), type=Record).programs
        for name, program in programs.items():
            if asked.only in name and program.peak:
                found.append(compare_program(name, program))
                print(next(line for line in table_lines(found[-1:]) if name in line), flush=True)
                gc.collect()
    if found:
        lines = list(table_lines(found))
        print("\n" + "\n".join(lines[-3:]))
        if asked.write:
            write_page(lines)


if __name__ == "__main__":
    main()
