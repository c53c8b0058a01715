"""Sums, means, maxima and the like, running sums, and comparisons of whole tensors."""

from __future__ import annotations

from typing import Final, NamedTuple

from virtual_cuda.clock.kernels import (
    COPY,
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    Shape,
    kernel_rule,
)

# Reductions whose result is of another dtype than what is read.
_OTHER_RESULT: Final = ("argmin", "argmax", "any", "all", "count_nonzero")
# Reductions that tell a place as well, or two figures: loads do not run ahead.
_SLOW_COLUMNS: Final = ("max", "min", "argmax", "argmin", "var", "std")
_ONE_BLOCK: Final = 8192  # elements that one block adds up for one result
_WARP: Final = 32
_WARP_BYTES: Final = 1000  # what memory could move in the time that a warp takes for one result
_COLUMN_THREADS: Final = 128
_MANY_STEPS: Final = 256  # of one thread, from which several blocks share a column
_SHARED_STEPS: Final = 100
_SECONDS_A_STEP: Final = 50e-9  # of a thread that goes down a column


class _Reduction(NamedTuple):
    """What one reduction has to do."""

    name: str  # of the operator
    results: int
    length: int  # elements that make one result
    bytes: float


@kernel_rule(
    *"sum mean argmin argmax max min any all prod amax amin norm linalg_vector_norm".split(),
    *"std var std_mean var_mean aminmax nansum count_nonzero".split(),
)
def reduction_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A kernel that depends on how what is added up lies in memory: side by side, or apart."""
    elements = call.first_elements
    if call.dtype == "bool" and call.name == "sum":  # as integers first
        yield Kernel("pointwise", elements * 9)
    reduction = _reduction_of_call(call)
    # How it is done depends on the dimensions that the result has.
    kept = _without_trailing_ones(call.out or ())
    keeps_first_dimensions = call.first_shape[: len(kept)] == kept
    if call.dim is None and keeps_first_dimensions:
        yield _reduction_of_neighbours(reduction, kept)
    elif _keeps_channels(call.first_shape, kept):
        yield Kernel("channel reduction", reduction.bytes)
    else:
        yield _reduction_of_columns(reduction)


def _reduction_of_call(call: KernelCall) -> _Reduction:
    """What a call has to add up, and how many bytes that reads and writes."""
    elements = call.first_elements
    results = max(call.out_elements, 1)
    item_size = 4 if call.name in _OTHER_RESULT else call.item_size
    return _Reduction(
        name=call.name,
        results=results,
        length=max(elements // results, 1),
        bytes=elements * item_size + call.bytes,
    )


def _keeps_channels(shape: Shape, kept: Shape) -> bool:
    """True if of three dimensions or more only the second one is left."""
    return len(shape) > 2 and shape[1:2] == kept


def _without_trailing_ones(shape: Shape) -> Shape:
    """The shape without the dimensions of length 1 at its end."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _reduction_of_neighbours(reduction: _Reduction, kept: Shape) -> Kernel:
    """The kernel that adds up what lies side by side in memory.

    Several blocks share a long result; a warp or less makes a short one. `kept` are the dimensions
    of the result.
    """
    if reduction.length > _ONE_BLOCK:
        return Kernel("shared reduction", reduction.bytes)
    largest_power_of_two = 1 << (reduction.length.bit_length() - 1)
    lanes = min(largest_power_of_two, _WARP)
    size = reduction.bytes + _WARP_BYTES * reduction.results * lanes / _WARP
    if _finds_place(reduction.name, kept):
        return Kernel("arg reduction", size)
    return Kernel("reduction", size)


def _finds_place(name: str, kept: Shape) -> bool:
    """True if a reduction also tells where in the tensor its result was found."""
    if name in ("max", "min"):
        return bool(kept)
    return name.startswith("arg")


def _reduction_of_columns(reduction: _Reduction) -> Kernel:
    """The kernel that adds up what lies apart in memory.

    A thread adds up one element after the other; several blocks share a long column.
    """
    lanes = min(reduction.results // 4, _WARP)
    threads = max(_COLUMN_THREADS // max(lanes, 1), 1)
    steps: float = reduction.length / threads
    if steps >= _MANY_STEPS or reduction.length > _ONE_BLOCK:
        steps = _SHARED_STEPS
    slower = 3.5 if reduction.name in _SLOW_COLUMNS else 1.0
    seconds = steps * _SECONDS_A_STEP * slower
    return Kernel("column reduction", reduction.bytes, seconds=seconds)


@kernel_rule("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
def _scan_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Running sums: down a column, row by row, or over all in two kernels."""
    moved = 2 * call.largest_bytes
    if call.dim is not None:  # a thread goes down a column
        yield Kernel("column scan", seconds=call.length_along * 0.15e-6)
    elif len(call.first_shape) > 1:
        yield Kernel("row scan", moved)
    else:
        yield Kernel("scan", 0)
        yield Kernel("scan", moved)


@kernel_rule("allclose", "equal")
def _comparison_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that compare elements, and a copy that tells the host the answer."""
    passes = 13 if call.name == "allclose" else 1
    for _ in range(passes):
        yield Kernel("pointwise", call.bytes_moved)
    yield Kernel("shared reduction", call.largest_elements)
    yield Kernel(COPY)
