"""The kernels of large models take about as long as on an H200.

These models are not fitted. `kernel_s` of their record is without the ranges of optimizers' steps.
"""

from __future__ import annotations

import statistics

from virtual_cuda import Times, gpu_named
from virtual_cuda.fitting.figures import modelled_times
from virtual_cuda.fitting.records import read_record

from tests.virtual_cuda.clock.__main__ import LARGE, stored

MEDIAN = 1.10  # factors of error
NINE_IN_TEN = 1.3


def seconds_of_kernels(times: Times) -> float:
    """The modelled time of all kernels, without the ranges of optimizers' steps."""
    return times.kernel_seconds - sum(times.steps)


def factors_of_large_models() -> dict[str, float]:
    """How many times as long as recorded the kernels of each model take."""
    gpu = gpu_named("H200")
    runs = stored(LARGE)
    factors = {}
    for name, program in read_record(LARGE).programs.items():
        times = modelled_times(runs[name], gpu)
        factors[name] = seconds_of_kernels(times) / program.kernel_s
    return factors


def test_the_kernels_of_large_models_take_as_long_as_on_the_gpu() -> None:
    errors = sorted(max(factor, 1 / factor) for factor in factors_of_large_models().values())
    assert statistics.median(errors) < MEDIAN
    assert errors[int(0.9 * len(errors)) - 1] < NINE_IN_TEN


if __name__ == "__main__":
    for name, factor in factors_of_large_models().items():
        print(f"{name:36} {factor:.2f}")
