"""24 whole programs of other kinds, whose steps and peaks of memory are like those of the GPU.

They were recorded after an earlier fit. Now the host's figures are fitted to them, too.
"""

from __future__ import annotations

import statistics

import pytest
from virtual_cuda import gpu_named
from virtual_cuda.fitting.figures import modelled_times
from virtual_cuda.fitting.program_runs import without_arithmetic
from virtual_cuda.fitting.records import read_record

from tests.virtual_cuda.clock.__main__ import LATER, stored
from tools.peak_memory import compare_programs, read_peaks


def test_their_steps_take_about_as_long_as_on_the_gpu() -> None:
    programs = read_record(LATER).programs
    h200 = gpu_named("H200")
    factors = []
    for name, run in stored(LATER).items():
        modelled = modelled_times(run, h200).end
        recorded = programs[name].wall_s
        factors.append(max(modelled / recorded, recorded / modelled))
    assert statistics.median(factors) <= 1.12
    assert max(factors) <= 1.42


@pytest.mark.slow
def test_their_peaks_are_those_of_the_gpu() -> None:
    with without_arithmetic():
        compared = dict(compare_programs(read_peaks(LATER).programs))
    errors = [abs(peaks.error) for peaks in compared.values()]
    assert statistics.median(errors) <= 0.001
    assert max(errors) <= 0.06
