"""Products of matrices and vectors, and distances, which are made of them.

The depth of a product is the dimension that is added up: k of an m × k and a k × n matrix.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from virtual_cuda.clock.kernels import (
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    Shape,
    ceil_div,
    item_size_of,
    kernel_rule,
)

_SHORTEST: Final = 128  # the least depth of a part when a product is split along it
_FREE: Final = 2  # tiles are doubled by splits while so many times more would fit
# Elements of the result for each one of the depth: with fewer, there are not enough tiles.
_DEEP: Final = 128
_FEW_ROWS: Final = 16
_MISALIGNED: Final = 6  # times as long: tensor cores without their fast copies


class MatrixSizes(NamedTuple):
    """The sizes of `batch` products of an m × k with a k × n matrix."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def has_vector(self) -> bool:
        """True if a matrix has one row or one column, so that nothing is used twice."""
        return min(self.m, self.n) == 1

    @property
    def result_elements(self) -> int:
        """Elements of the results of all products."""
        return self.batch * self.m * self.n

    @property
    def elements(self) -> int:
        """Elements of both matrices and the result, of all products."""
        left = self.batch * self.m * self.k
        right = self.batch * self.k * self.n
        return left + right + self.result_elements


class _Tile(NamedTuple):
    """A part of the result of a product that one block makes."""

    rows: int
    columns: int
    efficiency: float

    @property
    def elements(self) -> int:
        """Elements of the result in a tile."""
        return self.rows * self.columns


_TENSOR_CORE_TILES: Final = (
    _Tile(128, 256, 1.0),
    _Tile(128, 128, 0.9),
    _Tile(128, 64, 0.8),
    _Tile(64, 64, 0.7),
)
_PLAIN_TILES: Final = (_Tile(64, 64, 1.0),)


class _Tiling(NamedTuple):
    """How a product is cut into tiles, and what that costs."""

    splits: int  # parts of the depth, which are added up afterwards
    flops: float  # what whole waves compute; a wave is one tile for each multiprocessor


def product_unit(dtype: str, chip: Chip, tf32: bool) -> str:
    """The unit of `Chip.flops` that computes products of this dtype."""
    if dtype == "float16":
        return "float16"
    if dtype == "bfloat16":
        return "float16" if chip.bfloat16 else "float32"
    if tf32 and dtype == "float32" and "tf32" in chip.flops:
        return "tf32"
    return dtype


def product_kernels(sizes: MatrixSizes, dtype: str, chip: Chip, tf32: bool = False) -> list[Kernel]:
    """The kernels of matrix products: one multiplies, and another one may add up parts.

    The depth of a product in single precision may be split into parts. `tf32` says whether tensor
    cores may be used for float32.
    """
    multiplication = multiplication_kernel(sizes, dtype, chip, tf32)
    unit = product_unit(dtype, chip, tf32)
    if sizes.has_vector or unit != "float32":
        return [multiplication]
    tiling = _fastest_tiling(sizes, unit, chip)
    if tiling.splits == 1 and not _is_small(sizes, chip):
        return [multiplication]
    parts_size = sizes.result_elements * item_size_of(dtype) * tiling.splits
    addition = Kernel("split product", parts_size)
    return [multiplication, addition]


def multiplication_kernel(
    sizes: MatrixSizes, dtype: str, chip: Chip, tf32: bool = False, may_split: bool = True
) -> Kernel:
    """The kernel of matrix products that multiplies.

    Tiles of the result are made in waves over the multiprocessors. Where the result has one row or
    one column, the other matrix is only read.
    """
    moved = sizes.elements * item_size_of(dtype)
    if sizes.has_vector:
        return Kernel("vector product", moved)
    unit = product_unit(dtype, chip, tf32)
    tiling = _fastest_tiling(sizes, unit, chip, may_split)
    # The memory may be slower than the arithmetic.
    flops_meanwhile = moved * chip.flops_per_second(unit) / chip.bandwidth
    flops = max(tiling.flops, flops_meanwhile)
    kind = "half product" if unit == "float16" else "product"
    return Kernel(kind, flops=flops, unit=unit)


def flops_of_waves(sizes: MatrixSizes, unit: str, chip: Chip, may_split: bool = True) -> float:
    """The FLOPs of matrix products in whole waves of whole tiles."""
    return _fastest_tiling(sizes, unit, chip, may_split).flops


def _is_small(sizes: MatrixSizes, chip: Chip) -> bool:
    """True for small products, of which cuBLAS adds up parts in another kernel.

    It does so in single precision, unless there are few rows.
    """
    if sizes.batch != 1:
        return False
    tiles = ceil_div(sizes.m, 64) * ceil_div(sizes.n, 64)
    if tiles * 2 > chip.sms:
        return False
    has_few_rows = min(sizes.m, sizes.k) <= 16
    is_wide = max(sizes.n, sizes.k) >= 4096
    return not has_few_rows and not is_wide


def _fastest_tiling(sizes: MatrixSizes, unit: str, chip: Chip, may_split: bool = True) -> _Tiling:
    """The tiling with the fewest FLOPs; the first of these where there are several."""
    tiles = _TENSOR_CORE_TILES if unit in ("float16", "tf32") else _PLAIN_TILES
    tilings = [_tiling_by(tile, sizes, chip, may_split) for tile in tiles]
    return min(tilings, key=lambda tiling: tiling.flops)


