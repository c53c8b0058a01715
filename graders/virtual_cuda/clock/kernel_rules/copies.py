"""Copies on the device, and operators that only fill memory."""

from __future__ import annotations

import math

from virtual_cuda.clock.kernels import COPY, Chip, Kernel, KernelCall, Kernels, kernel_rule


@kernel_rule("clone", "copy_", "_to_copy")
def _copy_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A copy as it lies, or a kernel for another dtype or other strides.

    A copy to the host has no kernel here: it is a row of its own.
    """
    if call.out is None:
        if len(call.inputs) > 1:
            yield Kernel("strided copy", call.bytes_moved)
    elif not call.inputs:
        yield Kernel(COPY, 2 * call.out_bytes)
    elif call.name == "clone":
        yield Kernel("strided copy", call.bytes_moved)
    else:
        yield Kernel("pointwise", call.bytes_moved)


@kernel_rule("_local_scalar_dense")
def _copy_of_one_number(call: KernelCall, chip: Chip) -> Kernels:
    """One number is copied to the host."""
    yield Kernel(COPY)


@kernel_rule("select_backward", "slice_backward", "diagonal_backward")
def _view_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gradient is cleared, then the part that the view showed is copied into it.

    Raises IndexError for a call without inputs.
    """
    yield Kernel("pointwise", call.bytes)
    yield Kernel(COPY, 2 * call.input_bytes(0))


@kernel_rule("zeros_like", "zero_", "zeros", "new_zeros")
def _zeroing_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One pass that only writes."""
    shape = call.out or call.first_shape
    yield Kernel("pointwise", math.prod(shape) * call.item_size)


@kernel_rule("constant_pad_nd")
def _padding_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The result is filled, then the input is copied into it.

    Raises IndexError for a call without inputs.
    """
    yield Kernel("pointwise", call.bytes)
    yield Kernel("strided copy", 2 * call.input_bytes(0))
