"""``python -m tests.clock``: the modelled clock against what a real GPU took, by family of programs."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from virtual_cuda import Gpu, Times, gpu_named, times_of
from virtual_cuda.errors import VirtualCudaError
from virtual_cuda.fitting import Agreement, ClockRecord, Program, Ran, agreement, fit, read_records, run_all

HERE = Path(__file__).parent
RECORD = HERE / "h200-times.json"
RECORDS = (RECORD, HERE / "h200-more.json", HERE / "h200-students.json")  # the figures are fitted to all three
PINNED = HERE / "agreement.json"


def modelled(ran: dict[str, Ran], gpu: Gpu) -> dict[str, Times]:
    """The modelled times of the step of each program."""
    return {name: times_of(rows, gpu, first) for name, (rows, first) in ran.items()}


def by_family(programs: dict[str, Program]) -> dict[str, dict[str, Program]]:
    """The programs, by what stands before the slash of their names."""
    families: defaultdict[str, dict[str, Program]] = defaultdict(dict)
    for name, program in programs.items():
        families[name.partition("/")[0]][name] = program
    return dict(families)


def held_out(record: ClockRecord, ran: dict[str, Ran], base: Gpu, folds: int, seed: int = 0) -> dict[str, Times]:
    """The times of each program by a model that was fitted without it: the programs are dealt out at random."""
    found: dict[str, Times] = {}
    blank = msgspec.structs.replace(base, host={}, kernels={k: v for k, v in base.kernels.items() if k in _KEPT})
    names = list(record.programs)
    random.Random(seed).shuffle(names)
    for fold in range(folds):
        out = set(names[fold::folds])
        known = {name: program for name, program in record.programs.items() if name not in out}
        gpu = fit(msgspec.structs.replace(record, programs=known), ran, blank)
        found |= modelled({name: ran[name] for name in out}, gpu)
    return found


_KEPT = ("pointwise", "copy on the device", "half attention")  # what a fit may find no program for


def row_of(name: str, reached: Agreement) -> list[str]:
    figures = (*reached.wall, *reached.kernel, reached.rank)
    return [name, str(reached.programs), *(f"{figure:.2f}" for figure in figures), f"{reached.counted:.0%}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clock", description=__doc__)
    parser.add_argument(
        "--record", type=Path, action="append", help="times of another GPU, or of other programs; may be repeated"
    )
    parser.add_argument("--gpu", default="H200", help="the model to compare with")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose names contain this text")
    parser.add_argument("--list", action="store_true", help="also list each program")
    parser.add_argument("--held-out", type=int, metavar="N", help="also fit without one in N programs at a time")
    parser.add_argument("--pin", action="store_true", help="write what is reached to agreement.json")
    options = parser.parse_args()
    try:
        gpu, (record, _) = gpu_named(options.gpu), read_records(options.record or [RECORD])
    except VirtualCudaError as error:
        parser.error(str(error))
    programs = {name: program for name, program in record.programs.items() if options.only in name}
    record = msgspec.structs.replace(record, programs=programs)
    ran = run_all(programs)
    times = modelled(ran, gpu)
    console = Console(highlight=False)
    table = Table(title=f"{gpu.name}, modelled, against {record.gpu}: factors of error", title_justify="left")
    heads = ("family", "programs", "wall median", "90th", "kernel median", "90th", "rank", "kernels within 20 %")
    for head in heads:
        table.add_column(head, justify="left" if head == "family" else "right")
    for family, members in by_family(programs).items():
        table.add_row(*row_of(family, agreement(members, times)))
    table.add_row(*row_of("all", agreement(programs, times)), style="bold")
    if options.held_out:
        left_out = held_out(record, ran, gpu, options.held_out)
        table.add_row(*row_of("all, held out", agreement(programs, left_out)), style="bold")
    console.print(table)
    if options.list:
        for name, program in sorted(programs.items(), key=lambda pair: times[pair[0]].end / pair[1].wall_s):
            found = times[name]
            print(
                f"{name}: wall {found.end * 1e6:.0f} µs modelled, {program.wall_s * 1e6:.0f} recorded; kernels "
                f"{found.kernels}, {program.kernels}; {found.kernel_seconds * 1e6:.0f} µs, {program.kernel_s * 1e6:.0f}"
            )
    if options.pin:
        pinned = json.loads(PINNED.read_text(encoding="utf-8"))
        pinned[(options.record or [RECORD])[0].name] = msgspec.to_builtins(agreement(programs, times))
        PINNED.write_text(json.dumps(pinned, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
