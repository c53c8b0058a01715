"""Records of a GPU's times: programs, and how long the GPU took for each.

`python -m virtual_cuda record OUT.json` makes one on a machine with a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from virtual_cuda.errors import VirtualCudaError

USUAL_RECORD: Final = Path(__file__).parent / "h200-times.json"  # what an H200 took
FEWEST_PROGRAMS: Final = 10  # that ran, in a record
_MOST_WEIGHT: Final = 6.5  # of a program, where the average is 1


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


class WeightedRecord(NamedTuple):
    """The programs of several records, and the weight of each program by its name."""

    record: ClockRecord
    weights: dict[str, float]


def read_records(paths: Sequence[str | Path]) -> WeightedRecord:
    """The programs of several records of one GPU, and the weight of each program.

    Every record counts as much as another, but the programs of a short one not more than so many
    times as much as the average one. With several records, names get the number of theirs. Raises
    BadClockRecord for a bad file, or for two GPUs.
    """
    records = [read_record(path) for path in paths]
    first = records[0]
    for path, record in zip(paths, records, strict=True):
        if record.gpu != first.gpu:
            reason = f"a record of {record.gpu}, the first one is of {first.gpu}"
            raise BadClockRecord(str(path), reason)
    all_programs = sum(len(record.programs) for record in records)
    programs = {}
    weights = {}
    for number, record in enumerate(records, 1):
        weight = all_programs / len(records) / len(record.programs)
        weight = min(weight, _MOST_WEIGHT)
        for name, program in record.programs.items():
            if len(records) > 1:
                unique_name = f"{name} ({number})"
            else:
                unique_name = name
            programs[unique_name] = program
            weights[unique_name] = weight
    return WeightedRecord(msgspec.structs.replace(first, programs=programs), weights)


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
    programs = {name: program for name, program in record.programs.items() if not program.error}
    for name, program in programs.items():
        reason = _what_is_wrong_with(program, name)
        if reason:
            raise BadClockRecord(str(path), f"{name}: {reason}")
    if len(programs) < FEWEST_PROGRAMS:
        reason = f"{len(programs)} programs that ran, at least {FEWEST_PROGRAMS} are needed"
        raise BadClockRecord(str(path), reason)
    return msgspec.structs.replace(record, programs=programs)


def _what_is_wrong_with(program: Program, name: str) -> str:
    """Why a program cannot be used; "" if every figure is a time, and the sources are Python."""
    wrong = []
    for field in Program.__struct_fields__:
        if field.endswith("_s") and not _is_a_time(getattr(program, field)):
            wrong.append(field)
    if wrong or not program.wall_s:
        return f"{', '.join(wrong) or 'wall_s'} is no time"
    try:
        compile(program.setup, name, "exec")
        compile(program.step, name, "exec")
    except SyntaxError as error:
        return str(error)
    return ""


def _is_a_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0
