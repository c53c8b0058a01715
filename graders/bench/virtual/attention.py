"""What does attention keep for its backward on CUDA? Never the matrix of weights: the kernels compute it again."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional
from torch.autograd import grad as _grad  # the unwatched one: its pass is part of the student's

from graders.bench.virtual.dispatch import allocate, shut, write
from graders.bench.virtual.tensor import VIRTUAL, wrap

_host_attention: Final[Any] = vars(torch._C._nn)["scaled_dot_product_attention"]
_LONGEST: Final = 256  # heads of the flash kernel
_ROW: Final = 32  # the kernel pads its sums of exponentials to so many queries


class FusedAttention(torch.autograd.Function):
    """The memory-efficient kernel in single precision or with a mask, the flash kernel in half precision without one.

    The CPU's own graph inside computes the gradients; what CUDA would keep alive is kept here.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, settings: Any) -> Any:
        place = query._block.place
        needs = any(ctx.needs_input_grad)
        inner = [t._inner.detach().requires_grad_(t.requires_grad) for t in (query, key, value)]
        bias = None if mask is None else mask._inner
        dropout, causal, scale = settings
        if causal and bias is not None:  # the CPU takes one or the other
            past = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
            bias = bias & past if bias.dtype is torch.bool else bias.masked_fill(~past, float("-inf"))
            causal = False
        with torch.enable_grad() if needs else torch.no_grad():
            out = _host_attention(*inner, bias, dropout, causal, scale=scale)
        # Queries before heads, as the kernel writes them.
        plain = out.detach().transpose(1, 2).contiguous().transpose(1, 2)
        flash = plain.dtype is not torch.float32 and mask is None
        padded = -(-query.shape[3] // 8) * 8 if flash else query.shape[3]
        result = wrap(plain, allocate(place, plain.nbytes // query.shape[3] * padded))
        write("aten._scaled_dot_product_efficient_attention.default", place, plain.nbytes)
        if needs:
            rows = query.shape[2] if flash else -(-query.shape[2] // _ROW) * _ROW
            ctx.sums = allocate(place, query.shape[0] * query.shape[1] * rows * 4)
            ctx.dice = [allocate(place, 16), allocate(place, 8)] if flash else []
            ctx.bias = allocate(place, mask.numel() * 4) if mask is not None and mask.dtype is torch.bool else None
            ctx.inner, ctx.out, ctx.place = inner, out, place
            kept = [result] if mask is None or mask.dtype is torch.bool else [result, mask]
            if padded == query.shape[3]:
                kept += [query, key, value]
            else:  # the flash kernel takes heads in eights: padded copies are made, and kept
                ctx.copies = [allocate(place, t.nbytes // t.shape[3] * padded) for t in (query, key, value)]
            ctx.save_for_backward(*kept)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        place = ctx.place
        if place.shut:
            raise shut(place)
        wanted = [t for t in ctx.inner if t.requires_grad]
        found = iter(_grad(ctx.out, wanted, gradient._inner, retain_graph=True))
        results: list[Any] = []
        for tensor in ctx.inner:
            each = next(found) if tensor.requires_grad else None
            results.append(None if each is None else wrap(each, allocate(place, each.nbytes)))
        name = "aten._scaled_dot_product_efficient_attention_backward.default"
        write(name, place, sum(r.nbytes for r in results if r is not None))
        return (*results, None, None)


_efficient: Final[Any] = FusedAttention.apply


def _fits(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether one of the fused kernels is the one CUDA chooses."""
    operands = (query, key, value)
    if any(type(t) not in VIRTUAL or t.dim() != 4 or not t.numel() or t.stride(-1) != 1 for t in operands):
        return False
    place, dtype = query._block.place, query.dtype
    if any(t._block.place is not place or t.dtype is not dtype for t in operands):
        return False
    single = dtype is torch.float32
    if not single and dtype not in (torch.float16, torch.bfloat16):
        return False
    if (single or mask is not None) and any(t.shape[-1] % (4 if single else 8) for t in operands):
        return False
    if not single and mask is None and (query.shape[3] > _LONGEST or query.shape[3] != value.shape[3]):
        return False
    if query.shape[:2] != key.shape[:2] or key.shape[:3] != value.shape[:3] or query.shape[3] != key.shape[3]:
        return False
    if mask is not None and (type(mask) not in VIRTUAL or mask._block.place is not place or mask.requires_grad):
        return False
    if torch.is_autocast_enabled("cuda"):
        return False
    return bool(
        torch._C._get_mem_efficient_sdp_enabled() if single or mask is not None else torch._C._get_flash_sdp_enabled()
    )


def attention(original: Any) -> Any:
    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if not enable_gqa and _fits(query, key, value, attn_mask):
            return _efficient(query, key, value, attn_mask, (dropout_p, is_causal, scale))
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return attend


def patches() -> list[tuple[Any, str, Any]]:
    made = attention(torch._C._nn.scaled_dot_product_attention)
    name = "scaled_dot_product_attention"
    return [(torch._C._nn, name, made), (torch.nn.functional, name, made)]
