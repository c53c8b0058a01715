"""Pooling, resizing of pictures, and pictures as columns of windows."""

from __future__ import annotations

from virtual_cuda.clock.kernels import Chip, Kernel, KernelCall, Kernels, kernel_rule


@kernel_rule(
    *"avg_pool2d max_pool2d_with_indices max_pool3d_with_indices avg_pool3d".split(),
    *"upsample_bilinear2d upsample_bicubic2d grid_sampler_2d".split(),
)
def _pooling_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One pass over windows of the input, element by element.

    Raises IndexError for a call without inputs.
    """
    written = call.bytes or call.out_bytes
    moved = call.input_bytes(0) + written
    yield Kernel("pool", moved * call.as_single_precision)


@kernel_rule("upsample_nearest2d", "upsample_nearest2d_backward")
def _repeating_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One pass over the large and the small picture, element by element."""
    kind = "upsample gradient" if "backward" in call.name else "upsample"
    yield Kernel(kind, call.bytes_moved * call.as_single_precision)


@kernel_rule(
    "max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward"
)
def _pooling_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A pass over the gradient, which is cleared before for a maximum."""
    if call.name.startswith("max"):
        yield Kernel("pointwise", call.bytes)
    yield Kernel("pool gradient", call.bytes_moved * call.as_single_precision)


@kernel_rule("im2col", "col2im")
def _window_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A kernel for each picture, all with equal shares of the bytes."""
    shape = call.first_shape
    pictures = shape[0] if len(shape) > 2 else 1
    for _ in range(pictures):
        yield Kernel("pool", call.bytes_moved / pictures)
