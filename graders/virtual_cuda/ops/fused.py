"""Functions that CUDA runs as one kernel: attention, norms, losses, recurrent layers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import torch
import torch.nn.functional
from torch import nn
from torch.autograd import grad as _grad

from virtual_cuda.device.cuda_errors import (
    DTYPE_NAMES,
    argument_elsewhere_error,
    label_of,
    type_name,
    warn,
    without_lazy,
)
from virtual_cuda.device.hidden import conceal, reveal
from virtual_cuda.device.state import Block, OpenDevice
from virtual_cuda.device.tensor import VIRTUAL, refresh, wrap
from virtual_cuda.internals import COMPOSITE, find_internal, nn_functions, torch_functions
from virtual_cuda.lacking import Lacking
from virtual_cuda.ops import placement
from virtual_cuda.ops.autocast import cast
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    require_open_device,
    work_of,
    write,
)
from virtual_cuda.ops.elementwise import HALF, SLOW
from virtual_cuda.ops.placement import compare, on_host
from virtual_cuda.ops.registry import ALLOWED, casts, operator
from virtual_cuda.patching import Opening, Patch, Stage, around, torch_patches

aten: Final = torch.ops.aten


def _wrap_each(tensors: Any, device: OpenDevice) -> list[Any]:
    """The tensors on the device, each in a block of its own; None stays None."""
    return [None if t is None else wrap(t, allocate(device, t.nbytes)) for t in tensors]


_DelayedError: Final = find_internal("torch._C._functions.DelayedError", "a second gradient")
_tracing_state: Final = find_internal("torch._C._get_tracing_state", otherwise=lambda: None)


def _held(device: OpenDevice, *sizes: int) -> list[Any]:
    """What a kernel keeps for backward, in bytes: for `save_for_backward`, so that autograd frees it with the rest."""
    return [wrap(torch.empty(0), allocate(device, size)) for size in sizes]


def _refusing(gradients: list[Any], text: str) -> list[Any]:
    """Gradients of a function that has no second ones: with `create_graph` they have a graph, which refuses."""
    if not torch.is_grad_enabled():
        return gradients
    given = [g for g in gradients if g is not None]
    refuse = _DelayedError(text.encode(), len(given))
    made = iter(refuse(*(g.requires_grad_() for g in given)) if given else ())
    return [None if g is None else next(made) for g in gradients]


def _mixed(*tensors: Any) -> bool:
    given = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return any(type(t) in VIRTUAL for t in given) and len({t.device for t in given}) > 1


def _in_cuda_words(original: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that compares devices in C++, which calls the virtual one by another name."""
    try:
        return original(*args, **kwargs)
    except RuntimeError as error:
        raise without_lazy(error) or error from None


# ---- normalisation, losses -------------------------------------------------------------------------------------------


