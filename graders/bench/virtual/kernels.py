"""Which function computes what CUDA computes? The CPU kernel, but for the operators whose results differ by definition."""

from __future__ import annotations

from typing import Any, Final

import torch

from graders.bench.virtual import bindings, integers, syncs

aten: Final = torch.ops.aten
NOT_EMULATED: Final = object()
# Operators whose CPU kernel gives other values than CUDA's: {overload: function with the same arguments}.
REPLACED: Final[dict[Any, Any]] = {}


def call_of(func: Any) -> Any:
    """The callable that runs `func` on inner tensors."""
    return REPLACED.get(func) or bindings.call_of(func)


def replaces(*overloads: Any) -> Any:
    """Register a kernel of ours for these operators."""

    def register(function: Any) -> Any:
        for overload in overloads:
            REPLACED[overload] = function
        return function

    return register


# ---- kernels that wait before they can refuse --------------------------------------------------------------------------
# `syncs.of` writes waits down after an operator; these operators may raise, and have waited by then.


@replaces(aten._linalg_check_errors.default)
def _check_errors(info: Any, api_name: str, *, is_matrix: bool) -> Any:
    syncs.note("linalg")
    return aten._linalg_check_errors.default(info, api_name, is_matrix=is_matrix)


@replaces(aten.cholesky.default)
def _cholesky(self: Any, upper: bool = False) -> Any:
    if self.numel():
        syncs.note("linalg")
    return aten.cholesky.default(self, upper)


@replaces(aten.bincount.default)
def _bincount(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    """The smallest value is fetched to refuse negative ones (a byte cannot be), the largest to know the size."""
    if self.numel() == 0 or self.dim() != 1:
        return aten.bincount.default(self, weights, minlength)
    if self.dtype is not torch.uint8:
        syncs.note("bincount")
    out = aten.bincount.default(self, weights, minlength)
    syncs.note("bincount")
    return out


# ---- values ------------------------------------------------------------------------------------------------------------


@replaces(aten.linalg_cholesky_ex.default)
def _cholesky_ex(self: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Where the factorization stops, CUDA has already taken the square root of what is negative."""
    factor, info = aten.linalg_cholesky_ex.default(self, upper=upper, check_errors=check_errors)
    failed = info > 0
    if failed.any():
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        order = torch.arange(1, diagonal.shape[-1] + 1)
        diagonal.masked_fill_(failed.unsqueeze(-1) & (order >= info.unsqueeze(-1)) & (diagonal <= 0), float("nan"))
    return factor, info


@replaces(aten.grid_sampler_2d.default)
def _grid_sampler_2d(grid_input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """A place that is no number lies outside the picture on CUDA; on the CPU it makes the pixel no number."""
    if not torch.isfinite(grid).all():
        grid = torch.where(torch.isfinite(grid), grid, -1e6)
    return aten.grid_sampler_2d.default(grid_input, grid, interpolation_mode, padding_mode, align_corners)


REPLACED.update(integers.KERNELS)


# ---- dtypes the CPU has no kernel for ------------------------------------------------------------------------------------


def emulate(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The result CUDA gives where the CPU has no kernel for a dtype; NOT_EMULATED if CUDA has none either."""
    return NOT_EMULATED
