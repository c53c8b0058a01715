"""Which composite functions are one kernel on CUDA, or take another path there than C++ takes for a subclass? What they keep and wait for."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional

from graders.bench.virtual import syncs
from graders.bench.virtual.tensor import VIRTUAL

aten: Final = torch.ops.aten


def rms_norm(original: Any) -> Any:
    """One kernel, which keeps the reciprocal of the root and not the squares."""

    def norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
        if type(input) not in VIRTUAL or (
            weight is not None and (type(weight) not in VIRTUAL or weight.dtype is not input.dtype)
        ):
            return original(input, normalized_shape, weight, eps)
        shape = list(normalized_shape)
        if (
            not shape
            or list(input.shape[-len(shape) :]) != shape
            or (weight is not None and list(weight.shape) != shape)
        ):
            return original(input, normalized_shape, weight, eps)
        return aten._fused_rms_norm(input, shape, weight, eps)[0]

    return norm


def eigvals(original: Any) -> Any:
    """Without gradients the vectors are not computed."""

    def values(input: Any, *, out: Any = None) -> Any:
        if type(input) in VIRTUAL and out is None and not (input.requires_grad and torch.is_grad_enabled()):
            return aten._linalg_eigvals(input)
        return original(input, out=out)

    return values


def cross_entropy(original: Any) -> Any:
    """Smoothed and weighted, the mean is taken over the weights of the targets that count, which are selected by a mask."""

    def loss(
        input: Any,
        target: Any,
        weight: Any = None,
        reduction: int = 1,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Any:
        out = original(input, target, weight, reduction, ignore_index, label_smoothing)
        indices = type(target) in VIRTUAL and not target.is_floating_point()
        if indices and weight is not None and label_smoothing > 0 and reduction == 1:
            syncs.note("masked_select")
        return out

    return loss


def rms_backward(grad: Any, input: Any, shape: Any, rstd: Any, weight: Any, mask: Any) -> Any:
    """The CPU has no kernel for this one."""
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    dims = list(range(-len(shape), 0))
    x, g, r = input.to(wide), grad.to(wide), rstd.to(wide)
    scaled = g if weight is None else g * weight.to(wide)
    normal = x * r
    to_input = r * (scaled - normal * (scaled * normal).mean(dims, keepdim=True)) if mask[0] else None
    to_weight = (g * normal).sum(list(range(input.dim() - len(shape)))) if mask[1] and weight is not None else None
    return (
        None if to_input is None else to_input.to(input.dtype),
        None if to_weight is None else to_weight.to(weight.dtype).reshape(weight.shape),
    )


KERNELS: Final[dict[Any, Any]] = (
    {aten._fused_rms_norm_backward.default: rms_backward} if hasattr(aten, "_fused_rms_norm_backward") else {}
)


def patches() -> list[tuple[Any, str, Any]]:
    nn, linalg = torch._C._nn, vars(torch._C)["_linalg"]
    made: list[tuple[Any, str, Any]] = [
        (nn, "cross_entropy_loss", cross_entropy(nn.cross_entropy_loss)),
        (linalg, "linalg_eigvals", eigvals(linalg.linalg_eigvals)),
        (torch.linalg, "eigvals", eigvals(linalg.linalg_eigvals)),
    ]
    if KERNELS:
        made.append((torch, "rms_norm", rms_norm(torch.rms_norm)))
    return made
