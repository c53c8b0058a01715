"""Softmax and losses."""

from __future__ import annotations

from typing import Final

from virtual_cuda.clock.kernel_rules.reductions import reduction_kernels
from virtual_cuda.clock.kernels import (
    Chip,
    Kernel,
    KernelCall,
    Kernels,
    kernel_rule,
)

# Losses whose mean or sum is a kernel of its own; the number of passes before it.
_PASSES: Final = {
    "mse_loss": 1, "l1_loss": 1, "smooth_l1_loss": 1, "huber_loss": 1, "binary_cross_entropy": 1,
    "kl_div": 1, "soft_margin_loss": 1, "binary_cross_entropy_with_logits": 5,
}  # fmt: skip


@kernel_rule("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One pass along the last dimension; along another one, threads go down it, three times.

    Forward and backward are alike, but for the time of a step.
    """
    if call.dim is None:
        yield Kernel("softmax", call.bytes_moved)
        return
    length = call.length_along
    threads = _threads_of_a_column(call.elements_behind, length)
    seconds_a_step = 0.21e-6 if "backward" in call.name else 0.55e-6
    seconds = length / threads * seconds_a_step
    yield Kernel("softmax", call.bytes_moved, seconds=seconds)


def _threads_of_a_column(columns: int, length: int) -> int:
    """The number of threads that share one column: one, or more where there are few columns."""
    threads = 1
    if columns > 64 or length < 64:
        return threads
    while columns * threads * 2 <= 1024 and threads * 2 <= length:
        threads *= 2
    return threads


@kernel_rule("logsumexp")
def _logsumexp_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Kernels that find the largest and take it off, then add up exponentials."""
    whole = call.first_bytes
    result = call.out_bytes
    for size in (whole, result):
        yield Kernel("reduction", whole)
        for _ in range(2):
            yield Kernel("pointwise", 2 * size)
    for _ in range(3):
        yield Kernel("pointwise", 2 * result)


@kernel_rule(*_PASSES)
def _mean_loss_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """Passes over all elements, then their mean, if one is asked for."""
    for _ in range(_PASSES[call.name]):
        yield Kernel("pointwise", call.bytes_moved)
    if not call.out:
        mean = call._replace(name="mean", inputs=call.inputs[:1], out=())
        yield from reduction_kernels(mean, chip)


@kernel_rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def _mean_loss_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gradient is cleared, then written."""
    yield Kernel("pointwise", call.bytes)
    yield Kernel("stretched", call.bytes_moved)


@kernel_rule("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """One block picks the figure of each target."""
    yield Kernel("loss", call.rows * 64)


@kernel_rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_gradient_kernels(call: KernelCall, chip: Chip) -> Kernels:
    """The gradient is cleared, then written where the targets are.

    Raises IndexError for a call with too few shapes.
    """
    yield Kernel("pointwise", call.bytes)
    targets = call.input_elements(2)
    yield Kernel("loss", targets * 64)
