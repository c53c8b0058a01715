"""``python -m tests.virtual_cuda.clock``: the modelled clock against what a real GPU took, by
family of programs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import lzma
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from virtual_cuda import Gpu, Times, gpu_named
from virtual_cuda.errors import VirtualCudaError
from virtual_cuda.fitting.agreement import Agreement, agreement_of
from virtual_cuda.fitting.figures import fit_gpu, modelled_times
from virtual_cuda.fitting.program_runs import ProgramRun, run_programs
from virtual_cuda.fitting.records import (
    USUAL_RECORD,
    ClockRecord,
    Program,
    read_record,
    read_records,
)
from virtual_cuda.ledger import rows

HERE = Path(__file__).parent
RECORD = USUAL_RECORD
STUDENTS, AGAIN = (
    HERE / "h200-students.json",
    HERE / "h200-again.json",
)  # the same programs, once and three times more
MODELS = HERE / "h200-models.json"  # whole models
WHOLE = HERE / "h200-whole.json"  # more of them, on a slow host: of these, only kernels are fitted
OPERATORS = HERE / "h200-operators.json"  # single ones, of the sizes of large models: likewise
LATER = HERE / "h200-later.json"  # whole programs of other kinds
# The figures are fitted to these.
RECORDS = (RECORD, HERE / "h200-more.json", STUDENTS, AGAIN, MODELS, WHOLE, OPERATORS, LATER)
LARGE = HERE / "h200-large.json"  # large models, which are not fitted
MIXES = HERE / "h200-mixes.json"  # and not to this one
PAIRS = HERE / "h200-pairs.json"  # nor to these: of each pair of programs, one is faster
STORED = (*(path for path in RECORDS if path != AGAIN), MIXES, PAIRS, LARGE)
WITHOUT_VALUES = (OPERATORS, LARGE)  # whose tensors are too large to compute with
PINNED = HERE / "agreement.json"
LEDGERS = (
    HERE / "ledgers.xz"
)  # what the steps of all programs write: by the name of the record and of the program


def modelled(ran: dict[str, ProgramRun], gpu: Gpu) -> dict[str, Times]:
    """The modelled times of the step of each program."""
    return {name: modelled_times(run, gpu) for name, run in ran.items()}


@functools.cache
def _ledgers() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = msgspec.msgpack.decode(lzma.decompress(LEDGERS.read_bytes()))
    return found | {AGAIN.name: found[STUDENTS.name]}


def _rows(first: int, before: list[Any], step: list[Any]) -> list[Any]:
    cached = [
        0,
        "aten.empty.memory_format",
        "cuda:0",
        0,
        None,
        1,
        1 << 50,
        None,
    ]  # all memory that a step needs
    every = [*before, *[cached] * (first - len(before)), *step]
    return [_row_of(kind, *(_plain(value) for value in fields)) for kind, *fields in every]


# How `ledgers.xz` numbers the kinds of rows.
KINDS = (
    rows.OperationRow,
    rows.TransferRow,
    rows.SyncRow,
    rows.ForwardRow,
    rows.BackwardRow,
    rows.StepRow,
    rows.ScalerRow,
    rows.AllocationRow,
    rows.EndRow,
    rows.StreamRow,
    rows.CollectiveRow,
)


def _row_of(kind: int, *fields: Any) -> Any:
    row = KINDS[kind]
    return row(0.0, None, None, *fields) if issubclass(row, rows.SiteRow) else row(0.0, *fields)


def _fields_of(row: Any) -> tuple[Any, ...]:
    """The number of its kind, and its fields without time and line."""
    fields = msgspec.structs.astuple(row)[3 if isinstance(row, rows.SiteRow) else 1 :]
    return KINDS.index(type(row)), *fields


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list) else value


@functools.cache
def stored(record: Path) -> dict[str, ProgramRun]:
    """The rows of the programs of a record as they were stored: a clock needs nothing else."""
    found = {}
    for name, (first, before, step) in _ledgers()[record.name].items():
        found[name] = ProgramRun(_rows(first, before, step), first)
    return found


def store() -> None:
    """Run the programs of all records and keep what their steps write into the ledger."""
    found = {}
    for path in STORED:
        programs = read_record(path).programs
        ran = run_programs(programs, with_values=path not in WITHOUT_VALUES)
        found[path.name] = {name: _kept(*run) for name, run in ran.items()}
    LEDGERS.write_bytes(lzma.compress(msgspec.msgpack.encode(found, enc_hook=str), preset=9))


def _kept(written: list[Any], first: int) -> tuple[int, list[Any], list[Any]]:
    streams = [row for row in written[:first] if isinstance(row, rows.StreamRow)][-1:]
    return first, list(map(_fields_of, streams)), list(map(_fields_of, written[first:]))


def recordings() -> list[dict[str, float]]:
    """The wall times of the programs that were recorded four times."""
    first, again = (json.loads(path.read_bytes())["programs"] for path in (STUDENTS, AGAIN))
    return [
        {name: row["wall_s"] for name, row in first.items()},
        *({name: row["walls_s"][n] for name, row in again.items()} for n in range(3)),
    ]


def middle() -> dict[str, Program]:
    """The programs that were recorded four times, with the medians of their wall times."""
    walls = recordings()
    return {
        name: msgspec.structs.replace(
            program, wall_s=statistics.median(each[name] for each in walls)
        )
        for name, program in read_record(STUDENTS).programs.items()
    }


def noise() -> Iterator[tuple[str, Agreement]]:
    """How well two recordings of the same programs agree."""
    programs = read_record(STUDENTS).programs
    for (a, one), (b, other) in itertools.combinations(enumerate(recordings(), 1), 2):
        first = {
            name: msgspec.structs.replace(p, wall_s=one[name], kernel_s=0.0)
            for name, p in programs.items()
        }
        second = {name: Times("", [], 0.0, seconds) for name, seconds in other.items()}
        yield f"recording {a} and {b}", agreement_of(first, second)


def by_family(programs: dict[str, Program]) -> dict[str, dict[str, Program]]:
    """The programs, by what stands before the slash of their names."""
    families: defaultdict[str, dict[str, Program]] = defaultdict(dict)
    for name, program in programs.items():
        families[name.partition("/")[0]][name] = program
    return dict(families)


def held_out(
    record: ClockRecord,
    ran: dict[str, ProgramRun],
    base: Gpu,
    folds: int,
    weights: dict[str, float],
    seed: int = 0,
) -> dict[str, Times]:
    """The times of each program by a model that was fitted without it: the programs are dealt out
    at random.
    """
    found: dict[str, Times] = {}
    blank = msgspec.structs.replace(
        base, host={}, kernels={k: v for k, v in base.kernels.items() if k in _KEPT}
    )
    sources = sorted({(program.setup, program.step) for program in record.programs.values()})
    random.Random(seed).shuffle(sources)
    for fold in range(folds):
        left_out = set(sources[fold::folds])  # with all of their recordings
        out = {
            name
            for name, program in record.programs.items()
            if (program.setup, program.step) in left_out
        }
        known = {name: program for name, program in record.programs.items() if name not in out}
        gpu = fit_gpu(msgspec.structs.replace(record, programs=known), ran, blank, weights)
        gpu = msgspec.structs.replace(
            gpu, copies=base.copies
        )  # one program for each size: none would be left
        found |= modelled({name: ran[name] for name in out}, gpu)
    return found


_KEPT = ("pointwise", "copy on the device", "half attention")  # what a fit may find no program for


def _every(paths: list[Path]) -> dict[str, ProgramRun]:
    """The stored rows of several records, by the names `read_records` gives to their programs."""
    several = len(paths) > 1
    return {
        f"{name} ({place})" if several else name: ran
        for place, path in enumerate(paths, 1)
        for name, ran in stored(path).items()
    }


def row_of(name: str, reached: Agreement) -> list[str]:
    factors = (f"{factor:.2f}" for factor in (*reached.wall, *reached.kernel))
    return [name, str(reached.programs), *factors, f"{reached.rank:.3f}", f"{reached.counted:.0%}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.virtual_cuda.clock", description=__doc__)
    parser.add_argument(
        "--record",
        type=Path,
        action="append",
        help="times of another GPU, or of other programs; may be repeated",
    )
    parser.add_argument("--gpu", default="H200", help="the model to compare with")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="programs whose names contain this text"
    )
    parser.add_argument("--list", action="store_true", help="also list each program")
    parser.add_argument(
        "--held-out", type=int, metavar="N", help="also fit without one in N programs at a time"
    )
    parser.add_argument(
        "--stored", action="store_true", help="read ledgers.xz instead of running the programs"
    )
    parser.add_argument(
        "--store", action="store_true", help="run the programs of all records and write ledgers.xz"
    )
    parser.add_argument(
        "--noise", action="store_true", help="compare recordings of the same programs instead"
    )
    parser.add_argument(
        "--pin", action="store_true", help="write what is reached to agreement.json"
    )
    options = parser.parse_args()
    try:
        gpu = gpu_named(options.gpu)
        record, weights = read_records(options.record or [RECORD])
    except VirtualCudaError as error:
        parser.error(str(error))
    if options.store:
        store()
    console = Console(highlight=False)
    table = Table(
        title=f"{gpu.name}, modelled, against {record.gpu}: factors of error", title_justify="left"
    )
    heads = (
        "family",
        "programs",
        "wall median",
        "90th",
        "kernel median",
        "90th",
        "rank",
        "kernels within 20 %",
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "family" else "right")
    if options.noise:
        for pair, found in noise():
            table.add_row(
                *(
                    cell if place in (0, 1, 2, 3, 6) else ""
                    for place, cell in enumerate(row_of(pair, found))
                )
            )
        table.title = "recordings of the same programs: factors between them"
        console.print(table)
        return 0
    programs = {name: program for name, program in record.programs.items() if options.only in name}
    record = msgspec.structs.replace(record, programs=programs)
    ran = _every(options.record or [RECORD]) if options.stored else run_programs(programs)
    times = modelled({name: ran[name] for name in programs}, gpu)
    for family, members in by_family(programs).items():
        table.add_row(*row_of(family, agreement_of(members, times)))
    table.add_row(*row_of("all", agreement_of(programs, times)), style="bold")
    if options.held_out:
        left_out = held_out(record, ran, gpu, options.held_out, weights)
        for place, path in enumerate(options.record or [RECORD], 1):
            ending = f" ({place})" if len(options.record or [RECORD]) > 1 else ""
            of_record = {name: each for name, each in programs.items() if name.endswith(ending)}
            row = row_of(f"{path.stem}, held out", agreement_of(of_record, left_out))
            table.add_row(*row, style="bold")
    console.print(table)
    if options.list:
        for name, program in sorted(
            programs.items(), key=lambda pair: times[pair[0]].end / pair[1].wall_s
        ):
            took = times[name]
            print(
                f"{name}: wall {took.end * 1e6:.0f} µs modelled, {program.wall_s * 1e6:.0f} "
                "recorded; kernels "
                f"{took.kernels}, {program.kernels}; {took.kernel_seconds * 1e6:.0f} µs, "
                f"{program.kernel_s * 1e6:.0f}"
            )
    if options.pin:
        pinned = json.loads(PINNED.read_text(encoding="utf-8"))
        pinned[(options.record or [RECORD])[0].name] = msgspec.to_builtins(
            agreement_of(programs, times)
        )
        PINNED.write_text(json.dumps(pinned, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
