"""Attention, and a whole encoder layer in evaluation."""

from __future__ import annotations

import math
from typing import Final

from virtual_cuda.clock.kernel_rules.products import MatrixSizes, product_kernels
from virtual_cuda.clock.kernels import (
    HALF,
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    Shape,
    ceil_div,
    kernel_rule,
)

_SHORTEST_HEAD: Final = 64  # shorter heads leave threads without work
_SOFTMAX: Final = 64  # elements of a head that take as long as the softmax between the products
_TILE: Final = 64  # rows, and elements that they look at, of one block


def _attention_kernel(dtype: str, moved: float, flops: float) -> Kernel:
    """The kernel of attention, on tensor cores for half precision."""
    if dtype in HALF:
        return Kernel("half attention", moved, flops, "float16")
    return Kernel("attention", moved, flops, "float32")


def _steps_of_a_product(call: KernelCall) -> float:
    """Steps of one of the two products of attention: a step multiplies and adds.

    Raises IndexError for a call with too few shapes.
    """
    query = call.inputs[0]
    key = call.inputs[1]
    matrices = math.prod(query[:-2])
    head = max(query[-1], _SHORTEST_HEAD) + _SOFTMAX
    rows = ceil_div(query[-2], _TILE) * _TILE
    length: float = ceil_div(key[-2], _TILE) * _TILE
    if call.is_causal:  # half of the tiles, and those on the diagonal as a whole
        length = (length + _TILE) / 2
    return matrices * rows * head * length


@kernel_rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention")
def _attention_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One kernel; a mask is made into what is added before.

    Raises IndexError for a call with too few shapes.
    """
    flops = 4.0 * _steps_of_a_product(call)
    has_mask = len(call.inputs) > 3
    if has_mask:
        yield Kernel("stretched", call.input_elements(3) * 5)
    yield _attention_kernel(call.dtype, call.bytes_moved, flops)


@kernel_rule(
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
)
def _attention_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One kernel; in half precision, sums of the gradient for each row come before.

    Raises IndexError for a call with too few shapes.
    """
    flops = 10.0 * _steps_of_a_product(call)
    query_bytes = call.input_bytes(0)
    if call.dtype in HALF:
        yield Kernel("pointwise", 3 * query_bytes)
        yield Kernel("reduction", query_bytes)
    kernel = _attention_kernel(call.dtype, call.bytes_moved, flops)
    yield kernel._replace(kind=f"{kernel.kind} gradient")


@kernel_rule("_transformer_encoder_layer_fwd")
def _encoder_layer_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The fast path of a layer in evaluation: four products, attention, and what lies between.

    Raises IndexError for a call with too few shapes.
    """
    size = call.input_bytes(0)
    length = call.inputs[0][-2]
    # The weights of all products, in the order in which they are used.
    weights: list[Shape] = [shape for shape in call.inputs[1:] if len(shape) == 2]
    # Attention, with the product for query, key and value before it.
    yield from _kernels_of_products(call, weights[:1], chip)
    yield Kernel("pointwise", 6 * size)
    # The softmax takes as long as the products of heads of 64 elements.
    flops = 8.0 * call.input_elements(0) * length
    yield _attention_kernel(call.dtype, 4 * size, flops)
    # The other products, activations and two norms.
    yield from _kernels_of_products(call, weights[1:], chip)
    yield Kernel("pointwise", 3 * size)
    yield Kernel("norm", 2 * size)
    yield Kernel("norm", 2 * size)


def _kernels_of_products(call: KernelCall, weights: list[Shape], chip: Chip) -> Kernels:
    """The products of a call's first input, as one matrix, with each of the weights.

    `weights` are shapes of matrices. Raises IndexError for a call without inputs.
    """
    source = call.inputs[0]
    rows = math.prod(source[:-1])
    for columns, depth in weights:
        sizes = MatrixSizes(rows, columns, depth)
        yield from product_kernels(sizes, call.dtype, chip, chip.tf32)
