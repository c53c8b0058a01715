"""Attention, and a whole encoder layer in evaluation."""

from __future__ import annotations

import math
from typing import Final

from virtual_cuda.clock.kernel_rules.products import MatrixSizes, product_kernels
from virtual_cuda.clock.kernels import HALF, Chip, Kernel, KernelCall, Kernels, Shape, kernel_rule

_SHORTEST_HEAD: Final = 64  # shorter heads leave threads without work


def _attention_kernel(dtype: str, moved: float, flops: float) -> Kernel:
    """The kernel of attention, on tensor cores for half precision."""
    if dtype in HALF:
        return Kernel("half attention", moved, flops, "float16")
    return Kernel("attention", moved, flops, "float32")


def _steps_of_a_product(query: Shape, key: Shape) -> float:
    """Steps of one of the two products of attention: a step multiplies and adds."""
    head = max(query[-1], _SHORTEST_HEAD)
    return math.prod(query[:-1]) * head * key[-2]


@kernel_rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention")
def _attention_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One kernel; a mask is made into what is added before."""
    flops = 4.0 * _steps_of_a_product(call.inputs[0], call.inputs[1])
    has_mask = len(call.inputs) > 3
    if has_mask:
        yield Kernel("stretched", call.input_elements(3) * 5)
    yield _attention_kernel(call.dtype, call.bytes_moved, flops)


@kernel_rule(
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward",
)
def _attention_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Sums of the gradient for each row, then one kernel."""
    flops = 10.0 * _steps_of_a_product(call.inputs[0], call.inputs[1])
    query_bytes = call.input_bytes(0)
    yield Kernel("pointwise", 3 * query_bytes)
    yield Kernel("reduction", query_bytes)
    yield _attention_kernel(call.dtype, call.bytes_moved, flops)


@kernel_rule("_transformer_encoder_layer_fwd")
def _encoder_layer_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The fast path of a layer in evaluation: four products, attention, and what lies between."""
    source = call.inputs[0]
    rows = math.prod(source[:-1])
    width = source[-1]
    length = source[-2]
    size = rows * width * call.item_size
    # The weights of all products, in the order in which they are used.
    products = []
    for shape in call.inputs[1:]:
        if len(shape) == 2:
            sizes = MatrixSizes(rows, shape[0], shape[1])
            products.append(product_kernels(sizes, call.dtype, chip, chip.tf32))
    # Attention, with the product for query, key and value before it.
    for kernels in products[:1]:
        yield from kernels
    yield Kernel("pointwise", 6 * size)
    yield _attention_kernel(call.dtype, 4 * size, 4.0 * rows * width * length)
    # The other products, activations and two norms.
    for kernels in products[1:]:
        yield from kernels
    yield Kernel("pointwise", 3 * size)
    yield Kernel("norm", 2 * size)
    yield Kernel("norm", 2 * size)
