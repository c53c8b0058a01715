"""Compares how often whole programs wait and copy with what a GPU did.

On a machine with a GPU, `python -m tools.waits_and_copies record OUT.json [PROGRAMS …]` runs the
programs of files and records the copies and waits of one step, by torch's profiler. On any machine,
`python -m tools.waits_and_copies compare [RECORD.json …]` runs the programs of a record on a
virtual H200, and prints a line for each.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from virtual_cuda import virtual_cuda
from virtual_cuda.fitting.program_runs import without_arithmetic
from virtual_cuda.ledger import Sync, Transfer

_TESTS: Final = Path(__file__).parent.parent / "tests" / "virtual_cuda"
PROGRAMS: Final = (
    _TESTS / "ledger" / "waiting_programs.toml",
    _TESTS / "clock" / "h200-models.json",
    _TESTS / "clock" / "h200-peaks.json",
    _TESTS / "clock" / "h200-whole.json",
)
RECORD: Final = _TESTS / "ledger" / "h200-waits.json"
WARM_UP: Final = 2  # steps before the one that is counted
# A wait by the name of the function of CUDA's runtime in which the host waits.
_WAITING_CALLS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_TO_DEVICE: Final = "HtoD"
_TO_HOST: Final = "DtoH"
# A copy to the host of at most so many bytes is how a GPU's host reads one number (`item`, the size
# of a result); the ledger has a wait for it, no copy.
_ONE_NUMBER: Final = 8


class Counts(msgspec.Struct, frozen=True):
    """What one step of a program does besides computing."""

    copies_to_device: int
    bytes_to_device: int
    copies_to_host: int
    """Those of more than one number."""
    bytes_to_host: int
    waits: int
    warnings: int
    """How often `torch.cuda.set_sync_debug_mode("warn")` warns."""


class Program(msgspec.Struct, frozen=True):
    """Two pieces of code; the first one is run once, the second one is a step."""

    setup: str
    step: str


class CountedProgram(Program, frozen=True):
    """A program, and what a step of it did on a GPU."""

    counts: Counts


class CountRecord(msgspec.Struct, frozen=True):
    """What a GPU did in many programs."""

    gpu: str
    torch: str
    programs: dict[str, CountedProgram]


def read_programs(path: Path) -> dict[str, Program]:
    """The programs of a file, by name, of TOML or JSON.

    Raises msgspec.ValidationError for a file that has none.
    """
    if path.suffix == ".toml":
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    else:
        content = json.loads(path.read_text(encoding="utf-8"))["programs"]
    return msgspec.convert(content, dict[str, Program])


def read_counts(path: Path) -> CountRecord:
    """The record in a file. Raises msgspec.DecodeError for another file."""
    return msgspec.json.decode(path.read_bytes(), type=CountRecord)


def prepare_step(program: Program, name: str) -> Callable[[], None]:
    """Run a program's setup and its first steps, and return a function that runs one more step.

    Executes the code that a file holds.
    """
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(compile(program.setup, name, "exec"), scope)
    step = compile(program.step, name, "exec")
    for _ in range(WARM_UP):
        exec(step, scope)

    def run_step() -> None:
        """Run the step in the variables that the setup left."""
        exec(step, scope)

    return run_step


def count_warnings(run_step: Callable[[], None]) -> int:
    """Run a step, and count the warnings of CUDA's debug mode for waits."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(each.message) for each in caught)


# ---- on a GPU ------------------------------------------------------------------------------------


def count_on_gpu(program: Program, name: str) -> Counts:
    """Run a program on the GPU of this machine, and count what torch's profiler tells of a step."""
    run_step = prepare_step(program, name)
    warned = count_warnings(run_step)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run_step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    copies = [event for event in events if event.get("cat") == "gpu_memcpy"]
    to_device = [event["args"]["bytes"] for event in copies if _TO_DEVICE in event["name"]]
    to_host = [event["args"]["bytes"] for event in copies if _TO_HOST in event["name"]]
    return _counts_of(to_device, to_host, _waits_among(events), warned)


