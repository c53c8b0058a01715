"""Convolutions and their gradients."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from virtual_cuda.clock.kernel_rules.products import MatrixSizes, flops_of_waves, product_unit
from virtual_cuda.clock.kernels import (
    HALF,
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    Shape,
    ceil_div,
    item_size_of,
    kernel_rule,
)
from virtual_cuda.sizes import ITEM_SIZES

_CONVOLUTIONS: Final = ("convolution", "cudnn_convolution", "_convolution")
_GRADIENTS: Final = ("convolution_backward", "cudnn_convolution_backward")
# Elements from which cuDNN changes the layout in single precision, of an input and of a gradient.
_LARGE_INPUT: Final = 3 << 17
_LARGE_GRADIENT: Final = 1 << 18
_MANY_CHANNELS: Final = 64  # from which it changes the layout of small inputs, too
_FEW_CHANNELS: Final = 8  # with fewer, tensor cores have little to do
_DEPTHWISE: Final = 8  # times as long: every neighbour is loaded for one multiplication
_TILE: Final = 32  # channels that a change of the layout moves together
_BYTES_OF_A_WEIGHT: Final = 24  # that it counts for: windows of weights are small


class _ConvolutionCall(NamedTuple):
    """A convolution from `source` to `out`, forward or backward."""

    out: Shape
    source: Shape
    weight: Shape
    dtype: str
    channels_last: bool  # in memory

    @property
    def is_half(self) -> bool:
        """True for half precision."""
        return self.dtype in HALF

    @property
    def item_size(self) -> int:
        """Bytes of an element."""
        return item_size_of(self.dtype)

    @property
    def bytes_moved(self) -> int:
        """Bytes of the source and of the result."""
        return (math.prod(self.source) + math.prod(self.out)) * self.item_size

    @property
    def is_depthwise(self) -> bool:
        """True if each channel has a convolution of its own."""
        if self.weight[1] != 1 or len(self.source) < 2:
            return False
        channels = self.source[1]
        return channels > 1 and self.weight[0] >= channels

    @property
    def is_thin(self) -> bool:
        """True if the source has few channels, as pictures have."""
        return self.source[1] < _FEW_CHANNELS

    @property
    def has_window(self) -> bool:
        """True if more than one pixel counts for each pixel of the result."""
        return math.prod(self.weight[2:]) > 1

    @property
    def is_plain_product(self) -> bool:
        """True if every pixel is used once, by itself: a product needs no change of the layout."""
        return not self.has_window and self.out[2:] == self.source[2:]

    @property
    def is_deep(self) -> bool:
        """True if an element of the result is a sum of many products."""
        elements_of_a_filter = math.prod(self.weight[1:])
        return self.source[1] >= 16 or elements_of_a_filter >= 128

    @property
    def sizes(self) -> MatrixSizes:
        """The sizes of the product of all windows with the weights, for each group of channels.

        A transposed convolution goes from its result to its input.
        """
        is_transposed = len(self.out) > 1 and self.out[1] != self.weight[0]
        rows = self.source if is_transposed else self.out
        pixels = math.prod(rows) // max(rows[1], 1)
        window = math.prod(self.weight[1:])
        if is_transposed:
            return MatrixSizes(pixels, window, self.source[1])
        groups = max(self.source[1] // max(self.weight[1], 1), 1)
        return MatrixSizes(pixels, self.weight[0] // groups, window, groups)

    def kernel(self, chip: Chip) -> Kernel:
        """One kernel with the FLOPs of all windows, in whole waves of tiles if it is not thin."""
        kind, unit = self._kind_and_unit(chip)
        if self.is_thin:
            m, n, k, batch = self.sizes
            return Kernel(kind, self.bytes_moved, 2.0 * m * n * k * batch, unit)
        flops = flops_of_waves(self.sizes, unit, chip)
        return Kernel(kind, self.bytes_moved, flops, unit)

    def weight_gradient_kernel(self, chip: Chip) -> Kernel:
        """The kernel of the gradient of the weights: the sum over all pixels is its depth."""
        kind, unit = self._kind_and_unit(chip)
        m, n, k, batch = self.sizes
        if self.is_thin:
            return self.kernel(chip)._replace(kind=f"{kind} gradient")
        flops = flops_of_waves(MatrixSizes(n, k, m, batch), unit, chip)
        return Kernel(f"{kind} gradient", self.bytes_moved, flops, unit)

    def _kind_and_unit(self, chip: Chip) -> tuple[str, str]:
        """The kind of its kernels, and the unit that computes."""
        if self.is_thin:
            return "thin convolution", product_unit("float32", chip, tf32=True)
        kind = "half convolution" if self.is_half else "convolution"
        return kind, product_unit(self.dtype, chip, tf32=True)

    def depthwise_kernel(self) -> Kernel:
        """The kernel of one channel each: no product at all, and in single precision."""
        flops = _DEPTHWISE * 2.0 * math.prod(self.out) * math.prod(self.weight[1:])
        if self.channels_last:
            return Kernel("depthwise, channels last", self.bytes_moved, flops)
        # Element by element, whatever the precision.
        elements = math.prod(self.source) + math.prod(self.out)
        return Kernel("depthwise", elements * item_size_of("float32"), flops)

    def layout_kernel(self, shape: Shape) -> Kernel:
        """The change of the layout of the source or the result, in tiles of channels."""
        size = math.prod(shape) * self.item_size
        channels = shape[1]
        padded = size // max(channels, 1) * _TILE * ceil_div(channels, _TILE)
        return Kernel("layout", size + padded)

    def weight_layout_kernel(self) -> Kernel:
        """The change of the layout of the weights."""
        return Kernel("layout", math.prod(self.weight) * _BYTES_OF_A_WEIGHT)


@kernel_rule(*_CONVOLUTIONS)
def _convolution_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A product, or a kernel of its own for one channel.

    Then come the bias, and changes of the layout around it. Raises IndexError for a call with too
    few shapes, and AssertionError for one without a result.
    """
    assert call.out is not None
    convolution = _ConvolutionCall(
        call.out, call.inputs[0], call.inputs[1], call.dtype, call.channels_last
    )
    if convolution.is_depthwise:
        yield convolution.depthwise_kernel()
        return
    if convolution.source[1] == 1:  # pixel by pixel, without tensor cores
        yield _direct_convolution(convolution)
    else:
        yield convolution.kernel(chip)
    has_bias = len(call.inputs) > 2
    if has_bias:
        yield Kernel("stretched", 2 * call.out_bytes)
    if not _changes_layout(convolution):
        return
    yield convolution.layout_kernel(convolution.source)
    if convolution.has_window:
        yield convolution.weight_layout_kernel()
    # Small results in single precision are written as they are wanted.
    is_large = math.prod(convolution.source) >= _LARGE_INPUT
    if convolution.is_half or is_large:
        yield convolution.layout_kernel(convolution.out)