class FusedRmsNorm(torch.autograd.Function):
    """One kernel, which keeps the reciprocal of the root and not the squares."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, shape: list[int], eps: float | None) -> Any:
        device = input._block.device
        x = input._inner
        out = torch.rms_norm(x, shape, None if weight is None else weight._inner, eps)
        wide = x.to(torch.float64 if x.dtype is torch.float64 else torch.float32)
        dims = list(range(-len(shape), 0))
        small = torch.finfo(wide.dtype).eps if eps is None else eps
        rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + small)
        kept, result = _wrap_each((rstd, out), device)
        ctx.save_for_backward(input, weight, kept)
        ctx.dims = dims
        ctx.eps = small
        write("aten._fused_rms_norm.default", device, out.nbytes, work_of(out, (x,)))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        input, weight, kept = ctx.saved_tensors
        device = require_open_device(input)
        if (
            torch.is_grad_enabled()
        ):  # with `create_graph`: made of operators, each with its own gradient
            r = torch.rsqrt(input.to(kept.dtype).square().mean(ctx.dims, keepdim=True) + ctx.eps)
            return (*FusedRmsNorm._gradients(ctx, gradient, input, weight, r), None, None)
        inner = (None if t is None else t._inner for t in (gradient, input, weight, kept))
        found = FusedRmsNorm._gradients(ctx, *inner)
        nbytes = sum(t.nbytes for t in found if t is not None)
        write(
            "aten._fused_rms_norm_backward.default",
            device,
            nbytes,
            work_of(found[0], (gradient._inner,)),
        )
        return (*_wrap_each(found, device), None, None)

    @staticmethod
    def _gradients(ctx: Any, g: Any, x: Any, weight: Any, r: Any) -> list[Any]:
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


def _captured() -> bool:
    """Whether operators are written down, by a CUDA graph or by `torch.jit.trace`: nothing is fused then."""
    return torch.cuda.is_current_stream_capturing() or _tracing_state() is not None


def _rms_norm(
    original: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> Any:
    if weight is not None and _mixed(input, weight):
        raise argument_elsewhere_error(
            "weight", label_of(weight), label_of(input), "wrapper_CUDA___fused_rms_norm"
        )
    if torch.is_autocast_enabled("cuda") and casts("rms_norm"):
        input, weight = cast((input, weight), torch.float32)
    shape = list(normalized_shape)
    usual = type(input) in VIRTUAL and shape and list(input.shape[-len(shape) :]) == shape
    if usual and weight is not None:
        same = type(weight) in VIRTUAL and weight._block.device is input._block.device
        usual = same and weight.dtype is input.dtype and list(weight.shape) == shape
    if not usual or not input.is_floating_point() or input._block.device.closed or _captured():
        return original(input, normalized_shape, weight, eps)
    return _fused_rms_norm(input, weight, shape, eps)


def _eigvals(original: Any, input: Any, *, out: Any = None) -> Any:
    """Without gradients the vectors are not computed."""
    if (
        type(input) in VIRTUAL
        and out is None
        and not (input.requires_grad and torch.is_grad_enabled())
    ):
        return aten._linalg_eigvals(input)
    return original(input, out=out)


def _cross_entropy(
    original: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    *rest: Any,
    **named: Any,
) -> Any:
    """Smoothed and weighted, the mean is over the weights of the targets that count, which a mask selects."""
    out = original(input, target, weight, reduction, *rest, **named)
    smoothed = (
        weight is not None and (rest[1] if len(rest) > 1 else named.get("label_smoothing", 0.0)) > 0
    )
    if smoothed and reduction == 1 and type(target) in VIRTUAL and not target.is_floating_point():
        placement.note("masked_select")
    return out


# ---- attention -------------------------------------------------------------------------------------------------------

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
    """The CPU's attention, whichever of CUDA's kernels are off: it has some of their switches."""
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
    """Queries before heads, as the memory-efficient kernel writes them."""
    batch, count, length, size = made.shape
    return made.new_empty((batch, length, count, size)).transpose(1, 2).copy_(made)


def _laid_out_as(made: Any, pattern: Any) -> Any:
    """As the other kernels write results: in the layout of an operand, whose heads may have another size."""
    *outer, last = torch.empty_like(pattern).stride()
    strides = [stride // pattern.shape[3] * made.shape[3] for stride in outer]
    return made.new_empty_strided(made.shape, [*strides, last]).copy_(made)


class FusedAttention(torch.autograd.Function):
    """One of CUDA's three fused kernels.

    The CPU's own graph inside computes the gradients; what CUDA would keep alive is kept here.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, settings: Any) -> Any:
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
            if dtype in SLOW:
                operands = [t.float() for t in inner]
                bias = bias if bias is None or bias.dtype is torch.bool else bias.float()
            out = _attend_on_host(
                *operands, bias, dropout, causal, scale=scale, enable_gqa=grouped
            ).to(dtype)
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
        write("aten._scaled_dot_product_efficient_attention.default", device, plain.nbytes, work)
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
            ctx.save_for_backward(*kept, *_held(device, *sizes))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        inner, out, device, kernel = reveal(ctx.held)
        if device.closed:
            raise closed_device_error(device)
        wanted = [t for t in inner if t.requires_grad]
        found = iter(_grad(out, wanted, gradient._inner, retain_graph=True))
        made = [next(found) if t.requires_grad else None for t in inner]
        for i, (grad, operand) in enumerate(zip(made[:3], inner, strict=False)):
            if grad is not None and kernel == "efficient":
                made[i] = _heads_inside(grad)
            elif grad is not None:
                contiguous = (
                    kernel == "flash" and operand.shape[3] % 8 > 0
                )  # what is left of a padded one
                made[i] = grad.contiguous() if contiguous else _laid_out_as(grad, operand.detach())
        results = _wrap_each(made, device)
        name = "aten._scaled_dot_product_efficient_attention_backward.default"
        write(name, device, sum(r.nbytes for r in results if r is not None), work_of(None, inner))
        refusal = f"derivative for aten::_scaled_dot_product_{kernel}_attention_backward is not implemented"
        return (*_refusing(results, refusal), *[None] * (5 - len(results)))


class FlashAttention(FusedAttention):
    """The same under the name of the flash kernel."""


class PaddedAttention(FusedAttention):
    """The flash kernel with heads that were padded: what is left of its result."""


class CudnnAttention(FusedAttention):
    """The same under the name of cuDNN's kernel."""


