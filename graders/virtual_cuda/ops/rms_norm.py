"""Root mean square normalisation, one kernel on CUDA."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional

from virtual_cuda.device.cuda_errors import (
    argument_elsewhere_error,
    label_of,
)
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ops.autocast import cast
from virtual_cuda.ops.dispatch import record_operation, require_open_device, work_of
from virtual_cuda.ops.registry import casts
from virtual_cuda.ops.whole_kernels import (
    are_on_several_devices,
    is_recording_operators,
    wrap_each,
)

aten: Final = torch.ops.aten


class FusedRmsNorm(torch.autograd.Function):
    """One kernel, which keeps the reciprocal of the root for backward, and not the squares."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, shape: list[int], eps: float | None) -> Any:
        """Normalise on the host, put the result on the device, and record the operation.

        `shape` are the last dimensions, which are normalised.
        """
        device = input._block.device
        x = input._inner
        out = torch.rms_norm(x, shape, None if weight is None else weight._inner, eps)
        wide = x.to(torch.float64 if x.dtype is torch.float64 else torch.float32)
        dims = list(range(-len(shape), 0))
        small = torch.finfo(wide.dtype).eps if eps is None else eps
        rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + small)
        kept, result = wrap_each((rstd, out), device)
        ctx.save_for_backward(input, weight, kept)
        ctx.dims = dims
        ctx.eps = small
        record_operation("aten._fused_rms_norm.default", device, out.nbytes, work_of(out, (x,)))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of input and weight, on the device; the operation is recorded.

        Raises DeviceClosed, or what has ended the device.
        """
        input, weight, kept = ctx.saved_tensors
        device = require_open_device(input)
        # With `create_graph`: made of operators, each with its own gradient.
        if torch.is_grad_enabled():
            r = torch.rsqrt(input.to(kept.dtype).square().mean(ctx.dims, keepdim=True) + ctx.eps)
            return (*FusedRmsNorm._gradients(ctx, gradient, input, weight, r), None, None)
        inner = (None if t is None else t._inner for t in (gradient, input, weight, kept))
        found = FusedRmsNorm._gradients(ctx, *inner)
        nbytes = sum(t.nbytes for t in found if t is not None)
        record_operation(
            "aten._fused_rms_norm_backward.default",
            device,
            nbytes,
            work_of(found[0], (gradient._inner,)),
        )
        return (*wrap_each(found, device), None, None)

    @staticmethod
    def _gradients(ctx: Any, g: Any, x: Any, weight: Any, r: Any) -> list[Any]:
        """The gradients of the input `x` and of the weight, None where not needed.

        `g` is the gradient of the result, `r` the reciprocal of the root.
        """
        g = g.to(r.dtype)
        normal = x.to(r.dtype) * r
        found: list[Any] = [None, None]
        if ctx.needs_input_grad[0]:
            scaled = g if weight is None else g * weight.to(r.dtype)
            found[0] = (r * (scaled - normal * (scaled * normal).mean(ctx.dims, keepdim=True))).to(
                x.dtype
            )
        if ctx.needs_input_grad[1]:
            rows = list(range(x.dim() - len(ctx.dims)))
            found[1] = ((g * normal).sum(rows) if rows else g * normal).to(weight.dtype)
        return found


FusedRmsNorm._backward_cls.__name__ = "FusedRmsNormBackward0"
_fused_rms_norm: Final[Any] = FusedRmsNorm.apply


def rms_norm(
    original: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> Any:
    """The result of `rms_norm`: one fused kernel, or torch's `original` where CUDA does not fuse.

    Raises CUDA's RuntimeError for a weight on another device.
    """
    if weight is not None and are_on_several_devices(input, weight):
        raise argument_elsewhere_error(
            "weight", label_of(weight), label_of(input), "wrapper_CUDA___fused_rms_norm"
        )
    if torch.is_autocast_enabled("cuda") and casts("rms_norm"):
        input, weight = cast((input, weight), torch.float32)
    # CUDA fuses only the usual case: all on one device, of one dtype, with shapes that fit.
    shape = list(normalized_shape)
    usual = type(input) in VIRTUAL and shape and list(input.shape[-len(shape) :]) == shape
    if usual and weight is not None:
        same = type(weight) in VIRTUAL and weight._block.device is input._block.device
        usual = same and weight.dtype is input.dtype and list(weight.shape) == shape
    if (
        not usual
        or not input.is_floating_point()
        or input._block.device.closed
        or is_recording_operators()
    ):
        return original(input, normalized_shape, weight, eps)
    return _fused_rms_norm(input, weight, shape, eps)
