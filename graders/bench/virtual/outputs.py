"""Where do CUDA's outputs differ from the CPU's in dtype, shape or size?

What an operator returns beside its result is what autograd keeps alive, so it decides how much memory a graph takes.
"""

from __future__ import annotations

from typing import Any, Final

import torch

aten: Final = torch.ops.aten
_HALF: Final = (torch.float16, torch.bfloat16)


def of(func: Any) -> Any:
    """A function(inner, kwargs, out) -> out that gives the outputs the form they have on CUDA, or None."""
    return FORMS.get(func)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Statistics of half-precision inputs are kept in single precision."""
    return tensor.float() if tensor.dtype in _HALF else tensor


def _layer_norm(inner: Any, kwargs: Any, out: Any) -> Any:
    return (out[0], _wide(out[1]), _wide(out[2]))


def _batch_norm(training: int | None, statistics: bool) -> Any:
    """`training` is the position of that argument, None where it is so; `statistics`: running ones are arguments."""

    def form(inner: Any, kwargs: Any, out: Any) -> Any:
        data, weight, bias = inner[0], inner[1], inner[2]
        trains = training is None or inner[training]
        mean, invstd = _wide(out[1]), _wide(out[2])
        if not trains:
            # cuDNN keeps nothing in eval mode; the kernel used for two dimensions or no weights keeps both statistics.
            cudnn = data.dim() >= 3 and weight is not None and bias is not None and statistics and inner[3] is not None
            cudnn = cudnn and (data.dtype not in _HALF or weight.dtype is torch.float32)
            size = 0 if cudnn else data.shape[1]
            kept = torch.float64 if data.dtype is torch.float64 else torch.float32
            mean, invstd = torch.empty(size, dtype=kept), torch.empty(size, dtype=kept)
            if size and statistics and inner[3] is not None:
                mean.copy_(inner[3])
                invstd.copy_((inner[4].to(kept) + inner[-1]).rsqrt())
        return (out[0], mean, invstd, *out[3:])

    return form


def _log_sigmoid(inner: Any, kwargs: Any, out: Any) -> Any:
    return (out[0], out[1].new_empty(0))


def _embedding_bag(inner: Any, kwargs: Any, out: Any) -> Any:
    """Every index knows its bag; the largest of a bag are remembered only where they are asked for."""
    result, bag_of, sizes, largest = out
    indices, offsets = inner[1], inner[2]
    mode = inner[4] if len(inner) > 4 else kwargs.get("mode", 0)
    bag_of = torch.zeros_like(indices)
    starts = offsets[1:]
    bag_of.index_add_(0, starts[starts < len(indices)], torch.ones_like(starts[starts < len(indices)]))
    bag_of = bag_of.cumsum(0).to(indices.dtype)
    ends = torch.cat([offsets[1:], offsets.new_tensor([len(indices)])])
    sizes = (ends - offsets)[: len(sizes)].to(sizes.dtype) if len(sizes) <= len(offsets) else sizes
    return (result, bag_of, sizes, largest if mode == 2 else largest.new_empty(0))


def _unique(inner: Any, kwargs: Any, out: Any) -> Any:
    """The result is the front of a buffer as long as the input."""
    found = out[0]
    buffer = found.new_empty(max(inner[0].numel(), found.numel()))
    front = buffer[: found.numel()].copy_(found)
    return (front, *out[1:])


def _row_major(*positions: int) -> Any:
    """Matrices that LAPACK gives by columns and cuSOLVER by rows."""

    def form(inner: Any, kwargs: Any, out: Any) -> Any:
        return tuple(t.contiguous() if i in positions else t for i, t in enumerate(out))

    return form


FORMS: Final[dict[Any, Any]] = {
    aten._batch_norm_with_update.default: _batch_norm(None, True),
    aten._embedding_bag.default: _embedding_bag,
    aten._linalg_svd.default: _row_major(2),
    aten._native_batch_norm_legit.default: _batch_norm(5, True),
    aten._native_batch_norm_legit.no_stats: _batch_norm(3, False),
    aten._unique.default: _unique,
    aten._unique2.default: _unique,
    aten.linalg_eig.default: _row_major(1),
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.native_batch_norm.default: _batch_norm(5, True),
    aten.native_layer_norm.default: _layer_norm,
}
