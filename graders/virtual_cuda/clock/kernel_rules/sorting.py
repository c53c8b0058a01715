"""Sorting, and selecting the largest or the different elements."""

from __future__ import annotations

from typing import Final

from virtual_cuda.clock.kernels import (
    COPY,
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    ceil_div,
    kernel_rule,
)

_BLOCK_SORTS: Final = (128, 1024, 4096)  # elements for which one block has room
_ONE_TILE: Final = 2048  # elements that one block sorts by itself
_SHORT_ROW: Final = 1024  # elements of a row of which one block selects the largest
_SELECTORS: Final = ("kthvalue", "median", "nanmedian")  # want one value of each row


@kernel_rule("sort", "argsort", "kthvalue", "median", "mode", "msort", "nanmedian")
def _sort_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One value of each row, a sort of each row by one block, or a radix sort of everything."""
    elements = call.largest_elements
    length = call.length_along
    if call.name in _SELECTORS and length < elements:
        yield _selection_by_row(elements // length, length, chip)
    elif length <= _BLOCK_SORTS[-1]:
        yield from _block_sort(elements, length)
    else:
        yield from _sort_of_long_rows(call, elements, length)


def _block_sort(elements: int, length: int) -> Kernels:
    """One block sorts a row in shared memory; keys and places are copied beside it.

    `length` is that of a row, at most 4096 elements.
    """
    for _ in range(3):
        yield Kernel(COPY, elements * 8)
    for _ in range(2):
        yield Kernel("pointwise", elements * 8)
    room = next(size for size in _BLOCK_SORTS if length <= size)
    yield Kernel("block sort", elements // length * room * 90)


def _sort_of_long_rows(call: KernelCall, elements: int, length: int) -> Kernels:
    """A radix sort of everything; the number of the row is a part of the key.

    `elements` is the number of all elements, `length` that of a row.
    """
    yield Kernel(COPY, elements * 8)
    yield Kernel("pointwise", elements * 8)
    passes = call.item_size
    if elements > length:
        passes += 3
    yield from radix_sort(elements, passes)
    if call.name not in ("sort", "argsort", "msort"):
        for _ in range(2):
            yield Kernel("pointwise", 0)


def radix_sort(elements: int, passes: int) -> Kernels:
    """A histogram and its sums, then a pass for each byte of a key."""
    if elements <= _ONE_TILE:
        yield Kernel("radix sort", elements * 24)
        return
    yield Kernel("radix sort", elements * 16)
    yield Kernel("pointwise", 0)
    for _ in range(passes):
        yield Kernel("radix sort", elements * 24)


def _selection_by_row(rows: int, length: int, chip: Chip) -> Kernel:
    """A block for each row counts digits and goes over the row again and again."""
    waves = ceil_div(rows, chip.sms)
    seconds_a_wave = 2e-6 + length * 9e-9
    return Kernel("row selection", seconds=waves * seconds_a_wave)


@kernel_rule("topk")
def _top_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Short rows by a block each; of long ones several blocks count digits, a byte at a time."""
    elements = call.largest_elements
    length = call.length_along
    if length <= _SHORT_ROW:
        yield _selection_by_row(elements // length, length, chip)
        yield Kernel("selection", 0)
        return
    one_pass = Kernel("selection", call.largest_bytes)
    for _ in range(4):
        yield one_pass
        for _ in range(3):
            yield Kernel("selection", 0)
    for _ in range(3):
        yield one_pass
    yield Kernel("selection", 0)


@kernel_rule("_unique2", "unique_consecutive", "unique_dim", "_unique")
def _unique_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that sort, then compare neighbours; a copy tells the host how many there are."""
    if call.name != "unique_consecutive":
        yield from radix_sort(call.first_elements, call.item_size)
    yield Kernel("scan", 0)
    yield Kernel("scan", call.first_bytes)
    yield Kernel(COPY)
