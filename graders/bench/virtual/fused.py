"""Which composite functions are one kernel on CUDA, or take another path there than C++ takes for a subclass?"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional

from graders.bench.virtual import syncs
from graders.bench.virtual.dispatch import allocate, shut, write
from graders.bench.virtual.tensor import VIRTUAL, wrap

aten: Final = torch.ops.aten


class FusedRmsNorm(torch.autograd.Function):
    """One kernel, which keeps the reciprocal of the root and not the squares."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, shape: list[int], eps: float | None) -> Any:
        place, x = input._block.place, input._inner
        out = torch.rms_norm(x, shape, None if weight is None else weight._inner, eps)
        wide = x.to(torch.float64 if x.dtype is torch.float64 else torch.float32)
        dims = list(range(-len(shape), 0))
        small = torch.finfo(wide.dtype).eps if eps is None else eps
        rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + small)
        kept = wrap(rstd, allocate(place, rstd.nbytes))
        ctx.save_for_backward(input, weight, kept)
        ctx.dims = dims
        result = wrap(out, allocate(place, out.nbytes))
        write("aten._fused_rms_norm.default", place, out.nbytes)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        input, weight, kept = ctx.saved_tensors
        place, r = input._block.place, kept._inner
        if place.shut:
            raise shut(place)
        g = gradient._inner.to(r.dtype)
        normal = input._inner.to(r.dtype) * r
        found: list[Any] = [None, None]
        if ctx.needs_input_grad[0]:
            scaled = g if weight is None else g * weight._inner.to(r.dtype)
            found[0] = (r * (scaled - normal * (scaled * normal).mean(ctx.dims, keepdim=True))).to(input.dtype)
        if ctx.needs_input_grad[1]:
            rows = list(range(input.dim() - len(ctx.dims)))
            found[1] = ((g * normal).sum(rows) if rows else g * normal).to(weight.dtype)
        write("aten._fused_rms_norm_backward.default", place, sum(t.nbytes for t in found if t is not None))
        return (*(None if t is None else wrap(t, allocate(place, t.nbytes)) for t in found), None, None)


_fused_rms_norm: Final[Any] = FusedRmsNorm.apply


def rms_norm(original: Any) -> Any:
    def norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
        shape = list(normalized_shape)
        usual = type(input) in VIRTUAL and shape and list(input.shape[-len(shape) :]) == shape
        if usual and weight is not None:
            same = type(weight) in VIRTUAL and weight._block.place is input._block.place
            usual = same and weight.dtype is input.dtype and list(weight.shape) == shape
        if not usual or not input.is_floating_point() or input._block.place.shut:
            return original(input, normalized_shape, weight, eps)
        return _fused_rms_norm(input, weight, shape, eps)

    return norm


def eigvals(original: Any) -> Any:
    """Without gradients the vectors are not computed."""

    def values(input: Any, *, out: Any = None) -> Any:
        if type(input) in VIRTUAL and out is None and not (input.requires_grad and torch.is_grad_enabled()):
            return aten._linalg_eigvals(input)
        return original(input, out=out)

    return values


def cross_entropy(original: Any) -> Any:
    """Smoothed and weighted, the mean is over the weights of the targets that count, which a mask selects."""

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


def patches() -> list[tuple[Any, str, Any]]:
    nn, linalg = torch._C._nn, vars(torch._C)["_linalg"]
    made: list[tuple[Any, str, Any]] = [
        (nn, "cross_entropy_loss", cross_entropy(nn.cross_entropy_loss)),
        (linalg, "linalg_eigvals", eigvals(linalg.linalg_eigvals)),
        (torch.linalg, "eigvals", eigvals(linalg.linalg_eigvals)),
    ]
    return [*made, (torch, "rms_norm", rms_norm(torch.rms_norm))]
