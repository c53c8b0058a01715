"""How well modelled times agree with the times of a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from virtual_cuda.clock.lanes import Times
from virtual_cuda.fitting.records import Program


class Agreement(msgspec.Struct, frozen=True):
    """How well a model fits a record.

    `wall` and `kernel` are factors of error, `rank` is the correlation of ranks.
    """

    programs: int
    wall: tuple[float, float]  # median and 90th percentile
    kernel: tuple[float, float]
    rank: float
    counted: float  # share of the programs whose number of kernels is within 20 %


class _Pair(NamedTuple):
    """The seconds of one program."""

    modelled: float
    recorded: float


def agreement_of(programs: Mapping[str, Program], modelled: Mapping[str, Times]) -> Agreement:
    """The agreement of the modelled times with the recorded ones, by the names of programs.

    Each program has modelled times.
    """
    walls = []
    kernels = []
    well_counted = 0
    for name, program in programs.items():
        times = modelled[name]
        walls.append(_Pair(times.end, program.wall_s))
        if program.kernel_s:
            kernels.append(_Pair(times.kernel_seconds, program.kernel_s))
        if abs(times.kernels - program.kernels) <= 0.2 * program.kernels:
            well_counted += 1
    counted = well_counted / max(len(programs), 1)
    return Agreement(
        len(walls), _errors_of(walls), _errors_of(kernels), _rank_correlation(walls), counted
    )


def _errors_of(pairs: Sequence[_Pair]) -> tuple[float, float]:
    """The median and the 90th percentile of the factors of error; 1 without any pairs.

    A factor is at least 1: twice as long and half as long are both 2. Raises ZeroDivisionError for
    a recorded time of 0.
    """
    if not pairs:
        return 1.0, 1.0
    factors = []
    for modelled, recorded in pairs:
        factor = math.inf
        if modelled > 0:
            factor = max(modelled / recorded, recorded / modelled)
        factors.append(factor)
    return median(factors), float(np.percentile(factors, 90))


def _rank_correlation(pairs: Sequence[_Pair]) -> float:
    """The correlation of the ranks of modelled and recorded times; 1 for fewer than two."""
    if len(pairs) < 2:
        return 1.0
    modelled = [pair.modelled for pair in pairs]
    recorded = [pair.recorded for pair in pairs]
    ranks = np.array([_ranks_of(modelled), _ranks_of(recorded)], dtype=float)
    return float(np.corrcoef(ranks)[0, 1])


def _ranks_of(numbers: Sequence[float]) -> np.ndarray:
    """The place of each number when they are sorted."""
    return np.argsort(np.argsort(numbers))
