"""Reading and writing elements by their places, masks, and counting."""

from __future__ import annotations

from typing import Final

from virtual_cuda.clock.kernel_rules.sorting import radix_sort
from virtual_cuda.clock.kernels import (
    COPY,
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    ceil_div,
    item_size_of,
    kernel_rule,
)

_MANY_ELEMENTS: Final = 1 << 20  # of a result: rows are not copied as they lie
_CROWD: Final = 100  # elements that are added to one place, from which they wait for each other
_MANY_INDICES: Final = 3072  # of an embedding, from which they are sorted
_ONE_BLOCK_SORTS: Final = 2048  # indices
_PASSES_OVER_PLACES: Final = 5  # before gradients are added up by their places


# ---- reading -------------------------------------------------------------------------------------


@kernel_rule("embedding", "take")
def _embedding_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Rows are copied as they lie."""
    yield Kernel("gather", 2 * call.out_bytes)


@kernel_rule("gather", "index_select")
def _gather_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Elements are found one by one."""
    yield Kernel("index", 2 * call.out_bytes)


@kernel_rule("index", "_unsafe_index")
def _index_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """By a mask, which is counted first; or by numbers, where whole rows are copied as they lie."""
    size = 2 * call.out_bytes
    if _is_by_mask(call):
        yield from _nonzero_kernels(call, chip)
        yield Kernel("gather", size)
    elif _takes_few_rows(call):
        yield Kernel("gather", size)
    else:
        yield Kernel("index", size)


def _is_by_mask(call: KernelCall) -> bool:
    """True if a mask selects a part of the tensor.

    A mask has the shape of the tensor, or of its first dimensions.
    """
    if len(call.inputs) < 2 or call.out is None:
        return False
    if not call.first_shape:
        return False
    index = call.inputs[1]
    is_like_mask = index == call.first_shape[: len(index)]
    return is_like_mask and call.out_elements != call.first_elements


def _takes_few_rows(call: KernelCall) -> bool:
    """True if numbers select rows, and the result is not large."""
    if len(call.inputs) != 2:
        return False
    source, index = call.inputs
    if len(source) < 2:
        return False
    takes_rows = len(call.out or ()) > len(index)
    return takes_rows and call.out_elements < _MANY_ELEMENTS


@kernel_rule("nonzero", "masked_select")
def _nonzero_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that count what is not zero, tell the host how many, and write the places."""
    elements = call.first_elements
    for _ in range(2):
        yield Kernel("scan", elements)
    yield Kernel(COPY)
    yield Kernel("scan", elements * 8)
    yield Kernel("pointwise", elements * 8)


# ---- writing -------------------------------------------------------------------------------------


@kernel_rule(
    *"index_add index_add_ scatter scatter_add scatter_add_".split(),
    *"index_put_ _index_put_impl_".split(),
)
def _scatter_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A copy, unless it is in place; then a kernel that writes or adds where the index says."""
    is_in_place = call.name.endswith("_")
    if not is_in_place:
        yield Kernel(COPY, 2 * call.bytes)
    # Many elements that are added to the same place wait for each other.
    added = call.input_elements(-1) if call.inputs else 1
    if "_add" in call.name and added > _CROWD * call.first_elements:
        yield Kernel("atomic scatter", seconds=added * 85e-12)
        return
    kind = "row scatter" if call.name.startswith("index_add") else "scatter"
    yield Kernel(kind, 2 * call.largest_bytes)


@kernel_rule("index_put")
def _index_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """How autograd adds up gradients by their places, with a sort: the same place may come twice.

    Raises IndexError for a call with too few shapes.
    """
    yield Kernel(COPY, 2 * call.bytes)
    places = call.input_elements(1)
    place_bytes = places * item_size_of("int64")
    # Negative places become positive ones, places become offsets, and are numbered.
    for _ in range(_PASSES_OVER_PLACES):
        yield Kernel("pointwise", 2 * place_bytes)
    largest = call.first_elements
    bytes_that_differ = ceil_div(largest.bit_length(), 8)
    yield from radix_sort(places, bytes_that_differ)
    yield Kernel("index gradient", 2 * call.input_bytes(-1))


@kernel_rule("embedding_dense_backward")
def _embedding_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Many indices are sorted first, so that rows of the same index are added up together.

    Raises IndexError for a call without inputs.
    """
    indices = call.input_elements(1) if len(call.inputs) > 1 else 1
    yield Kernel("pointwise", call.bytes)
    if indices > _MANY_INDICES:
        yield from _sorted_gradient_kernels(indices, call.input_bytes(0))
        return
    # Each block looks through all indices.
    yield Kernel("embedding gradient", 2 * call.input_bytes(0), seconds=indices * 25e-9)


@kernel_rule("_embedding_bag_backward", "_embedding_bag_dense_backward")
def _embedding_bag_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gradient is cleared; indices are sorted, however few they are.

    Raises IndexError for a call with too few shapes.
    """
    indices = call.input_elements(1)
    yield Kernel("pointwise", call.bytes)
    yield from _sorted_gradient_kernels(indices, call.input_bytes(0))


def _sorted_gradient_kernels(indices: int, gradient_bytes: int) -> Kernels:
    """Kernels that sort indices, so that rows of the same index are added up together."""
    if indices <= _ONE_BLOCK_SORTS:
        yield Kernel("block sort", indices * 90)
    else:
        yield from radix_sort(indices, 8)
    for _ in range(8):
        yield Kernel("scan", indices * 8)
    yield Kernel("embedding gradient", 2 * gradient_bytes)


# ---- counting ------------------------------------------------------------------------------------


@kernel_rule("histc")
def _histogram_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The counts are cleared, then each element is counted."""
    yield Kernel("pointwise", call.bytes)
    yield Kernel("scatter", call.first_bytes if call.inputs else 0)


@kernel_rule("bincount")
def _counting_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that tell the host the least and the largest element, then count each element."""
    for _ in range(2):
        yield Kernel("shared reduction", call.first_bytes)
        yield Kernel(COPY)
    yield Kernel("pointwise", call.bytes)
    yield Kernel("scatter", call.first_bytes)
