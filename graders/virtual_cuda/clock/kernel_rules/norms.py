"""Normalisation by layers, groups and batches."""

from __future__ import annotations

from virtual_cuda.clock.kernels import (
    HALF,
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    kernel_rule,
)


@kernel_rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """A block for each row."""
    yield Kernel("norm", 2 * call.largest_bytes, seconds=call.rows * 2.1e-9)


@kernel_rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gradient of the input, and those of weight and bias together."""
    moved = 3 * call.largest_bytes
    yield Kernel("norm", moved)
    yield Kernel("norm gradient", moved)


@kernel_rule("native_group_norm")
def _group_norm_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Means of the groups, factors of the channels, one pass."""
    size = call.largest_bytes
    yield Kernel("group norm", size * call.as_single_precision)
    yield Kernel("pointwise", 0)
    yield Kernel("stretched", 2 * size)


@kernel_rule("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")
def _batch_norm_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One pass in evaluation; in training by cuDNN, or without pixels by kernels of torch's own.

    Raises IndexError for a call without inputs.
    """
    if _is_in_evaluation(call):
        yield Kernel("stretched", 2 * call.out_bytes)
        return
    size = call.largest_bytes
    has_pixels = len(call.first_shape) != 2
    if has_pixels:
        yield _batch_norm_kernel(call, "batch norm", 2, chip)
        if call.dtype in HALF:  # not by cuDNN: what it needs is computed first, then applied
            yield Kernel("pointwise", 0)
            yield Kernel("stretched", 2 * size)
    else:
        yield Kernel("column reduction", size)
        yield Kernel("pointwise", 0)
        yield Kernel("stretched", 2 * size)


def _is_in_evaluation(call: KernelCall) -> bool:
    """True if a batch norm keeps nothing for backward."""
    if call.out is None:
        return False
    channels = call.out[1] if len(call.out) > 1 else 1
    return call.bytes < call.out_bytes + 8 * channels


@kernel_rule("native_batch_norm_backward", "cudnn_batch_norm_backward")
def _batch_norm_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One kernel; in half precision with the channels last, sums are another one.

    Raises IndexError for a call without inputs.
    """
    yield _batch_norm_kernel(call, "batch norm gradient", 3, chip)
    if call.dtype in HALF and call.channels_last:
        yield Kernel("reduction", call.largest_bytes)


@kernel_rule("native_group_norm_backward")
def _group_norm_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Sums of the groups, factors of the channels, the gradient, those of weight and bias."""
    size = call.largest_bytes
    yield Kernel("group norm gradient", 2 * size * call.as_single_precision)
    yield Kernel("pointwise", 0)
    yield Kernel("stretched", 3 * size)
    for _ in range(2):
        yield Kernel("reduction", 0)


def _batch_norm_kernel(call: KernelCall, kind: str, passes: int, chip: Chip) -> Kernel:
    """The kernel that goes over the pixels so many times, and computes in single precision.

    With the channels last, every block reads all of them; else one block works on one channel.
    Raises IndexError for a call without inputs.
    """
    moved = passes * call.largest_elements * 4
    if call.channels_last:
        return Kernel(f"{kind}, channels last", moved)
    return Kernel(kind, moved * _slowdown_by_few_channels(call, chip))


def _slowdown_by_few_channels(call: KernelCall, chip: Chip) -> float:
    """The factor by which few channels are slower. Raises IndexError for a call without inputs.

    One block works on one channel, so that the other multiprocessors have no work.
    """
    shape = call.inputs[0]
    channels = shape[1] if len(shape) > 1 else 1
    return max(chip.sms / max(channels, 1), 1.0)
