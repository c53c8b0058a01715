"""Convolutions and their gradients."""

from __future__ import annotations

import math
from typing import Final

from virtual_cuda.clock.kernel_rules.products import product_unit
from virtual_cuda.clock.kernels import (
    HALF,
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    Shape,
    item_size_of,
    kernel_rule,
)
from virtual_cuda.sizes import ITEM_SIZES

# Elements from which cuDNN changes the layout, of an input and of a gradient.
_LARGE_INPUT: Final = 3 << 17
_LARGE_GRADIENT: Final = 1 << 18


@kernel_rule("convolution", "cudnn_convolution", "_convolution")
def _convolution_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A product, or a kernel of its own for one channel.

    Then come the bias, and changes of the layout around it.
    """
    source = call.inputs[0]
    weight = call.inputs[1]
    assert call.out is not None
    size_in = call.input_bytes(0)
    size_out = call.out_bytes
    if _is_depthwise(source, weight):  # one channel each: no product at all
        yield Kernel("depthwise", size_in + size_out)
        return
    if source[1] == 1:  # pixel by pixel, without tensor cores
        yield _direct_convolution(call.out, weight)
    else:
        yield _convolution_as_product(call.out, weight, source, call.dtype, chip)
    has_bias = len(call.inputs) > 2
    if has_bias:
        yield Kernel("stretched", 2 * size_out)
    if _changes_layout(source, weight):
        yield Kernel("layout", 2 * size_in)
        yield Kernel("layout", 2 * size_out)
        yield Kernel("layout", 2 * call.input_bytes(1))


def _is_depthwise(source: Shape, weight: Shape) -> bool:
    """True if each channel has a convolution of its own."""
    if weight[1] != 1 or len(source) < 2:
        return False
    channels = source[1]
    return channels > 1 and weight[0] >= channels


def _changes_layout(source: Shape, weight: Shape) -> bool:
    """True if cuDNN changes the layout for tensor cores, which want the channels last."""
    if math.prod(source) < _LARGE_INPUT:
        return False
    has_window = math.prod(weight[2:]) > 1
    elements_of_a_filter = math.prod(weight[1:])
    is_deep = source[1] >= 16 or elements_of_a_filter >= 128
    return has_window and is_deep


def _direct_convolution(out: Shape, weight: Shape) -> Kernel:
    """The kernel of a picture with one channel."""
    pixels = math.prod(out) / weight[0]
    seconds_a_pixel = 64e-12 + 0.34e-12 * math.prod(weight)
    seconds = pixels * seconds_a_pixel
    return Kernel("direct convolution", seconds=seconds)


def _convolution_as_product(
    out: Shape, weight: Shape, source: Shape, dtype: str, chip: Chip
) -> Kernel:
    """One kernel with the FLOPs of all windows.

    A transposed convolution goes from its result to its input.
    """
    elements_in = math.prod(source)
    elements_out = math.prod(out)
    is_transposed = len(out) > 1 and out[1] != weight[0]
    pixels = elements_in if is_transposed else elements_out
    flops_of_a_window = 2.0 * math.prod(weight[1:])
    return Kernel(
        kind="half convolution" if dtype in HALF else "convolution",
        bytes=(elements_out + elements_in) * item_size_of(dtype),
        flops=pixels * flops_of_a_window,
        unit=product_unit(dtype, chip, tf32=True),
    )


@kernel_rule("convolution_backward", "cudnn_convolution_backward")
def _convolution_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gradients of the input, if it is wanted, of the weights, and of the bias.

    The gradient of the weights is made in parts that are added up.
    """
    gradient, source, weight = call.inputs[:3]
    dtype = call.dtype if call.dtype in ITEM_SIZES else "float32"
    item_size = item_size_of(dtype)
    weight_moved = 2 * math.prod(weight) * item_size
    kernel = _convolution_as_product(gradient, weight, source, dtype, chip)
    kernel = kernel._replace(kind=f"{kernel.kind} gradient")
    laid_out_anew = [source, gradient]
    # The gradient of the input.
    if call.out is not None:
        yield kernel
        yield Kernel("layout", weight_moved)
        laid_out_anew = [source, source, gradient]
    # That of the weights.
    yield kernel
    yield Kernel("reduction", weight_moved)
    yield Kernel("layout", weight_moved)
    if math.prod(gradient) >= _LARGE_GRADIENT:
        for shape in laid_out_anew:
            yield Kernel("layout", 2 * math.prod(shape) * item_size)
    # That of the bias.
    yield Kernel("channel reduction", math.prod(gradient) * item_size)