def _changes_layout(convolution: _ConvolutionCall) -> bool:
    """True if cuDNN changes the layout for tensor cores, which want the channels last."""
    if convolution.channels_last or convolution.is_plain_product:
        return False
    if not convolution.is_deep:
        return False
    if convolution.is_half:
        return True
    is_large = math.prod(convolution.source) >= _LARGE_INPUT
    has_many_channels = convolution.source[1] >= _MANY_CHANNELS
    return is_large or (has_many_channels and convolution.has_window)


def _direct_convolution(convolution: _ConvolutionCall) -> Kernel:
    """The kernel of a picture with one channel."""
    weight = convolution.weight
    pixels = math.prod(convolution.out) / weight[0]
    seconds_a_pixel = 64e-12 + 0.34e-12 * math.prod(weight)
    return Kernel("direct convolution", seconds=pixels * seconds_a_pixel)


@kernel_rule(*_GRADIENTS)
def _convolution_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gradients of the input, if it is wanted, of the weights, and of the bias, if it has one.

    The gradient of the weights is made in parts that are added up. Raises ValueError for a call
    with too few shapes.
    """
    gradient, source, weight = call.inputs[:3]
    dtype = call.dtype if call.dtype in ITEM_SIZES else "float32"
    convolution = _ConvolutionCall(gradient, source, weight, dtype, call.channels_last)
    wants_input = call.out is not None
    if convolution.is_depthwise:
        kernels = 2 if wants_input else 1
        for _ in range(kernels):
            kernel = convolution.depthwise_kernel()
            yield kernel._replace(kind=f"{kernel.kind}, gradient")
    else:
        yield from _product_gradient_kernels(convolution, wants_input, chip)
    if _has_bias_gradient(call, convolution):
        yield Kernel("channel reduction", math.prod(gradient) * convolution.item_size)


def _product_gradient_kernels(
    convolution: _ConvolutionCall, wants_input: bool, chip: Chip
) -> Kernels:
    """The gradients of input and weights, each by a product, with changes of the layout.

    `wants_input` says whether the gradient of the input is wanted.
    """
    kernel = convolution.kernel(chip)
    if wants_input:
        yield kernel
    yield convolution.weight_gradient_kernel(chip)
    yield Kernel("reduction", 2 * math.prod(convolution.weight) * convolution.item_size)
    if convolution.channels_last or convolution.is_plain_product:
        return
    # The weights before and after.
    if wants_input:
        yield convolution.weight_layout_kernel()
    yield convolution.weight_layout_kernel()
    is_large = math.prod(convolution.out) >= _LARGE_GRADIENT
    if not convolution.is_half and not is_large:
        return
    changed = [convolution.source, convolution.out]
    if wants_input:
        changed *= 2
    for shape in changed:
        yield convolution.layout_kernel(shape)


def _convolution_of(call: KernelCall) -> _ConvolutionCall | None:
    """The convolution of a call, forward or backward; None for other operators.

    None also for a call with too few shapes.
    """
    if call.name in _GRADIENTS and len(call.inputs) >= 3:
        out, source, weight = call.inputs[:3]
    elif call.name in _CONVOLUTIONS and len(call.inputs) >= 2 and call.out is not None:
        out = call.out
        source, weight = call.inputs[:2]
    else:
        return None
    dtype = call.dtype if call.dtype in ITEM_SIZES else "float32"
    return _ConvolutionCall(out, source, weight, dtype, call.channels_last)


def is_depthwise_in_single_precision(call: KernelCall) -> bool:
    """True for a convolution of each channel with its own weights that cuDNN is not asked for."""
    convolution = _convolution_of(call)
    return convolution is not None and convolution.is_depthwise and not convolution.is_half


def _has_bias_gradient(call: KernelCall, convolution: _ConvolutionCall) -> bool:
    """True if more memory was allocated than the gradients of input and weights need."""
    elements = math.prod(convolution.weight)
    if call.out is not None:
        elements += math.prod(call.out)
    return call.bytes > elements * convolution.item_size
