"""Operators on lists of tensors, which optimizers use: one launch is for many tensors."""

from __future__ import annotations

import math
from typing import Final

from virtual_cuda.clock.kernels import Chip, Kernel, KernelCall, Kernels, kernel_rule

_CHUNK: Final = 65536  # elements that one block handles
_MOST_BLOCKS: Final = 320  # of one launch
_MOST_TENSORS: Final = (110, 64, 48, 36, 30)  # of one launch, by the number of lists
# The number of lists of operators that are called with more than one.
_LISTS: Final = {
    "lerp": 2, "addcmul": 3, "addcdiv": 3, "sqrt": 2, "copy": 2, "add.List": 2, "neg": 2,
    "mul.List": 2,
}  # fmt: skip


def kernels_for_lists(call: KernelCall, chip: Chip) -> Kernels:
    """The launches for lists of tensors, whose shapes are the inputs of the call.

    A launch takes so many tensors, and so many chunks of them; then the next one is filled.
    """
    stem = call.name.removeprefix("_foreach_").removeprefix("_fused_")
    stem = stem.rstrip("_")
    lists = _number_of_lists(call, stem)
    passes = lists if call.bytes else lists + 1
    bytes_an_element = passes * call.item_size
    most_tensors = _MOST_TENSORS[lists - 1]
    # What is in the launch that is being filled: tensors, and the elements of each chunk.
    tensors = 0
    chunks: list[int] = []
    shapes = call.inputs
    if call.name.startswith("_fused_"):  # all lists one after the other
        shapes = shapes[: len(shapes) // lists]
    for shape in shapes:
        elements = math.prod(shape)
        tensors += 1
        for start in range(0, elements, _CHUNK):
            chunk = min(_CHUNK, elements - start)
            chunks.append(chunk)
            is_last_chunk = start + chunk == elements
            has_all_tensors = is_last_chunk and tensors == most_tensors
            if has_all_tensors or len(chunks) == _MOST_BLOCKS:
                yield _launch_for_chunks(stem, chunks, bytes_an_element, chip)
                tensors = 0 if is_last_chunk else 1
                chunks = []
    if chunks:
        yield _launch_for_chunks(stem, chunks, bytes_an_element, chip)


def _number_of_lists(call: KernelCall, stem: str) -> int:
    """The number of lists of tensors that an operator reads and writes."""
    if call.name.startswith("_fused_"):
        return 5
    makes_new_list = call.bytes > 0
    return _LISTS.get(stem, 2 if makes_new_list else 1)


def _launch_for_chunks(stem: str, chunks: list[int], bytes_an_element: int, chip: Chip) -> Kernel:
    """One launch over chunks of so many elements; `stem` is the operator's name: "mul".

    A multiprocessor has its share of the bandwidth: few blocks take as long as all of them would.
    """
    is_plain = stem in ("add", "mul", "sub")
    kind = "multi-tensor" if is_plain else "multi-tensor function"
    as_if_all_worked = max(chunks) * chip.sms / 1.5
    elements = max(sum(chunks), as_if_all_worked)
    return Kernel(kind, elements * bytes_an_element)


@kernel_rule("_amp_foreach_non_finite_check_and_unscale_")
def _unscaling_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A multi-tensor product; the last two tensors are the scale and what is found."""
    multiplication = call._replace(name="_foreach_mul_", inputs=call.inputs[:-2])
    yield from kernels_for_lists(multiplication, chip)