for _cls, _name in (
    (FusedAttention, "Efficient"),
    (FlashAttention, "Flash"),
    (CudnnAttention, "Cudnn"),
):
    _cls._backward_cls.__name__ = f"ScaledDotProduct{_name}AttentionBackward0"
PaddedAttention._backward_cls.__name__ = "SliceBackward0"

_KERNELS: Final[dict[str, Any]] = {
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


def _suits(kernel: str, query: Any, key: Any, value: Any, mask: Any, grouped: bool) -> bool:
    """Whether a kernel takes operands that one of them takes."""
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


def _takes(kernel: str, query: Any, key: Any, value: Any, mask: Any, grouped: bool) -> bool:
    """Whether a kernel is on and takes the operands."""
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
        and _suits(kernel, query, key, value, mask, grouped and many != few)
    )


def _chosen(query: Any, key: Any, value: Any, mask: Any, grouped: bool) -> str | None:
    """The kernel that CUDA chooses, if one that is on takes the operands.

    cuDNN's comes first on a GPU of the H200's kind, unless `sdpa_kernel` says in which order they are asked.
    """
    order = _order_of_kernels()
    if order == _USUAL_ORDER:
        model = query._block.device.gpu.model
        if model is None or model.capability[0] in (9, 10):
            order = [3, *(number for number in order if number != 3)]
    for number in order:
        kernel = _CHOICES.get(number, "")
        if kernel and _takes(kernel, query, key, value, mask, grouped):
            return kernel
    return None


def _lowered(dtype: torch.dtype, tensor: Any) -> Any:
    """As autocast casts the operands of a function that it runs in lower precision."""
    eligible = (
        type(tensor) in VIRTUAL and tensor.is_floating_point() and tensor.dtype is not torch.float64
    )
    return tensor.to(dtype) if eligible else tensor


