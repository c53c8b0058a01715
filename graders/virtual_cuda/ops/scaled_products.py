"""Products of float8 matrices with scales, `torch.nn.functional.scaled_mm`.

The CPU has some of CUDA's kinds of scales, and in older releases none. Inner tensors are the CPU
tensors inside the device's.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from virtual_cuda.ops.registry import operator

# torch's numbers of the kinds of scales.
_OF_TENSOR: Final = 0
_OF_ROW: Final = 1
_OF_PART_OF_ROW: Final = 4  # one for each 128 elements of a row
_OF_BLOCK: Final = 5  # one for 128 rows and 128 columns
_BLOCK: Final = 128


def _count_of_blocks(length: int) -> int:
    """How many blocks there are along a dimension, the last of them perhaps smaller."""
    return -(-length // _BLOCK)


def _factors_of_rows(matrix: torch.Tensor, scale: torch.Tensor, kind: int) -> torch.Tensor | None:
    """The scale of each element of a matrix, or what broadcasts to that.

    None for a kind or a shape of scales that CUDA does not take here.
    """
    rows, columns = matrix.shape
    parts = _count_of_blocks(columns)
    if kind == _OF_TENSOR and scale.numel() == 1:
        return scale.reshape(1, 1)
    if kind == _OF_ROW and scale.numel() == rows:
        return scale.reshape(rows, 1)
    if kind == _OF_PART_OF_ROW and scale.shape == (rows, parts):
        factors = scale
    elif kind == _OF_BLOCK and scale.dim() == 2 and scale.shape[0] >= parts:
        # Scales of a column of blocks lie together, and are padded.
        blocks = scale[:parts].t()
        factors = blocks.repeat_interleave(_BLOCK, 0)[:rows]
    else:
        return None
    if factors.shape[0] != rows:
        return None
    return factors.repeat_interleave(_BLOCK, 1)[:, :columns]


def _multiply_scaled(
    left: torch.Tensor,
    right: torch.Tensor,
    left_scales: list[torch.Tensor],
    left_kinds: list[int],
    left_swizzles: list[int],
    right_scales: list[torch.Tensor],
    right_kinds: list[int],
    right_swizzles: list[int],
    bias: torch.Tensor | None,
    dtype: torch.dtype | None,
    *rest: Any,
) -> torch.Tensor:
    """The product of two scaled matrices, on inner tensors.

    Raises what the CPU raises for scales that CUDA does not take, and for matrices that do not fit.
    """
    columns = right.t()
    left_factors = None
    right_factors = None
    if len(left_scales) == len(right_scales) == 1 and left.shape[1] == right.shape[0]:
        left_factors = _factors_of_rows(left, left_scales[0], left_kinds[0])
        right_factors = _factors_of_rows(columns, right_scales[0], right_kinds[0])
    if left_factors is None or right_factors is None:
        args = (left, right, left_scales, left_kinds, left_swizzles)
        more = (right_scales, right_kinds, right_swizzles, bias, dtype, *rest)
        refused: torch.Tensor = torch.ops.aten._scaled_mm_v2(*args, *more)
        return refused
    scaled_rows = left.float() * left_factors
    scaled_columns = columns.float() * right_factors
    product = scaled_rows @ scaled_columns.t()
    if bias is not None:
        product += bias
    return product.to(dtype or left.dtype)


operator("_scaled_mm_v2", kernel=_multiply_scaled)
