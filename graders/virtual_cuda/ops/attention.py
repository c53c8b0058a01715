"""Attention: CUDA's fused kernels, and which of them torch chooses.

A fused kernel does in one launch what would otherwise take several operators. The inner tensor of a
device tensor is the CPU tensor with its values.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
import torch.nn.functional
from torch import nn
from torch.autograd import grad as _grad

from virtual_cuda.device.cuda_errors import (
    argument_elsewhere_error,
    label_of,
)
from virtual_cuda.device.hidden import conceal, reveal
from virtual_cuda.device.tensor import VIRTUAL, wrap
from virtual_cuda.internals import find_internal
from virtual_cuda.ops.dispatch import allocate, closed_device_error, record_operation, work_of
from virtual_cuda.ops.elementwise import is_slow_on_host
from virtual_cuda.ops.whole_kernels import (
    are_on_several_devices,
    call_in_cuda_words,
    cast_by_autocast,
    hold_memory,
    is_recording_operators,
    refuse_second_gradients,
    wrap_each,
)

aten: Final = torch.ops.aten


_host_attention: Final = find_internal(
    "torch._C._nn.scaled_dot_product_attention",
    otherwise=nn.functional.scaled_dot_product_attention,
)
_order_of_kernels: Final = find_internal(
    "torch._C._get_sdp_priority_order", otherwise=lambda: [1, 2, 0, 3]
)
_LONGEST: Final = 256  # heads of the flash kernel
_ROW: Final = 32  # the kernel pads its sums of exponentials to so many queries


def _attend_on_host(*args: Any, **named: Any) -> Any:
    """The result of the CPU's attention, whichever of CUDA's kernels are switched off.

    The CPU's attention obeys some of their switches, so these are on for the length of the call.
    """
    flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    if all(flags):
        return _host_attention(*args, **named)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)
    try:
        return _host_attention(*args, **named)
    finally:
        torch.backends.cuda.enable_flash_sdp(flags[0])
        torch.backends.cuda.enable_math_sdp(flags[1])


def _heads_inside(made: Any) -> Any:
    """A copy with queries before heads in memory, as the memory-efficient kernel writes it."""
    batch, count, length, size = made.shape
    return made.new_empty((batch, length, count, size)).transpose(1, 2).copy_(made)


def _laid_out_as(made: Any, pattern: Any) -> Any:
    """A copy in the memory layout of an operand, whose heads may have another size.

    The kernels other than the memory-efficient one write results so.
    """
    *outer, last = torch.empty_like(pattern).stride()
    strides = [stride // pattern.shape[3] * made.shape[3] for stride in outer]
    return made.new_empty_strided(made.shape, [*strides, last]).copy_(made)


class FusedAttention(torch.autograd.Function):
    """One of CUDA's three fused kernels, and the class of the memory-efficient one.

    The CPU's own graph inside computes the gradients. Memory that CUDA would keep alive for them is
    kept here.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, settings: Any) -> Any:
        """Compute attention on the host, and put the result on the device.

        `settings` are the kernel's name, dropout, `is_causal`, scale and `enable_gqa`. The
        operation is recorded. If gradients are needed, what CUDA keeps for backward is allocated
        and saved in `ctx`.
        """
        device = query._block.device
        needs = any(ctx.needs_input_grad)
        inner = [t._inner.detach().requires_grad_(t.requires_grad) for t in (query, key, value)]
        bias: Any = None if mask is None else mask._inner
        trained = (
            []
            if mask is None or not mask.requires_grad
            else [bias := bias.detach().requires_grad_()]
        )
        kernel, dropout, causal, scale, grouped = settings
        # Compute on the host.
        with torch.enable_grad() if needs else torch.no_grad():
            if causal and bias is not None:  # the CPU takes one or the other
                past = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
                bias = (
                    bias & past
                    if bias.dtype is torch.bool
                    else bias.masked_fill(~past, float("-inf"))
                )
                causal = False
            operands = inner
            dtype = query.dtype
            if is_slow_on_host(dtype):
                operands = [t.float() for t in inner]
                bias = bias if bias is None or bias.dtype is torch.bool else bias.float()
            out = _attend_on_host(
                *operands, bias, dropout, causal, scale=scale, enable_gqa=grouped
            ).to(dtype)
        # Lay the result out in memory as the kernel does.
        efficient = kernel == "efficient"
        size = query.shape[3]
        padded = -(-size // 8) * 8 if kernel == "flash" else size
        if efficient:
            plain = _heads_inside(out.detach())
        elif padded == size:
            plain = _laid_out_as(out.detach(), inner[0].detach())
        else:
            plain = out.new_empty((*out.shape[:3], padded))[..., :size].copy_(out.detach())
        result = wrap(plain, allocate(device, plain.nbytes // size * padded))
        work = work_of(plain, inner)
        record_operation(
            "aten._scaled_dot_product_efficient_attention.default", device, plain.nbytes, work
        )
        # Keep for backward what CUDA keeps; `sizes` are in bytes.
        if needs:
            rows = -(-query.shape[2] // _ROW) * _ROW if efficient else query.shape[2]
            sizes = [query.shape[0] * query.shape[1] * rows * 4]
            if not efficient:  # the state of random numbers
                sizes += [16, 8]
            if mask is not None and mask.dtype is torch.bool:  # as numbers
                sizes += [mask.numel() * (4 if efficient else 2)]
            ctx.held = conceal(([*inner, *trained], out, device, kernel))
            kept = [result] if mask is None or mask.dtype is torch.bool else [result, mask]
            if padded == size:
                kept += [query, key, value]
            else:  # the flash kernel takes heads in eights: padded copies are made, and kept
                sizes += [t.nbytes // t.shape[3] * padded for t in (query, key, value)]
            ctx.save_for_backward(*kept, *hold_memory(device, *sizes))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of query, key, value and mask, on the device.

        The operation is recorded. Raises if the device is closed, or if a saved tensor was changed
        since. With `create_graph`, the gradients refuse to be differentiated again.
        """
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        inner, out, device, kernel = reveal(ctx.held)
        if device.closed:
            raise closed_device_error(device)
        # The CPU's graph gives the gradients.
        wanted = [t for t in inner if t.requires_grad]
        found = iter(_grad(out, wanted, gradient._inner, retain_graph=True))
        made = [next(found) if t.requires_grad else None for t in inner]
        # Lay them out in memory as the kernel does.
        for i, (grad, operand) in enumerate(zip(made[:3], inner, strict=False)):
            if grad is not None and kernel == "efficient":
                made[i] = _heads_inside(grad)
            elif grad is not None:
                # What is left of a padded one is contiguous.
                contiguous = kernel == "flash" and operand.shape[3] % 8 > 0
                made[i] = grad.contiguous() if contiguous else _laid_out_as(grad, operand.detach())
        results = wrap_each(made, device)
        name = "aten._scaled_dot_product_efficient_attention_backward.default"
        record_operation(
            name, device, sum(r.nbytes for r in results if r is not None), work_of(None, inner)
        )
        refusal = f"derivative for aten::_scaled_dot_product_{kernel}_attention_backward is not implemented"
        return (*refuse_second_gradients(results, refusal), *[None] * (5 - len(results)))


class FlashAttention(FusedAttention):
    """The flash kernel: a class of its own, for the name in autograd's graph."""


class PaddedAttention(FusedAttention):
    """The flash kernel with padded heads: in autograd's graph, the cut of its result."""


class CudnnAttention(FusedAttention):
    """cuDNN's kernel: a class of its own, for the name in autograd's graph."""


for _cls, _name in (
    (FusedAttention, "Efficient"),
    (FlashAttention, "Flash"),
    (CudnnAttention, "Cudnn"),
):
    _cls._backward_cls.__name__ = f"ScaledDotProduct{_name}AttentionBackward0"
PaddedAttention._backward_cls.__name__ = "SliceBackward0"

KERNELS: Final[dict[str, Any]] = {
    "cudnn": CudnnAttention,
    "flash": FlashAttention,
    "efficient": FusedAttention,
}
_CHOICES: Final = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}  # as torch numbers them
_USUAL_ORDER: Final = _order_of_kernels()
_ENABLED: Final[dict[str, Any]] = {
    "math": torch.backends.cuda.math_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
}


def _kernel_suits(kernel: str, query: Any, key: Any, value: Any, mask: Any, grouped: bool) -> bool:
    """True if this kernel takes operands that at least one fused kernel takes."""
    single, sizes = query.dtype is torch.float32, (query.shape[3], value.shape[3])
    if kernel == "efficient":
        return not grouped and not any(size % (4 if single else 8) for size in sizes)
    model = query._block.device.gpu.model
    if single or max(sizes) > _LONGEST or not (model is None or model.capability[0] >= 8):
        return False
    if kernel == "flash":
        return mask is None and sizes[0] == sizes[1]
    trained = mask is not None and mask.requires_grad
    return not trained and key.shape[2] > 1 and not any(size % 8 for size in sizes)


def _kernel_takes(kernel: str, query: Any, key: Any, value: Any, mask: Any, grouped: bool) -> bool:
    """True if this kernel is switched on and takes the operands."""
    operands = (query, key, value)
    if kernel == "math" or not _ENABLED[kernel]():  # plain operators take anything
        return bool(_ENABLED[kernel]())
    if any(
        type(t) not in VIRTUAL or t.dim() != 4 or not t.numel() or t.stride(-1) != 1
        for t in operands
    ):
        return False
    device = query._block.device
    dtype = query.dtype
    many = query.shape[1]
    few = key.shape[1]
    return bool(
        all(t._block.device is device and t.dtype is dtype for t in operands)
        and dtype in (torch.float32, torch.float16, torch.bfloat16)
        and query.shape[0] == key.shape[0]
        and (many == few or (grouped and not many % few))
        and key.shape[:3] == value.shape[:3]
        and query.shape[3] == key.shape[3]
        and (mask is None or (type(mask) in VIRTUAL and mask._block.device is device))
        and _kernel_suits(kernel, query, key, value, mask, grouped and many != few)
    )


def _chosen_kernel(query: Any, key: Any, value: Any, mask: Any, grouped: bool) -> str | None:
    """The name of the kernel that CUDA chooses; None if no kernel that is on takes the operands.

    cuDNN's comes first on a GPU of the H200's kind, unless `sdpa_kernel` says in which order they
    are asked.
    """
    order = _order_of_kernels()
    if order == _USUAL_ORDER:
        model = query._block.device.gpu.model
        if model is None or model.capability[0] in (9, 10):
            order = [3, *(number for number in order if number != 3)]
    for number in order:
        kernel = _CHOICES.get(number, "")
        if kernel and _kernel_takes(kernel, query, key, value, mask, grouped):
            return kernel
    return None


def attend(
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Any:
    """Run attention with the kernel that CUDA chooses, and return its result.

    `original` is torch's own function; it runs where the query is not on the device, where
    operators are being recorded, and where no fused kernel is chosen. Raises RuntimeError, as CUDA
    does, if no kernel takes the operands or the mask is on another device.
    """
    # Under autocast: cast the operands, then begin again without it.
    if type(query) in VIRTUAL and torch.is_autocast_enabled("cuda"):
        lower = functools.partial(cast_by_autocast, torch.get_autocast_dtype("cuda"))
        with torch.autocast("cuda", enabled=False):
            query, key, value, attn_mask = map(lower, (query, key, value, attn_mask))
            return attend(original, query, key, value, attn_mask, dropout_p, is_causal, **named)
    # A fused kernel, if one takes the operands.
    if type(query) in VIRTUAL and not is_recording_operators():
        grouped = bool(named.get("enable_gqa"))
        kernel = _chosen_kernel(query, key, value, attn_mask, grouped)
        if kernel in KERNELS:
            padded = kernel == "flash" and query.shape[3] % 8
            function = PaddedAttention if padded else KERNELS[kernel]
            settings = (kernel, dropout_p, is_causal, named.get("scale"), grouped)
            return function.apply(query, key, value, attn_mask, settings)
        if kernel is None and not are_on_several_devices(query, key, value):
            if any(enabled() for enabled in _ENABLED.values()):
                raise RuntimeError("No available kernel. Aborting execution.")
            raise RuntimeError(
                "No viable backend for scaled_dot_product_attention was found. "
                "This is likely due to turning off both the math kernel and the fused kernels."
            )
    # Plain operators, or the host's own attention.
    together = type(query) in VIRTUAL and not are_on_several_devices(query, key, value)
    if together and query.dim() == 4 and are_on_several_devices(query, attn_mask):
        method = "wrapper_CUDA___scaled_dot_product_efficient_attention"
        raise argument_elsewhere_error("attn_bias", label_of(attn_mask), label_of(query), method)
    return call_in_cuda_words(original, query, key, value, attn_mask, dropout_p, is_causal, **named)


def can_use_kernel(kernel: str, original: Any, params: Any, debug: bool = False) -> bool:
    """The answer of `torch.backends.cuda.can_use_flash_attention` and its kin."""
    operands = (params.query, params.key, params.value)
    if type(operands[0]) not in VIRTUAL:
        return bool(original(params, debug))
    return _kernel_takes(kernel, *operands, params.attn_mask, params.enable_gqa)


def number_of_chosen_kernel(
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """torch's number of the kernel that CUDA chooses; -1 if none takes the operands."""
    if type(query) not in VIRTUAL:
        named = {"scale": scale, "enable_gqa": enable_gqa}
        return int(original(query, key, value, attn_mask, dropout_p, is_causal, **named))
    chosen = _chosen_kernel(query, key, value, attn_mask, enable_gqa)
    return next((number for number, name in _CHOICES.items() if name == chosen), -1)