def _attention(
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Any:
    """Runs the kernel that CUDA chooses. Raises what CUDA raises if none takes the operands, or a mask is elsewhere."""
    if type(query) in VIRTUAL and torch.is_autocast_enabled("cuda"):
        lower = functools.partial(_lowered, torch.get_autocast_dtype("cuda"))
        with torch.autocast("cuda", enabled=False):
            query, key, value, attn_mask = map(lower, (query, key, value, attn_mask))
            return _attention(original, query, key, value, attn_mask, dropout_p, is_causal, **named)
    if type(query) in VIRTUAL and not _captured():
        grouped = bool(named.get("enable_gqa"))
        kernel = _chosen(query, key, value, attn_mask, grouped)
        if kernel in _KERNELS:
            padded = kernel == "flash" and query.shape[3] % 8
            function = PaddedAttention if padded else _KERNELS[kernel]
            settings = (kernel, dropout_p, is_causal, named.get("scale"), grouped)
            return function.apply(query, key, value, attn_mask, settings)
        if kernel is None and not _mixed(query, key, value):
            if any(enabled() for enabled in _ENABLED.values()):
                raise RuntimeError("No available kernel. Aborting execution.")
            raise RuntimeError(
                "No viable backend for scaled_dot_product_attention was found. "
                "This is likely due to turning off both the math kernel and the fused kernels."
            )
    together = type(query) in VIRTUAL and not _mixed(query, key, value)
    if together and query.dim() == 4 and _mixed(query, attn_mask):
        method = "wrapper_CUDA___scaled_dot_product_efficient_attention"
        raise argument_elsewhere_error("attn_bias", label_of(attn_mask), label_of(query), method)
    return _in_cuda_words(original, query, key, value, attn_mask, dropout_p, is_causal, **named)


def _can_use(kernel: str, original: Any, params: Any, debug: bool = False) -> bool:
    """`torch.backends.cuda.can_use_flash_attention` and its kin."""
    operands = (params.query, params.key, params.value)
    if type(operands[0]) not in VIRTUAL:
        return bool(original(params, debug))
    return _takes(kernel, *operands, params.attn_mask, params.enable_gqa)


def _sdp_choice(
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
    """The number of the kernel, -1 if none is left."""
    if type(query) not in VIRTUAL:
        named = {"scale": scale, "enable_gqa": enable_gqa}
        return int(original(query, key, value, attn_mask, dropout_p, is_causal, **named))
    chosen = _chosen(query, key, value, attn_mask, enable_gqa)
    return next((number for number, name in _CHOICES.items() if name == chosen), -1)


def _one_hot(original: Any, tensor: Any, num_classes: int = -1) -> Any:
    """On CUDA the range of the classes is not checked beforehand, which would wait; `scatter_` asserts."""
    if type(tensor) not in VIRTUAL or tensor.dtype is not torch.int64 or tensor.numel() == 0:
        return original(tensor, num_classes)
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    blank = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return blank.scatter_(-1, tensor.unsqueeze(-1), 1)


# ---- recurrent layers and sequences ----------------------------------------------------------------------------------


def _lstm_gates(x: Any, h: Any, c: Any, *biases: Any) -> tuple[Any, ...]:
    i, f, g, o = sum(biases, x + h).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_gates(x: Any, h: Any, state: Any, *biases: Any) -> tuple[Any, ...]:
    if biases:
        x = x + biases[0]
        h = h + biases[1]
    (r, z, n), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
    n = (n + (r + hr).sigmoid() * hn).tanh()
    return (n + (z + hz).sigmoid() * (state - n),)


_GATES: Final = {
    "lstm": (_lstm_gates, 4),
    "gru": (_gru_gates, 5),
}  # and what is kept for backward, in units


class FusedCell(torch.autograd.Function):
    """What a recurrent cell does after its two products: one kernel, forward and backward."""

    @staticmethod
    def forward(ctx: Any, kind: str, *tensors: Any) -> Any:
        gates, kept = _GATES[kind]
        device = tensors[0]._block.device
        inner = [t._inner for t in tensors]
        outs = gates(*inner)
        results = _wrap_each(outs, device)
        nbytes = outs[0].nbytes * kept
        write(
            f"aten._thnn_fused_{kind}_cell.default",
            device,
            nbytes + sum(o.nbytes for o in outs),
            work_of(outs, inner),
        )
        ctx.kind, ctx.device = kind, conceal(device)
        kept_too = (*results[1:], *_held(device, nbytes)) if any(ctx.needs_input_grad) else ()
        ctx.given = len(tensors)
        ctx.save_for_backward(*tensors, *kept_too)
        return results[0] if len(results) == 1 else tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gates = _GATES[ctx.kind][0]
        tensors = ctx.saved_tensors[: ctx.given]
        device = reveal(ctx.device)
        if device.closed:
            raise closed_device_error(device)
        twice = (
            torch.is_grad_enabled()
        )  # the gradients are to be differentiated: computed step by step, as on CUDA
        given = (
            tensors
            if twice
            else [t._inner.detach().requires_grad_(t.requires_grad) for t in tensors]
        )
        with torch.enable_grad():
            pairs = [
                (out, g) for out, g in zip(gates(*given), gradients, strict=True) if g is not None
            ]
        wanted = [t for t in given if t.requires_grad]
        found: Any = _grad(
            [out for out, _ in pairs],
            wanted,
            [g if twice else g._inner for _, g in pairs],
            create_graph=twice,
        )
        if not twice:
            found = _wrap_each(found, device)
            name = f"aten._thnn_fused_{ctx.kind}_cell_backward_impl.default"
            write(name, device, sum(f.nbytes for f in found), work_of(None, given))
        each = iter(found)
        return (None, *(next(each) if t.requires_grad else None for t in given))


class FusedLstmCell(FusedCell):
    """The same under the name of the kernel of an LSTM's cell."""


class FusedGruCell(FusedCell):
    """The same under the name of the kernel of a GRU's cell."""


_CELLS: Final[dict[str, Any]] = {"lstm": FusedLstmCell, "gru": FusedGruCell}
for _kind, _cell_class in _CELLS.items():
    _cell_class._backward_cls.__name__ = f"ThnnFused{_kind.title()}CellBackward0"


def _cell(kind: str, state: str, original: Any, input: Any, hidden: Any, *weights: Any) -> Any:
    """A recurrent cell on CUDA: two plain products, then one fused kernel."""
    states = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
    biases = [b for b in weights[2:] if b is not None]
    operands = (input, *states, *weights[:2], *biases)
    if type(input) in VIRTUAL and _mixed(*operands):
        for rows, weight in zip((input, states[0]), weights, strict=False):
            compare(
                "wrapper_CUDA_mm",
                [("self", "self"), ("mat2", "mat2")],
                {"self": rows, "mat2": weight},
            )
        given = {"input_gates": input, "hidden_gates": states[0], state: states[-1]}
        given |= dict(zip(("input_bias", "hidden_bias"), weights[2:], strict=False))
        compare(f"wrapper_CUDA___thnn_fused_{kind}_cell", [(name, name) for name in given], given)
    fits = (
        len(weights) == 4
        and len(biases) != 1
        and all(type(t) in VIRTUAL and t.dim() == 2 for t in operands[: -len(biases) or None])
    )
    if not fits or not input.numel() or not input.is_floating_point() or _captured():
        return original(input, hidden, *weights)
    if torch.is_autocast_enabled("cuda"):
        lower = functools.partial(_lowered, torch.get_autocast_dtype("cuda"))
        with torch.autocast("cuda", enabled=False):
            return _cell(
                kind,
                state,
                original,
                lower(input),
                [lower(s) for s in states] if len(states) > 1 else lower(hidden),
                *map(lower, weights),
            )
    products = [
        rows @ weight.t() for rows, weight in zip((input, states[0]), weights, strict=False)
    ]
    return _CELLS[kind].apply(kind, *products, states[-1], *biases)


def _ctc_loss(
    original: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The mean divides by the lengths of the targets, which CUDA takes to where the losses are."""
    if type(log_probs) in VIRTUAL and isinstance(target_lengths, torch.Tensor):
        target_lengths = target_lengths.to(log_probs.device)
    return original(log_probs, targets, input_lengths, target_lengths, *args, **kwargs)


def _pack_padded_sequence(func: Any, args: Any, kwargs: Any) -> Any:
    """The lengths are read on the host and the batch sizes stay there, whatever device the data are on."""
    data, lengths, *rest = args
    if not on_host(lengths):
        kind = type_name(lengths).rpartition(".")[2].removesuffix("Tensor")
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, "
            f"but got {lengths.dim()}D {label_of(lengths)} {kind} tensor"
        )
    device = require_open_device(data)
    packed, sizes = func(data._inner, lengths, *rest, **kwargs)
    write(str(func), device, packed.nbytes, work_of(packed, (data._inner,)))
    return wrap(packed, Block(device, packed.untyped_storage().nbytes())), sizes


operator("_pack_padded_sequence", plan=_pack_padded_sequence)


_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CAST: Final = (torch.float16, torch.bfloat16, torch.float32)  # by autocast
_FLATTENED: Final = (
    torch.float16,
    torch.float32,
    torch.float64,
)  # torch's list of cuDNN's dtypes lacks bfloat16
# Parts of the reserve that hold, per step and per hidden unit, what backward needs: the gates, and the cells.
_PARTS: Final = {"lstm": (4, 1), "gru": (6,), "rnn_tanh": (1,), "rnn_relu": (1,)}
_SCATTERED: Final = (
    "RNN module weights are not part of single contiguous chunk of memory. This means they need to be compacted "
    "at every call, possibly greatly increasing memory usage. To compact weights again call flatten_parameters()."
)


_ONCE: Final = (
    "Double backwards is not supported for CuDNN RNNs due to limitations in the CuDNN API. To run double backwards, "
    "please disable the CuDNN backend temporarily while running the forward pass of your RNN. For example: \n"
    "with torch.backends.cudnn.flags(enabled=False):\n    output = model(inputs)"
)


def _place(tensors: list[Any], casting: bool = False) -> OpenDevice | None:
    """The one device all of these are on with one dtype cuDNN knows, if it is so: after they were cast to half."""
    first = tensors[0]
    if type(first) not in VIRTUAL or first.dtype not in _DTYPES:
        return None
    device: OpenDevice = first._block.device
    same = all(type(t) in VIRTUAL and t._block.device is device for t in tensors)
    dtypes = {torch.float16 if casting and t.dtype in _CAST else t.dtype for t in tensors}
    return device if same and len(dtypes) == 1 else None


class CudnnRnn(torch.autograd.Function):
    """One cuDNN call: the CPU's own graph inside computes the gradients; what CUDA would keep alive is kept here."""

    @staticmethod
    def forward(
        ctx: Any, kind: str, settings: Any, device: OpenDevice, count: int, data: Any, *rest: Any
    ) -> Any:
        layers, dropout, train, bidirectional, biases, sizes, batch_first = settings
        states = rest[:count]
        weights = rest[count:]
        tensors = (data, *rest)
        inner = [t._inner.detach().requires_grad_(t.requires_grad) for t in tensors]
        function = getattr(torch_functions, kind)
        with torch.enable_grad() if any(ctx.needs_input_grad) else torch.no_grad():
            given = [t.float() for t in inner] if data.dtype in SLOW else inner
            state = tuple(given[1 : 1 + count]) if kind == "lstm" else given[1]
            tail = (given[1 + count :], biases, layers, dropout, train, bidirectional)
            if sizes is not None:
                outs = function(given[0], sizes, state, *tail)
            else:  # cuDNN itself has the steps first, and returns a view
                outs = _steps_first(
                    function(_steps_first(given, batch_first)[0], state, *tail, False), batch_first
                )
            outs = [out.to(data.dtype) for out in outs]
        shared = all(w._block is weights[0]._block for w in weights)
        held = _held(device, *([] if shared else [sum(w.nbytes for w in weights)]))
        if train:
            steps = data.shape[0] * data.shape[1] if sizes is None else len(sizes) * int(sizes[0])
            hidden = states[-1].shape[2]
            units = steps * hidden * data.element_size() * (2 if bidirectional else 1)
            # cuDNN keeps `units` bytes per layer for every part, each part rounded up to 32.
            parts = [count * layers * units for count in _PARTS[kind]] + [(layers - 1) * units]
            held += _held(device, 256 + sum(-(-part // 32) * 32 for part in parts))
        wrapped = _wrap_each([out.detach() for out in outs], device)
        work = work_of(_steps_first(outs, batch_first), _steps_first(inner, batch_first))
        write("aten._cudnn_rnn.default", device, sum(out.nbytes for out in outs), work)
        if train and dropout > 0:
            placement.note("dropout state")
        ctx.train, ctx.held, ctx.weights = train, conceal((device, inner, outs, work)), len(weights)
        ctx.save_for_backward(*tensors, wrapped[0], *held)
        return tuple(wrapped)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        if not ctx.train:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        device, inner, outs, work = reveal(ctx.held)
        if device.closed:
            raise closed_device_error(device)
        wanted = [t for t in inner if t.requires_grad]
        pairs = [
            (out, g._inner)
            for out, g in zip(outs, gradients, strict=True)
            if g is not None and out.requires_grad
        ]
        found = _grad(
            [out for out, _ in pairs],
            wanted,
            [g for _, g in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        given = (
            torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)
        )
        computed = [next(given) if t.requires_grad else None for t in inner]
        count = len(computed) - ctx.weights
        results = [*_wrap_each(computed[:count], device), *_in_one_block(computed[count:], device)]
        nbytes = sum(r.nbytes for r in results if r is not None)
        write("aten._cudnn_rnn_backward.default", device, nbytes, work)
        return (None, None, None, None, *_refusing(results, _ONCE))


def _steps_first(tensors: Sequence[Any], batch_first: bool) -> Sequence[Any]:
    """The tensors with the first two dimensions of the first one exchanged, if the batch is its first."""
    return [tensors[0].transpose(0, 1), *tensors[1:]] if batch_first else tensors


def _in_one_block(gradients: list[Any], device: OpenDevice) -> list[Any]:
    """cuDNN writes the gradients of all weights into one buffer, as the weights lie in one."""
    made = [g for g in gradients if g is not None]
    if not made:
        return gradients
    flat = torch.cat([g.reshape(-1) for g in made])
    block = allocate(device, flat.nbytes)
    pieces = iter(flat.split([g.numel() for g in made]))
    return [None if g is None else wrap(next(pieces).view(g.shape), block) for g in gradients]


_apply: Final[Any] = CudnnRnn.apply
CudnnRnn._backward_cls.__name__ = "CudnnRnnBackward0"  # as torch numbers its own


def _compare_dtypes(data: Any, states: Sequence[Any], weight: Any) -> None:
    for state in states:
        if (
            data.dtype is weight.dtype
            and state.dtype is not data.dtype
            and {data.dtype, state.dtype} <= DTYPE_NAMES.keys()
        ):
            raise RuntimeError(
                "Input and hidden tensors are not the same dtype, found input tensor with "
                f"{DTYPE_NAMES[data.dtype]} and hidden tensor with {DTYPE_NAMES[state.dtype]}"
            )


def _layer(kind: str, original: Any, data: Any, *args: Any) -> Any:
    """`torch._VF.lstm` and its kin, for packed and for padded input."""
    packed = isinstance(args[0] if kind == "lstm" else args[1], torch.Tensor)
    sizes = args[0] if packed else None
    state, weights, biases, layers, dropout, train, bidirectional = (
        args[1:8] if packed else args[:7]
    )
    states = tuple(state) if kind == "lstm" else (state,)
    given = [data, *states, *weights]
    casting = torch.is_autocast_enabled("cuda")
    # Whatever autocast was asked for, cuDNN's layers are cast to half.
    device = _place(given, casting) if isinstance(data, torch.Tensor) else None
    if device is None or not data.numel() or not torch.backends.cudnn.enabled or _captured():
        if device is None and not casting and all(type(t) in VIRTUAL for t in given):
            _compare_dtypes(data, states, weights[0])
        return original(data, *args)
    if packed and type(sizes) in VIRTUAL:
        raise RuntimeError(f"batch_sizes tensor should be on CPU, but got {label_of(sizes)}")
    if casting:
        data, *rest = (cast(t, torch.float16) for t in given)
        states, weights = tuple(rest[: len(states)]), rest[len(states) :]
    elif not all(w._block is weights[0]._block for w in weights):
        warn(_SCATTERED)
    settings = (layers, dropout, train, bidirectional, biases, sizes, not packed and args[7])
    return _apply(kind, settings, device, len(states), data, *states, *weights)


def _by_name(kind: str, op: Any, *args: Any) -> Any:
    # C++'s own composite; `decompose` takes one written in Python where torch has imported it.
    return _layer(kind, functools.partial(op._op_dk, COMPOSITE), *args)


def register(library: Any) -> None:
    """Recurrent layers that are called as `torch.gru` or `torch.ops.aten.gru`."""
    for kind in _PARTS:
        for overload in ("data", "input"):
            kernel = functools.partial(_by_name, kind, getattr(getattr(aten, kind), overload))
            library.impl(f"{kind}.{overload}", kernel, "AutogradLazy")


def _flatten_parameters(self: Any) -> None:
    """`RNNBase.flatten_parameters`: the parameters become views of one block, matrices first."""
    weights = self._flat_weights
    if len(weights) != len(self._flat_weights_names) or not weights:
        return
    device = _place(weights) if all(isinstance(w, torch.Tensor) for w in weights) else None
    if device is None or weights[0].dtype not in _FLATTENED or not torch.backends.cudnn.enabled:
        return
    if len({w.data_ptr() for w in weights}) != len(weights):
        return
    flat = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype)
    block = allocate(device, flat.nbytes)
    matrices_first = sorted(weights, key=lambda w: w.dim() == 1)
    for weight, piece in zip(
        matrices_first, flat.split([w.numel() for w in matrices_first]), strict=True
    ):
        weight._inner = piece.view(weight.shape).copy_(weight._inner)
        weight._block = block
        refresh(weight)


# ---- Fourier transforms ----------------------------------------------------------------------------------------------

_WIDER: Final = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_KINDS: Final = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_TRANSFORMS: Final = [f"{kind}{dims}" for kind in _KINDS for dims in ("", "2", "n")]


def _half_transform(name: str, original: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The CPU has no Fourier transforms in half precision: computed in single precision."""
    if type(input) not in VIRTUAL or input.dtype not in _WIDER or torch.is_autocast_enabled("cuda"):
        return original(input, *args, **kwargs)
    made = original(input.to(_WIDER[input.dtype]), *args, **kwargs)
    lengths = args[0] if args else kwargs.get("n", kwargs.get("s"))
    lengths = [lengths] if isinstance(lengths, int) else lengths
    count = {"2": 2, "n": input.dim() if lengths is None else len(lengths)}.get(name[-1], 1)
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = (
        list(range(-count, 0)) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    )
    sizes = [made.size(dim) for dim in dims]
    if (
        dims and name.lstrip("i").startswith(("rfft", "hfft")) and made.is_complex()
    ):  # half of the result is left out
        sizes[-1] = input.size(dims[-1]) if lengths is None or lengths[-1] == -1 else lengths[-1]
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of{sizes}"
        )
    return made.to(torch.complex32 if made.is_complex() else torch.float16)


def _by_stride(strides: Sequence[int], dims: Iterable[int]) -> list[int]:
    return sorted(dims, key=lambda dim: -strides[dim])


def _transformed(sizes: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    """The strides that one call of cuFFT gives its result: batches in the input's order, then the transformed ones."""
    made = [0] * len(sizes)
    step = 1
    batches = _by_stride(strides, (dim for dim in range(len(sizes)) if dim not in dims))
    for dim in reversed([*batches, *dims]):
        made[dim] = step
        step *= sizes[dim]
    return made


def _complex_strides(
    sizes: Sequence[int], strides: Sequence[int], dims: Sequence[int]
) -> Sequence[int]:
    """The strides after a complex transform, which cuFFT does three dimensions at a time."""
    left = list(dims)
    while left:
        left = _by_stride(strides, left)
        strides = _transformed(sizes, strides, left[-3:])
        del left[-3:]
    return strides


def _fft_strides(kind: str, given: Any, dims: Sequence[int], made: Any) -> Sequence[int]:
    dims = [dim % given.dim() for dim in dims]
    strides = given.stride()
    if kind == "_fft_c2c":
        return _complex_strides(made.shape, strides, dims)
    if kind == "_fft_c2r":  # of a copy, as cuFFT overwrites what it is given
        strides = torch.empty(given.shape, device="meta").stride()
    if len(dims) <= 3 and dims[:2] != [0, 1]:
        return _transformed(made.shape, strides, dims)
    if kind == "_fft_c2r":
        return _transformed(
            made.shape, _complex_strides(given.shape, given.stride(), dims[:-1]), dims[-1:]
        )
    return _complex_strides(made.shape, _transformed(made.shape, strides, dims[-1:]), dims[:-1])


def _fft_output(kind: str, inner: Any, kwargs: Any, out: Any) -> Any:
    """The results in the order in which cuFFT leaves them; the CPU's libraries have others."""
    given, dims = inner[:2]
    strides = _fft_strides(kind, given, dims, out) if dims else out.stride()
    return (
        out
        if out.stride() == tuple(strides)
        else out.new_empty_strided(out.shape, strides).copy_(out)
    )


for _name in ("_fft_c2c", "_fft_c2r", "_fft_r2c"):
    operator(_name, output=functools.partial(_fft_output, _name))


# ---- optimizers ------------------------------------------------------------------------------------------------------


def _fused_step(func: Any, /, *lists: Any, **named: Any) -> None:
    """A step, in single precision where something is narrower: some of the CPU's own kernels change no half then."""
    wide = [
        [tensor.float() if tensor.dtype in HALF else tensor for tensor in each] for each in lists
    ]
    func(*wide, **named)
    for tensor, stepped in zip(chain(*lists), chain(*wide), strict=True):
        if tensor is not stepped:
            tensor.copy_(stepped)


def _learning_rate_anywhere(call: placement.OperatorCall) -> Any:
    """A learning rate on the host is read there, whatever its shape."""
    placement.elementwise(call.func, {**call.given, "lr": None})
    return ALLOWED


for _name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
    for _func in (getattr(aten, _name).default, getattr(aten, _name).tensor_lr):
        operator(
            f"{_name}.{_func._overloadname}",
            kernel=functools.partial(_fused_step, _func),
            placement=_learning_rate_anywhere,
        )


# ---- patches ---------------------------------------------------------------------------------------------------------

# Composites whose own complaints name the device as C++ knows it.
_VF: Final = find_internal("torch._VF")
_NAMING_DEVICES: Final = ("cdist", "gru", "istft", "lstm", "rnn_relu", "rnn_tanh", "stft")


def _overridable(owners: Sequence[Any], name: str, function: Any) -> list[Patch]:
    """As `around`, one function for all owners; a `__torch_function__` is asked first, and told of this function."""
    owners = [owner for owner in owners if not isinstance(owner, Lacking) and hasattr(owner, name)]
    if not owners:
        return []
    original = getattr(owners[0], name)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if torch.overrides.has_torch_function(given):
            return torch.overrides.handle_torch_function(call, given, *args, **kwargs)
        return function(original, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    return [(owner, name, call) for owner in owners]


@torch_patches()
def _patches(opening: Opening) -> list[Patch]:
    c_nn = nn_functions
    both = c_nn, nn.functional
    return [
        *_overridable(both, "one_hot", _one_hot),
        *(around(_VF, kind, functools.partial(_layer, kind)) for kind in _PARTS),
        (nn.RNNBase, "flatten_parameters", _flatten_parameters),
        around(c_nn, "cross_entropy_loss", _cross_entropy),
        around(find_internal("torch._C._linalg"), "linalg_eigvals", _eigvals),
        *_overridable((torch.linalg,), "eigvals", _eigvals),
        *_overridable((torch,), "rms_norm", _rms_norm),
        *chain.from_iterable(
            _overridable((torch.fft,), name, functools.partial(_half_transform, name))
            for name in _TRANSFORMS
        ),
        *_overridable(both, "scaled_dot_product_attention", _attention),
        *(
            around(
                torch.backends.cuda,
                f"can_use_{kernel}_attention",
                functools.partial(_can_use, kernel),
            )
            for kernel in _KERNELS
        ),
        (torch.backends.cuda, "is_flash_attention_available", lambda: True),
        around(torch, "_fused_sdp_choice", _sdp_choice),
    ]


@torch_patches(Stage.WRAP)
def _placement_patches(opening: Opening) -> list[Patch]:
    named: list[tuple[Any, str]] = [(_VF, name) for name in _NAMING_DEVICES]
    named += [(torch, "istft")]
    named += [
        (owner, name)
        for owner in (torch, torch.Tensor)
        for name in ("take_along_dim", "tensor_split")
    ]
    return [
        *(around(owner, name, _in_cuda_words) for owner, name in named),
        around(torch, "ctc_loss", _ctc_loss),
        around(_VF, "gru_cell", functools.partial(_cell, "gru", "hx")),
        around(_VF, "lstm_cell", functools.partial(_cell, "lstm", "cx")),
    ]
