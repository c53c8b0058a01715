"""Peaks of whole programs are those of an H200.

`python -m tools.peak_memory` shows them all, `python -m tools.estimates` those of large programs.
"""

from __future__ import annotations

import statistics

import msgspec
import pytest
from virtual_cuda.fitting.program_runs import without_arithmetic

from tools.estimates import RECORD as LARGE
from tools.estimates import Record, compare_program
from tools.peak_memory import RECORDS, compare_programs, measure_peaks, read_peaks

PROGRAMS = {name: each for path in RECORDS for name, each in read_peaks(path).programs.items()}
QUICK = ("mlp/small", "vae/mnist", "rl/pendulum_policy", "wave/conv1d")
WORST = 0.05
MEDIAN = 0.01
LARGE_PROGRAMS = {
    name: program
    for name, program in msgspec.json.decode(LARGE.read_bytes(), type=Record).programs.items()
    if program.peak
}
WORST_OF_LARGE = 0.02


@pytest.mark.parametrize("name", QUICK)
def test_the_peak_of_a_quick_program(name: str) -> None:
    assert abs(measure_peaks(PROGRAMS[name], name).error) < WORST


@pytest.mark.slow
@pytest.mark.weekly
def test_the_peaks_of_all_programs() -> None:
    errors = {}
    with without_arithmetic():
        for name, peaks in compare_programs(PROGRAMS):
            errors[name] = peaks.error
    assert {name: error for name, error in errors.items() if abs(error) >= WORST} == {}
    assert statistics.median(abs(error) for error in errors.values()) < MEDIAN


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_PROGRAMS)
def test_a_large_program_is_estimated_without_values(name: str) -> None:
    comparison = compare_program(name, LARGE_PROGRAMS[name])
    assert abs(comparison.peak_error) < WORST_OF_LARGE
    assert comparison.wrong_verdicts == []