def _counts_of(to_device: list[int], to_host: list[int], waits: int, warned: int) -> Counts:
    """The counts of a step, from the bytes of each of its copies."""
    large = [size for size in to_host if size > _ONE_NUMBER]
    return Counts(len(to_device), sum(to_device), len(large), sum(large), waits, warned)


def _waits_among(events: list[dict[str, Any]]) -> int:
    """The number of waits in a trace, without the one with which the profiler ends."""
    waits = [
        event
        for event in events
        if event.get("cat") == "cuda_runtime" and event["name"] in _WAITING_CALLS
    ]
    waits.sort(key=lambda event: event["ts"])
    if waits and waits[-1]["name"] == "cudaDeviceSynchronize":
        waits.pop()
    return len(waits)


def record_programs(paths: list[Path], out: Path) -> None:
    """Run the programs of files on a GPU, and write what they did into a record.

    A program that fails is left out, and told.
    """
    counted: dict[str, CountedProgram] = {}
    for path in paths:
        for name, program in read_programs(path).items():
            try:
                counts = count_on_gpu(program, name)
            except Exception as error:  # whatever a program raises, the others are recorded
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            counted[name] = CountedProgram(program.setup, program.step, counts)
            print(f"{name:36}{counts}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    record = CountRecord(torch.cuda.get_device_name(), str(torch.__version__), counted)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))


# ---- on the virtual device -----------------------------------------------------------------------


def count_on_virtual_device(program: Program, name: str) -> Counts:
    """Run a program on a virtual H200, and count what the ledger tells of a step."""
    with virtual_cuda(gpu="H200") as gpu:
        run_step = prepare_step(program, name)
        warned = count_warnings(run_step)
        begin = len(gpu.ledger)
        run_step()
        records = gpu.ledger[begin:]
    copies = [record for record in records if isinstance(record, Transfer)]
    to_device = [copy.bytes for copy in copies if copy.direction == "to_device"]
    to_host = [copy.bytes for copy in copies if copy.direction == "to_host"]
    waits = sum(isinstance(record, Sync) for record in records)
    return _counts_of(to_device, to_host, waits, warned)


def differences(counted: Counts, expected: Counts) -> Iterator[str]:
    """A few words for each count that is another one on the virtual device."""
    for field in Counts.__struct_fields__:
        here = getattr(counted, field)
        there = getattr(expected, field)
        if here != there:
            yield f"{field} {here}, on the GPU {there}"


def compare_record(path: Path, only: str) -> bool:
    """Run the programs of a record here, print a line for each, and return whether all agree."""
    same = 0
    programs = read_counts(path).programs
    chosen = {name: each for name, each in programs.items() if only in name}
    for name, program in chosen.items():
        found = list(differences(count_on_virtual_device(program, name), program.counts))
        same += not found
        print(f"{name:36}{'; '.join(found) or 'the same'}", flush=True)
        gc.collect()
    print(f"{same} of {len(chosen)} programs wait and copy as on the GPU")
    return same == len(chosen)


def main() -> None:
    """Record or compare, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run programs on the GPU of this machine")
    record.add_argument("out", type=Path)
    record.add_argument("programs", nargs="*", type=Path, default=PROGRAMS)
    compare = commands.add_parser("compare", help="run the programs of a record here")
    compare.add_argument("record", nargs="?", type=Path, default=RECORD)
    compare.add_argument("--only", default="", help="only programs with this in their name")
    compare.add_argument("--zeros", action="store_true", help="products give zeros, for speed")
    asked = parser.parse_args()
    if asked.command == "record":
        record_programs(asked.programs, asked.out)
        return
    with without_arithmetic() if asked.zeros else contextlib.nullcontext():
        if not compare_record(asked.record, asked.only):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