def _tiling_by(tile: _Tile, sizes: MatrixSizes, chip: Chip, may_split: bool) -> _Tiling:
    """The tiling of a product by tiles of this size, with the FLOPs that whole waves take.

    The depth is split only if it may be.
    """
    tile_rows = ceil_div(sizes.m, tile.rows)
    tile_columns = ceil_div(sizes.n, tile.columns)
    tiles = sizes.batch * tile_rows * tile_columns
    splits = _splits_of_depth(tiles, sizes.k, chip) if may_split else 1
    depth = ceil_div(sizes.k, splits)
    waves = ceil_div(tiles * splits, chip.sms)
    flops_of_a_tile = 2 * tile.elements * depth
    flops = waves * chip.sms * flops_of_a_tile / tile.efficiency
    if waves < 3:  # too few tiles to hide that they wait for memory
        flops *= 1.2
    return _Tiling(splits, flops)


def _splits_of_depth(tiles: int, depth: int, chip: Chip) -> int:
    """Into how many parts the depth is split: few tiles are, so that more multiprocessors work."""
    splits = 1
    while tiles * splits * _FREE <= chip.sms:
        if depth // (splits * 2) < _SHORTEST:
            break
        splits *= 2
    return splits


@kernel_rule(
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "linear", "matmul"
)
def _product_kernels_of_call(call: KernelCall, chip: Chip) -> Kernels:
    """The product of the last two inputs; with a bias to add, the depth is not split.

    Raises IndexError for a call with fewer than two shapes.
    """
    left = call.inputs[-2]
    right = call.inputs[-1]
    sizes = _sizes_of_product(left, right)
    if call.name == "dot":
        yield Kernel("reduction", 2 * sizes.k * call.item_size)
        yield Kernel("reduction", 0)
        return
    kernels = product_kernels(sizes, call.dtype, chip, chip.tf32)
    if call.is_misaligned:
        kernels = [each._replace(flops=each.flops * _MISALIGNED) for each in kernels]
    # Only `addmm`, with its bias, may have other kernels than a plain product.
    is_plain = call.name != "addmm" or len(kernels) == 1
    is_tiny = sizes.m < 64 and sizes.n // 8 < 64
    if is_plain or is_tiny:
        yield from kernels
        return
    is_deep = sizes.k * _DEEP >= sizes.result_elements
    if is_deep:
        yield from _linear_layer_kernels(sizes, call.item_size, chip)
    else:
        yield multiplication_kernel(sizes, call.dtype, chip, chip.tf32, may_split=False)


@kernel_rule("_grouped_mm")
def _group_product_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Products of groups of rows, of columns or of the depth, which are taken to be equally large.

    Raises IndexError for a call with fewer than two shapes.
    """
    left = call.inputs[0]
    right = call.inputs[1]
    sizes = _sizes_of_product(left[-2:], right[-2:])
    if len(left) == 3:
        groups = left[0]
        if len(right) == 2:
            sizes = sizes._replace(n=ceil_div(sizes.n, groups))
    elif len(right) == 3:
        groups = right[0]
        sizes = sizes._replace(m=ceil_div(sizes.m, groups))
    else:
        groups = call.inputs[2][0]
        sizes = sizes._replace(k=ceil_div(sizes.k, groups))
    yield multiplication_kernel(sizes._replace(batch=groups), call.dtype, chip, chip.tf32)


def _sizes_of_product(left: Shape, right: Shape) -> MatrixSizes:
    """The sizes of the product of two tensors; a vector is a matrix with one row or column."""
    m = n = k = 1
    if left:
        k = left[-1]
    if len(left) > 1:
        m = left[-2]
    if len(right) > 1:
        n = right[-1]
    return MatrixSizes(m, n, k, math.prod(left[:-2]))


def _linear_layer_kernels(sizes: MatrixSizes, item_size: int, chip: Chip) -> Kernels:
    """A deep product with a bias: the depth is not split."""
    flops = chip.sms * 32 * 64 * sizes.k * 2.0
    product = Kernel("linear product", flops=flops)
    result_size = sizes.result_elements * item_size
    if sizes.m < 64:
        yield product
        if sizes.m > _FEW_ROWS:  # more rows than one kernel takes along: parts are added up
            yield Kernel("split product", result_size)
        return
    # The result is cleared before, and the bias added behind.
    yield Kernel("pointwise")
    yield product
    yield Kernel("pointwise", 2 * result_size)


@kernel_rule("_cdist_forward", "_euclidean_dist")
def _distance_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """By a product: squares, sums and ones beside each side, then a root.

    Raises IndexError for a call with fewer than two shapes.
    """
    for index in (0, 1):
        size = call.input_bytes(index)
        yield Kernel("pointwise", 2 * size)
        yield Kernel("reduction", size)
        yield Kernel("pointwise", 0)
        yield Kernel("pointwise", 2 * size)
    yield Kernel("pointwise", 2 * call.input_bytes(0))
    # The product of both, with the two columns beside them.
    left = call.inputs[0]
    right = call.inputs[1]
    sizes = MatrixSizes(
        m=left[-2],
        n=right[-2],
        k=left[-1] + 2,
        batch=math.prod(left[:-2]),
    )
    yield multiplication_kernel(sizes, call.dtype, chip, chip.tf32)
    for _ in range(2):
        yield Kernel("pointwise", 2 * call.out_bytes)
