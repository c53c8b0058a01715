"""Compares the peak memory of whole programs with what a GPU recorded.

`python -m tools.peak_memory [RECORD.json …] [--only PART] [--zeros]` runs the programs of records
on a virtual H200, and prints a line for each. Without a record, those of the test suite are taken.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.fitting.program_runs import without_arithmetic

_FOLDER: Final = Path(__file__).parent.parent / "tests" / "virtual_cuda" / "clock"
RECORDS: Final = (_FOLDER / "h200-models.json", _FOLDER / "h200-peaks.json")
WARM_UP: Final = 2  # steps; the second one finds the optimizer's state and all workspaces
_MIB: Final = 1 << 20


class RecordedProgram(msgspec.Struct, frozen=True):
    """One program, and the bytes that a step of it had on a GPU."""

    setup: str
    step: str
    peak: int
    reserved: int


class PeakRecord(msgspec.Struct, frozen=True):
    """The peaks that a GPU had in many programs."""

    gpu: str
    torch: str
    programs: dict[str, RecordedProgram]


class Peaks(NamedTuple):
    """The bytes of one step here, beside the recorded ones."""

    recorded: int
    found: int
    recorded_reserved: int
    found_reserved: int

    @property
    def error(self) -> float:
        """How far the peak is off, as a part of the recorded one; less than 0 if too low."""
        return self.found / self.recorded - 1


def read_peaks(path: Path) -> PeakRecord:
    """The record in a file. Raises msgspec.DecodeError for another file."""
    return msgspec.json.decode(path.read_bytes(), type=PeakRecord)


def measure_peaks(program: RecordedProgram, name: str) -> Peaks:
    """Run a program on a virtual H200, and measure the peak of a step.

    Executes the code that a record holds.
    """
    with virtual_cuda(gpu="H200"):
        torch.manual_seed(0)
        scope: dict[str, Any] = {}
        exec(compile(program.setup, name, "exec"), scope)
        step = compile(program.step, name, "exec")
        for _ in range(WARM_UP):
            exec(step, scope)
        torch.cuda.reset_peak_memory_stats()
        exec(step, scope)
        peak = torch.cuda.max_memory_allocated()
        reserved = torch.cuda.memory_reserved()
    return Peaks(program.peak, peak, program.reserved, reserved)


def compare_programs(programs: Mapping[str, RecordedProgram]) -> Iterator[tuple[str, Peaks]]:
    """The peaks of each program, by its name, as soon as they are known."""
    for name, program in programs.items():
        yield name, measure_peaks(program, name)
        gc.collect()


def _line_of(name: str, peaks: Peaks) -> str:
    """One line of the table."""
    recorded = peaks.recorded / _MIB
    found = peaks.found / _MIB
    reserved = peaks.found_reserved / peaks.recorded_reserved - 1
    return f"{name:36}{recorded:12.2f}{found:12.2f}{peaks.error:+10.2%}{reserved:+10.2%}"


def main() -> None:
    """Print the table for the records of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, default=RECORDS)
    parser.add_argument("--only", default="", help="only programs with this in their name")
    parser.add_argument("--zeros", action="store_true", help="products give zeros, for speed")
    asked = parser.parse_args()
    errors = []
    print(f"{'program':36}{'GPU, MiB':>12}{'here, MiB':>12}{'peak':>10}{'reserved':>10}")
    with without_arithmetic() if asked.zeros else contextlib.nullcontext():
        for path in asked.records:
            programs = read_peaks(path).programs
            chosen = {name: each for name, each in programs.items() if asked.only in name}
            for name, peaks in compare_programs(chosen):
                print(_line_of(name, peaks), flush=True)
                errors.append(abs(peaks.error))
    if errors:
        median = statistics.median(errors)
        print(f"{len(errors)} programs: median {median:.2%}, worst {max(errors):.2%}")


if __name__ == "__main__":
    main()
