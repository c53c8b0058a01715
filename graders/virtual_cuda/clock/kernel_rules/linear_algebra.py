"""Factorisations of matrices, solvers, and Fourier transforms."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from virtual_cuda.clock.kernels import Chip, Kernel, KernelCall, Kernels, kernel_rule


class _ByColumn(NamedTuple):
    """How a factorisation goes, column by column."""

    seconds: float  # for each column, on a GPU like the H200
    columns: float  # that one kernel handles


_FACTORISATIONS: Final = {
    "linalg_inv_ex": _ByColumn(1.9e-6, 14),
    "linalg_lu_factor_ex": _ByColumn(1.4e-6, 30),
    "_linalg_solve_ex": _ByColumn(2.1e-6, 26),
    "linalg_cholesky_ex": _ByColumn(0.34e-6, 100),
    "linalg_qr": _ByColumn(2.8e-6, 8),
    "geqrf": _ByColumn(2.4e-6, 16),
    "_linalg_svd": _ByColumn(16e-6, 0.5),
    "_linalg_eigh": _ByColumn(10.5e-6, 0.5),
    "linalg_eig": _ByColumn(30e-6, 0.5),
    "linalg_lstsq": _ByColumn(5e-6, 8),
    "_linalg_det": _ByColumn(1.4e-6, 30),
    "_linalg_slogdet": _ByColumn(1.4e-6, 30),
    "linalg_pinv": _ByColumn(16e-6, 0.5),
    "triangular_solve": _ByColumn(0.5e-6, 100),
    "linalg_solve_triangular": _ByColumn(0.5e-6, 100),
    "cholesky_solve": _ByColumn(1e-6, 50),
    "linalg_ldl_factor_ex": _ByColumn(1.4e-6, 30),
}
# FLOPs of one multiprocessor in a second.
_H200_FLOPS_OF_ONE: Final = 51e12 / 132
_SHARED_MEMORY: Final = 1 << 14  # elements of a Fourier transform that fit into it


@kernel_rule(*_FACTORISATIONS)
def _factorisation_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that go column by column; matrices of a batch are handled beside each other."""
    factorisation = _FACTORISATIONS[call.name]
    shape = call.first_shape
    columns = 1
    if len(shape) > 1:
        columns = min(shape[-2:])
    # As many matrices at a time as there are multiprocessors.
    batch = math.prod(shape[:-2])
    waves = max(batch / chip.sms, 1)
    # One column after the other is the work of one multiprocessor.
    flops_a_second = chip.flops["float32"]
    slower = _H200_FLOPS_OF_ONE / max(flops_a_second, 1) * chip.sms
    seconds = factorisation.seconds * columns * waves * slower
    # Several launches share it evenly.
    launches = max(round(columns / factorisation.columns), 3)
    for _ in range(launches):
        yield Kernel("factorisation", seconds=seconds / launches)


@kernel_rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fourier_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One pass, or three where it does not fit into shared memory."""
    passes = 3 if call.largest_elements > _SHARED_MEMORY else 1
    for _ in range(passes):
        yield Kernel("pointwise", 2 * call.largest_bytes)
