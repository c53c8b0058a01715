"""The operators that `SyncBatchNorm` consists of on a GPU; the CPU has no kernels for them.

A batch has its channels in the second dimension. Statistics are one value for each channel.
"""

from __future__ import annotations

from typing import Any

import torch

from virtual_cuda.ops.registry import operator


def _as_float(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, if it has half precision."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor


def _centre_batch(batch: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """A batch, in float32 at least, less the mean of each channel."""
    return _as_float(batch) - _shape_for_batch(mean, batch)


def _shape_for_batch(channels: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """One value for each channel, in the shape that fits a batch."""
    other_dimensions = [1] * (batch.dim() - 2)
    return channels.view(1, -1, *other_dimensions)


def _dimensions_except_channels(tensor: torch.Tensor) -> list[int]:
    """The numbers of all dimensions but the second."""
    return [0, *range(2, tensor.dim())]


def _batch_statistics(batch: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and inverse deviation of one rank's batch."""
    dimensions = _dimensions_except_channels(batch)
    variance, mean = torch.var_mean(_as_float(batch), dimensions, correction=0)
    return mean, (variance + eps).rsqrt()


def _joined_statistics(
    batch: Any,
    means: Any,
    deviations: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and inverse deviation of all ranks' batches together.

    `means`, `deviations` and `counts` have a row for each rank; deviations are inverse, too.
    Updates the running mean and variance in place, unless they are None.
    """
    counts = _as_float(torch.as_tensor(counts, dtype=means.dtype))
    counts = counts.view(-1, 1).expand(len(means), 1)
    total = counts.sum()
    sums = means * counts
    mean = sums.sum(0) / total
    of_ranks = deviations**-2 - eps
    variances = of_ranks + (means - mean) ** 2
    variance = (variances * counts).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * total / (total - 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return mean, (variance + eps).rsqrt()


def _normalise_batch(
    batch: Any, weight: Any, bias: Any, mean: Any, deviation: Any, eps: float
) -> torch.Tensor:
    """A batch, normalised and then scaled and shifted, in its own dtype.

    `mean` and `deviation`, the inverse one, have a value for each channel; so have weight and bias,
    unless they are None. `eps` is in the deviation already.
    """
    result = _centre_batch(batch, mean) * _shape_for_batch(deviation, batch)
    if weight is not None:
        result = result * _shape_for_batch(weight, batch)
    if bias is not None:
        result = result + _shape_for_batch(bias, batch)
    return result.to(batch.dtype)


def _reduce_gradient(
    grad: Any,
    batch: Any,
    mean: Any,
    deviation: Any,
    weight: Any,
    wants_input: bool,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The sums over a batch that the gradient of a batch norm needs, for each channel.

    They are the sum of `grad`, that of its products with the centred batch, then the gradients of
    weight and bias. None stands for each that is not wanted. `deviation` is the inverse one.
    """
    dimensions = _dimensions_except_channels(grad)
    centred = _centre_batch(batch, mean)
    wide_grad = _as_float(grad)
    sums = wide_grad.sum(dimensions)
    products = (wide_grad * centred).sum(dimensions)
    weight_gradient = None
    bias_gradient = None
    if weight is not None and wants_weight:
        weight_gradient = (products * deviation).to(weight.dtype)
    if weight is not None and wants_bias:
        bias_gradient = sums.to(weight.dtype)
    if not wants_input:
        return None, None, weight_gradient, bias_gradient
    return sums, products, weight_gradient, bias_gradient


def _input_gradient(
    grad: Any,
    batch: Any,
    mean: Any,
    deviation: Any,
    weight: Any,
    sums: Any,
    products: Any,
    counts: Any,
) -> torch.Tensor:
    """The gradient of a batch norm's input, from the sums over all ranks.

    `sums` are those of `grad` for each channel, `products` those of its products with the centred
    batch, `counts` are the elements of each rank, `deviation` is the inverse one.
    """
    total = counts.sum()
    centred = _centre_batch(batch, mean)
    slope = deviation**2 * products / total
    by_variance = centred * _shape_for_batch(slope, batch)
    by_mean = _shape_for_batch(sums / total, batch)
    if weight is None:
        factor = deviation
    else:
        factor = deviation * weight
    rest = _as_float(grad) - by_mean - by_variance
    result = rest * _shape_for_batch(factor, batch)
    return result.to(batch.dtype)


operator("batch_norm_stats", kernel=_batch_statistics)
operator("batch_norm_gather_stats", kernel=_joined_statistics)
operator("batch_norm_gather_stats_with_counts", kernel=_joined_statistics)
operator("batch_norm_elemt", kernel=_normalise_batch)
operator("batch_norm_backward_reduce", kernel=_reduce_gradient)
operator("batch_norm_backward_elemt", kernel=_input_gradient)
