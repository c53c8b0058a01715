"""Root mean square normalisation, one kernel on CUDA from torch 2.9 on."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional

from virtual_cuda.device.cuda_errors import argument_elsewhere_error, label_of
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ops.autocast import cast_argument
from virtual_cuda.ops.dispatch import record_operation, require_open_device, work_of
from virtual_cuda.ops.placement import inner_of
from virtual_cuda.ops.registry import autocast_knows
from virtual_cuda.ops.whole_kernels import (
    WholeKernel,
    are_on_several_devices,
    bytes_of_all,
    is_recording_operators,
    wrap_each,
)

aten: Final = torch.ops.aten
# Before torch 2.9 CUDA has no kernel for it: it is made of other operators.
_HAS_KERNEL: Final = hasattr(aten, "_fused_rms_norm_backward")


class FusedRmsNorm(WholeKernel):
    """One kernel, which keeps the reciprocal of the root for backward, and not the squares."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, shape: list[int], eps: float | None) -> Any:
        """Normalise on the host, put the result on the device, and record the operation.

        `shape` are the last dimensions, which are normalised; `eps` None is the least step of the
        dtype. What backward needs is saved in `ctx`. Raises DeviceClosed or the error of what ended
        the device, and torch's OutOfMemoryError.
        """
        device = require_open_device(input)
        inner = input._virtual_inner
        inner_weight = inner_of(weight)
        out = torch.rms_norm(inner, shape, inner_weight, eps)
        # The reciprocal of the root, in single precision at least, is kept for backward.
        dtype = torch.promote_types(inner.dtype, torch.float32)
        if eps is None:
            eps = torch.finfo(dtype).eps
        dims = list(range(-len(shape), 0))
        wide = inner.to(dtype)
        reciprocal = _reciprocal_of_root(wide, dims, eps)
        kept, result = wrap_each((reciprocal, out), device)
        ctx.dims = dims
        ctx.eps = eps
        ctx.save_for_backward(input, weight, kept)
        work = work_of(out, (inner,))
        record_operation("aten._fused_rms_norm.default", device, out.nbytes, work)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of input and weight, on the device; the operation is recorded.

        None stands for each that is not needed, and for the other arguments. Raises DeviceClosed or
        the error of what ended the device, RuntimeError if a saved tensor was changed since, and
        torch's OutOfMemoryError.
        """
        input, weight, kept = ctx.saved_tensors
        device = require_open_device(input)
        # With `create_graph`: made of operators, each with its own gradient.
        if torch.is_grad_enabled():
            wide = input.to(kept.dtype)
            reciprocal = _reciprocal_of_root(wide, ctx.dims, ctx.eps)
            gradients = _input_and_weight_gradients(ctx, gradient, input, weight, reciprocal)
            return *gradients, None, None
        inner = inner_of([gradient, input, weight, kept])
        gradients = _input_and_weight_gradients(ctx, *inner)
        nbytes = bytes_of_all(gradients)
        work = work_of(gradients[0], inner[:1])
        record_operation("aten._fused_rms_norm_backward.default", device, nbytes, work)
        return *wrap_each(gradients, device), None, None


def _reciprocal_of_root(tensor: Any, dims: list[int], eps: float) -> Any:
    """One divided by the root of the mean square along these dimensions."""
    mean_square = tensor.square().mean(dims, keepdim=True)
    return torch.rsqrt(mean_square + eps)


def _input_and_weight_gradients(
    ctx: Any, gradient: Any, input: Any, weight: Any, reciprocal: Any
) -> list[Any]:
    """The gradients of the input and of the weight, None where not needed.

    `gradient` is that of the result, `reciprocal` that of the root. `ctx` says which are needed,
    and along which dimensions was normalised.
    """
    wide_gradient = gradient.to(reciprocal.dtype)
    normal = input.to(reciprocal.dtype) * reciprocal
    input_gradient = None
    weight_gradient = None
    if ctx.needs_input_grad[0]:
        scaled = wide_gradient
        if weight is not None:
            scaled = wide_gradient * weight.to(reciprocal.dtype)
        product = scaled * normal
        along_normal = product.mean(ctx.dims, keepdim=True)
        rest = scaled - normal * along_normal
        input_gradient = (reciprocal * rest).to(input.dtype)
    if ctx.needs_input_grad[1]:
        weight_gradient = wide_gradient * normal
        row_dims = input.dim() - len(ctx.dims)
        rows = list(range(row_dims))
        if rows:
            weight_gradient = weight_gradient.sum(rows)
        weight_gradient = weight_gradient.to(weight.dtype)
    return [input_gradient, weight_gradient]


FusedRmsNorm._backward_cls.__name__ = "FusedRmsNormBackward0"
_fused_rms_norm: Final[Any] = FusedRmsNorm.apply


def rms_norm(
    original: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> Any:
    """The result of `rms_norm`: one fused kernel, or torch's `original` where CUDA does not fuse.

    The ledger records what runs. Raises CUDA's RuntimeError for a weight on another device, torch's
    OutOfMemoryError, and what `original` raises.
    """
    if _HAS_KERNEL and weight is not None and are_on_several_devices(input, weight):
        method = "wrapper_CUDA___fused_rms_norm"
        raise argument_elsewhere_error("weight", label_of(weight), label_of(input), method)
    if torch.is_autocast_enabled("cuda") and autocast_knows("rms_norm"):
        input, weight = cast_argument((input, weight), torch.float32)
    shape = list(normalized_shape)
    if not _fused_kernel_takes(input, shape, weight) or is_recording_operators():
        return original(input, normalized_shape, weight, eps)
    return _fused_rms_norm(input, weight, shape, eps)


def _fused_kernel_takes(input: Any, shape: list[int], weight: Any) -> bool:
    """True if there is a fused kernel, and it runs on these.

    It wants all on one device, of one dtype, and shapes that fit.
    """
    if not _HAS_KERNEL or type(input) not in VIRTUAL:
        return False
    device = input._virtual_block.device
    if device.closed or not input.is_floating_point():
        return False
    last_sizes = list(input.shape[-len(shape) :])
    if not shape or last_sizes != shape:
        return False
    # The weight must fit, too.
    if weight is None:
        return True
    if type(weight) not in VIRTUAL:
        return False
    if weight._virtual_block.device is not device:
        return False
    if weight.dtype is not input.dtype:
        return False
    return list(weight.shape) == shape
