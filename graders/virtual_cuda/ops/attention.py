"""Attention: CUDA's fused kernels, and which of them torch chooses.

A fused kernel does in one launch what would otherwise take several operators. The inner tensor of a
device tensor is the CPU tensor with its values.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional
from torch import nn

from virtual_cuda.device.cuda_errors import argument_elsewhere_error, label_of
from virtual_cuda.device.hidden import conceal, reveal
from virtual_cuda.device.state import VirtualDevice
from virtual_cuda.device.tensor import VIRTUAL, wrap
from virtual_cuda.internals import find_internal, is_transformed
from virtual_cuda.ops.dispatch import (
    allocate,
    closed_device_error,
    record_operation,
    require_open_device,
    work_of,
)
from virtual_cuda.ops.elementwise import is_slow_on_host
from virtual_cuda.ops.nested import RUN_ON_HOST
from virtual_cuda.ops.whole_kernels import (
    WholeKernel,
    are_on_several_devices,
    bytes_of_all,
    call_in_cuda_words,
    cast_by_autocast,
    gradients_by_host,
    graph_on_host,
    hold_memory,
    inner_leaf_of,
    is_recording_operators,
    refuse_second_gradients,
    wrap_each,
)
from virtual_cuda.ops.workspaces import Workspaces, use_workspaces

_host_attention: Final = find_internal(
    "torch._C._nn.scaled_dot_product_attention",
    otherwise=nn.functional.scaled_dot_product_attention,
)
_order_of_kernels: Final = find_internal(
    "torch._C._get_sdp_priority_order", otherwise=lambda: [1, 2, 0, 3]
)
_LARGEST_HEAD: Final = 256  # of the flash kernel and cuDNN's
_MOST_IN_GRID: Final = 65535  # of images or heads, which cuDNN counts in its grid
_HALF_OR_SINGLE: Final = (torch.float32, torch.float16, torch.bfloat16)


class _Settings(NamedTuple):
    """How attention runs, besides its operands."""

    kernel: str  # a key of KERNELS
    dropout: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool  # whether several heads of the query share one of key and value


class _KeptForBackward(NamedTuple):
    """What attention keeps for its backward pass."""

    inner: list[Any]  # query, key, value and a mask that is trained, on the host
    result: Any  # on the host, with its graph
    device: VirtualDevice
    settings: _Settings


def _round_up(number: int, multiple: int) -> int:
    """The next multiple that is not below a number."""
    return -(-number // multiple) * multiple


# ---- the computation -----------------------------------------------------------------------------


def _attend_on_host(*args: Any, **named: Any) -> Any:
    """The result of the CPU's attention, whichever of CUDA's kernels are switched off.

    The CPU's attention obeys some of their switches, so these are on for the length of the call.
    Raises what it raises.
    """
    flash = torch.backends.cuda.flash_sdp_enabled()
    math = torch.backends.cuda.math_sdp_enabled()
    if flash and math:
        return _host_attention(*args, **named)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)
    try:
        return _host_attention(*args, **named)
    finally:
        torch.backends.cuda.enable_flash_sdp(flash)
        torch.backends.cuda.enable_math_sdp(math)


def _compute_attention(settings: _Settings, operands: list[Any], bias: Any) -> Any:
    """The result of attention on inner query, key and value; `bias` is the mask or None.

    Half precision is computed in single where the CPU is slow in it. Raises what the CPU's
    attention raises.
    """
    query, key, value = operands
    dtype = query.dtype
    is_causal = settings.is_causal
    if is_causal and bias is not None:  # the CPU takes one or the other
        count_of_queries = query.shape[2]
        count_of_keys = key.shape[2]
        bias = _hide_future(bias, count_of_queries, count_of_keys)
        is_causal = False
    if is_slow_on_host(dtype):
        query = query.float()
        key = key.float()
        value = value.float()
        if bias is not None and bias.dtype is not torch.bool:
            bias = bias.float()
    result = _attend_on_host(
        query,
        key,
        value,
        bias,
        settings.dropout,
        is_causal,
        scale=settings.scale,
        enable_gqa=settings.enable_gqa,
    )
    return result.to(dtype)


def _hide_future(bias: Any, queries: int, keys: int) -> Any:
    """A mask that also hides keys which come after a query; `bias` stays as it is.

    It is a mask of booleans, or numbers that are added. `queries` and `keys` are how many there
    are.
    """
    past = torch.ones(queries, keys, dtype=torch.bool, device=bias.device).tril()
    if bias.dtype is torch.bool:
        return bias & past
    return bias.masked_fill(~past, float("-inf"))


# ---- memory --------------------------------------------------------------------------------------


def _copy_heads_inside(tensor: Any) -> Any:
    """A copy with queries before heads in memory, as the memory-efficient kernel writes it."""
    batch, heads, length, size = tensor.shape
    buffer = tensor.new_empty((batch, length, heads, size))
    return buffer.transpose(1, 2).copy_(tensor)


def _copy_laid_out_as(tensor: Any, pattern: Any) -> Any:
    """A copy in the memory layout of an operand, `pattern`, whose heads may have another size.

    The kernels other than the memory-efficient one write results so.
    """
    old_size = pattern.shape[3]
    size = tensor.shape[3]
    *outer, last = torch.empty_like(pattern).stride()
    strides = [stride // old_size * size for stride in outer]
    copy = tensor.new_empty_strided(tensor.shape, [*strides, last])
    return copy.copy_(tensor)


def _head_size_in_memory(kernel: str, size: int) -> int:
    """The size of heads as a kernel writes them: flash takes them in eights."""
    if kernel == "flash":
        return _round_up(size, 8)
    return size


def _copy_result(kernel: str, result: Any, query: Any) -> Any:
    """A copy of the result, laid out in memory as the kernel does it."""
    if kernel == "efficient":
        return _copy_heads_inside(result)
    size = query.shape[3]
    padded = _head_size_in_memory(kernel, size)
    if padded == size:
        return _copy_laid_out_as(result, query)
    *outer, _ = result.shape
    buffer = result.new_empty((*outer, padded))
    return buffer[..., :size].copy_(result)


def _copy_gradient(kernel: str, gradient: Any, operand: Any) -> Any:
    """The gradient of an operand, laid out as the kernel does it; a copy where it is not yet."""
    if kernel == "efficient":
        return _copy_heads_inside(gradient)
    if kernel == "flash" and operand.shape[3] % 8 > 0:
        return gradient.contiguous()  # what is left of a padded one
    return _copy_laid_out_as(gradient, operand)


def _sizes_for_backward(kernel: str, query: Any, key: Any, value: Any, mask: Any) -> list[int]:
    """The sizes in bytes of what a kernel keeps for backward besides operands and result."""
    is_efficient = kernel == "efficient"
    # The sums of exponentials, in single precision; this kernel pads them.
    batch, heads, rows, size = query.shape
    if is_efficient:
        rows = _round_up(rows, 32)
    sizes = [batch * heads * rows * 4]
    if not is_efficient:  # the state of random numbers
        sizes += [16, 8]
    if mask is not None and mask.dtype is torch.bool:  # as numbers
        sizes.append(mask.numel() * (4 if is_efficient else 2))
    # Padded copies of the operands.
    padded = _head_size_in_memory(kernel, size)
    if padded != size:
        for operand in (query, key, value):
            column = operand.nbytes // operand.shape[3]
            sizes.append(column * padded)
    return sizes


_SINGLE: Final = 4  # bytes of a number in single precision
_CUDNN_CONSTANT: Final = 256  # bytes that cuDNN's kernel takes besides


def _gradient_workspaces(kernel: str, query: Any, key: Any, gradient: Any) -> Workspaces:
    """The workspace of a kernel's backward pass, for inner tensors.

    The sizes of the memory-efficient kernel and of cuDNN's are those of an H200, with torch 2.11;
    the flash kernel is taken to need what cuDNN's does.
    """
    batch, heads, rows, size = query.shape
    sums = batch * heads * rows * _SINGLE
    if kernel != "efficient":
        # The gradient of the query is added up in single precision.
        return Workspaces(passing=query.numel() * _SINGLE + sums + _CUDNN_CONSTANT)
    # The gradient is copied if its heads do not lie side by side.
    copied = 0 if gradient.transpose(1, 2).is_contiguous() else gradient.nbytes
    # The products of result and gradient are there before the tiles, in which keys are taken.
    tile = 64 if size <= 64 else 128
    tiles = -(-key.shape[2] // tile)
    tile_bytes = tile * tile * _SINGLE + tile // 4
    in_tiles = batch * heads * tiles * tile_bytes
    products = query.nbytes + sums
    return Workspaces(passing=copied + sums + max(products, in_tiles))


def _work_of_attention(result: Any, operands: Any, settings: _Settings) -> tuple[Any, ...]:
    """The work of attention, for the clock; a 1 at its end says that the mask is causal."""
    work = work_of(result, operands)
    return (*work, 1) if settings.is_causal else work


# ---- the kernels ---------------------------------------------------------------------------------


class FusedAttention(WholeKernel):
    """One of CUDA's three fused kernels, and the class of the memory-efficient one.

    The CPU's own graph inside computes the gradients. Memory that CUDA would keep alive for them is
    kept here.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, settings: _Settings) -> Any:
        """Compute attention on the host, and return the result on the device.

        The operation is recorded. If gradients are needed, what CUDA keeps for backward is
        allocated and saved in `ctx`. Raises DeviceClosed or the error of what ended the device,
        torch's OutOfMemoryError, and what the CPU's attention raises.
        """
        device = require_open_device(query)
        kernel = settings.kernel
        needs_graph = any(ctx.needs_input_grad)
        operands = [inner_leaf_of(tensor) for tensor in (query, key, value)]
        if mask is None:
            bias = None
        else:
            bias = inner_leaf_of(mask)
        with graph_on_host(needs_graph):
            host_result = _compute_attention(settings, operands, bias)
        # Put the result on the device, laid out in memory as the kernel does it.
        first = operands[0].detach()
        inner = _copy_result(kernel, host_result.detach(), first)
        size = query.shape[3]
        padded = _head_size_in_memory(kernel, size)
        block = allocate(device, inner.nbytes // size * padded)
        result = wrap(inner, block)
        name = "aten._scaled_dot_product_efficient_attention.default"
        work = _work_of_attention(inner, operands, settings)
        record_operation(name, device, inner.nbytes, work)
        if not needs_graph:
            return result
        # Keep for backward what CUDA keeps.
        if bias is not None and bias.requires_grad:
            operands.append(bias)
        kept_values = _KeptForBackward(operands, host_result, device, settings)
        ctx.held = conceal(kept_values)
        kept = [result]
        if mask is not None and mask.dtype is not torch.bool:
            kept.append(mask)
        if padded == size:
            kept += [query, key, value]
        sizes = _sizes_for_backward(kernel, query, key, value, mask)
        kept += hold_memory(device, *sizes)
        ctx.save_for_backward(*kept)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of query, key, value and mask, on the device; and None for the settings.

        The operation is recorded. Raises RuntimeError if a saved tensor was changed since,
        DeviceClosed or the error of what ended the device, and torch's OutOfMemoryError. With
        `create_graph`, the gradients refuse to be differentiated again.
        """
        _ = ctx.saved_tensors  # refuses if one of them was written to since
        kept: _KeptForBackward = reveal(ctx.held)
        device = kept.device
        if device.closed:
            raise closed_device_error(device)
        kernel = kept.settings.kernel
        inner_gradient = gradient._virtual_inner
        computed = gradients_by_host([kept.result], [inner_gradient], kept.inner)
        for position in range(3):  # those of query, key and value
            found = computed[position]
            if found is not None:
                operand = kept.inner[position].detach()
                computed[position] = _copy_gradient(kernel, found, operand)
        results = wrap_each(computed, device)
        nbytes = bytes_of_all(results)
        name = "aten._scaled_dot_product_efficient_attention_backward.default"
        record_operation(name, device, nbytes, _work_of_attention(None, kept.inner, kept.settings))
        query, key = kept.inner[:2]
        use_workspaces(device, _gradient_workspaces(kernel, query, key, inner_gradient))
        # One gradient for each argument of forward: there is none of the settings.
        operator = f"aten::_scaled_dot_product_{kernel}_attention_backward"
        refusal = f"derivative for {operator} is not implemented"
        missing = 5 - len(results)
        return *refuse_second_gradients(results, refusal), *[None] * missing


class FlashAttention(FusedAttention):
    """The flash kernel: a class of its own, for the name in autograd's graph."""


class PaddedAttention(FusedAttention):
    """The flash kernel with padded heads: in autograd's graph, the cut of its result."""


class CudnnAttention(FusedAttention):
    """cuDNN's kernel: a class of its own, for the name in autograd's graph."""


FusedAttention._backward_cls.__name__ = "ScaledDotProductEfficientAttentionBackward0"
FlashAttention._backward_cls.__name__ = "ScaledDotProductFlashAttentionBackward0"
CudnnAttention._backward_cls.__name__ = "ScaledDotProductCudnnAttentionBackward0"
PaddedAttention._backward_cls.__name__ = "SliceBackward0"


# ---- the choice ----------------------------------------------------------------------------------

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


class _Operands(NamedTuple):
    """The operands of attention."""

    query: Any
    key: Any
    value: Any
    mask: Any  # or None
    enable_gqa: bool

    @property
    def is_grouped(self) -> bool:
        """True if several heads of the query share one of key and value."""
        query_heads = self.query.shape[1]
        key_heads = self.key.shape[1]
        return self.enable_gqa and bool(query_heads != key_heads)


def _has_fused_form(operands: _Operands) -> bool:
    """True if the operands have the form that all fused kernels ask for.

    That is four dimensions, one device, one dtype, and shapes that fit.
    """
    query = operands.query
    tensors = [query, operands.key, operands.value]
    for tensor in tensors:
        if type(tensor) not in VIRTUAL or tensor.dim() != 4:
            return False
        if not tensor.numel() or tensor.stride(-1) != 1:
            return False
        if tensor.dtype is not query.dtype:
            return False
    if query.dtype not in _HALF_OR_SINGLE:
        return False
    # All on one device, the mask too.
    if operands.mask is not None:
        tensors.append(operands.mask)
    device = query._virtual_block.device
    for tensor in tensors:
        if type(tensor) not in VIRTUAL:
            return False
        if tensor._virtual_block.device is not device:
            return False
    return _shapes_fit(operands)


def _shapes_fit(operands: _Operands) -> bool:
    """True if query, key and value, of four dimensions each, have shapes that go together."""
    query_batch, query_heads, _, query_size = operands.query.shape
    key_batch, key_heads, _, key_size = operands.key.shape
    can_group = operands.enable_gqa and query_heads % key_heads == 0
    if query_heads != key_heads and not can_group:
        return False
    if query_batch != key_batch or query_size != key_size:
        return False
    of_keys = operands.key.shape[:3]
    of_values = operands.value.shape[:3]
    return bool(of_keys == of_values)


def _kernel_suits(kernel: str, operands: _Operands) -> bool:
    """True if this fused kernel takes operands that have the form for fused kernels.

    `kernel` is a key of KERNELS.
    """
    query, key, value, mask, _ = operands
    is_single = query.dtype is torch.float32
    head_sizes = (query.shape[3], value.shape[3])
    if kernel == "efficient":
        multiple = 8
        if is_single:
            multiple = 4
        return not operands.is_grouped and _are_multiples(head_sizes, multiple)
    # The other two need half precision and a GPU of Ampere's kind or later.
    model = query._virtual_block.device.gpu.model
    is_old = model is not None and model.capability[0] < 8
    if is_single or is_old or max(head_sizes) > _LARGEST_HEAD:
        return False
    if kernel == "flash":
        return mask is None and query.shape[3] == value.shape[3]
    # cuDNN's.
    if max(query.shape[:2]) > _MOST_IN_GRID:
        return False
    if mask is not None and mask.requires_grad:
        return False
    return bool(key.shape[2] > 1) and _are_multiples(head_sizes, 8)


def _are_multiples(numbers: tuple[int, ...], factor: int) -> bool:
    """True if all numbers are multiples of this one."""
    return all(number % factor == 0 for number in numbers)


def _kernel_takes(kernel: str, operands: _Operands) -> bool:
    """True if this kernel is switched on and takes the operands; "math" takes all.

    `kernel` is "math" or a key of KERNELS.
    """
    if not _ENABLED[kernel]():
        return False
    if kernel == "math":  # plain operators take anything
        return True
    return _has_fused_form(operands) and _kernel_suits(kernel, operands)


def _chosen_kernel(operands: _Operands) -> str | None:
    """The name of the kernel that CUDA chooses; None if no kernel that is on takes the operands.

    cuDNN's comes first on a GPU of the H200's kind, unless `sdpa_kernel` says in which order they
    are asked.
    """
    order = _order_of_kernels()
    if order == _USUAL_ORDER:
        model = operands.query._virtual_block.device.gpu.model
        if model is None or model.capability[0] in (9, 10):
            others = [number for number in order if number != 3]
            order = [3, *others]
    for number in order:
        kernel = _CHOICES.get(number)
        if kernel is not None and _kernel_takes(kernel, operands):
            return kernel
    return None


# ---- what is put in the place of torch's functions -----------------------------------------------


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

    `original` is torch's own function; it runs where the query is not on the device, inside
    `torch.func`, where a CUDA graph or `torch.jit.trace` takes down operators, and where no fused
    kernel is chosen. The ledger records what runs. Raises RuntimeError, as CUDA does, if no kernel
    takes the operands or the mask is on another device, torch's OutOfMemoryError, and what
    `original` raises.
    """
    if type(query) not in VIRTUAL or is_transformed(key) or is_transformed(value):
        return call_in_cuda_words(
            original, query, key, value, attn_mask, dropout_p, is_causal, **named
        )
    # Under autocast: cast the operands, then begin again without it.
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        with torch.autocast("cuda", enabled=False):
            query = cast_by_autocast(dtype, query)
            key = cast_by_autocast(dtype, key)
            value = cast_by_autocast(dtype, value)
            attn_mask = cast_by_autocast(dtype, attn_mask)
            return attend(original, query, key, value, attn_mask, dropout_p, is_causal, **named)
    is_together = not are_on_several_devices(query, key, value)
    # A fused kernel, if one takes the operands.
    if not is_recording_operators():
        enable_gqa = bool(named.get("enable_gqa"))
        operands = _Operands(query, key, value, attn_mask, enable_gqa)
        kernel = _chosen_kernel(operands)
        if kernel in KERNELS:
            is_padded = kernel == "flash" and query.shape[3] % 8
            function = PaddedAttention if is_padded else KERNELS[kernel]
            scale = named.get("scale")
            settings = _Settings(kernel, dropout_p, is_causal, scale, enable_gqa)
            return function.apply(query, key, value, attn_mask, settings)
        if kernel is None and is_together:
            raise _no_kernel_error()
    # Plain operators.
    if is_together and query.dim() == 4 and are_on_several_devices(query, attn_mask):
        method = "wrapper_CUDA___scaled_dot_product_efficient_attention"
        mask_device = label_of(attn_mask)
        raise argument_elsewhere_error("attn_bias", mask_device, label_of(query), method)
    return call_in_cuda_words(original, query, key, value, attn_mask, dropout_p, is_causal, **named)


def _attend_to_nested(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **named: Any
) -> Any:
    """Attention of nested tensors on the host: the result of the kernel that CUDA would choose.

    Plain operators want contiguous tensors of the same batch and heads. A fused kernel takes any,
    but no mask, and stretches batches and heads of size 1. Raises what torch's attention raises.
    """
    has_fused_kernel = _ENABLED["flash"]() or _ENABLED["efficient"]()
    if attn_mask is not None or not has_fused_kernel:
        return _host_attention(query, key, value, attn_mask, *args, **named)
    operands = (query, key, value)
    batch = max(operand.size(0) for operand in operands)
    heads = max(operand.size(1) for operand in operands)
    stretched = []
    for operand in operands:
        pieces = operand.unbind()
        if len(pieces) == 1:
            pieces = pieces * batch
        stretched.append([piece.expand(heads, -1, -1) for piece in pieces])
    attended = []
    for of_one in zip(*stretched, strict=True):
        attended.append(_attend_on_host(*of_one, None, *args, **named))
    return torch.nested.as_nested_tensor(attended)


RUN_ON_HOST["scaled_dot_product_attention"] = _attend_to_nested


def _no_kernel_error() -> Exception:
    """torch's error where no kernel that is on takes the operands, or none is on."""
    if any(is_enabled() for is_enabled in _ENABLED.values()):
        return RuntimeError("No available kernel. Aborting execution.")
    return RuntimeError(
        "No viable backend for scaled_dot_product_attention was found. "
        "This is likely due to turning off both the math kernel and the fused kernels."
    )


def can_use_kernel(kernel: str, original: Any, params: Any, debug: bool = False) -> bool:
    """The answer of `torch.backends.cuda.can_use_flash_attention` and its kin.

    `kernel` is a key of KERNELS. `original` answers for tensors of the host, and raises what torch
    raises.
    """
    if type(params.query) not in VIRTUAL:
        return bool(original(params, debug))
    operands = _Operands(
        params.query, params.key, params.value, params.attn_mask, params.enable_gqa
    )
    return _kernel_takes(kernel, operands)


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
    """torch's number of the kernel that CUDA chooses; -1 if none takes the operands.

    `original` answers for tensors of the host, and raises what torch raises.
    """
    if type(query) not in VIRTUAL:
        named = {"scale": scale, "enable_gqa": enable_gqa}
        choice = original(query, key, value, attn_mask, dropout_p, is_causal, **named)
        return int(choice)
    operands = _Operands(query, key, value, attn_mask, enable_gqa)
    chosen = _chosen_kernel(operands)
    for number, kernel in _CHOICES.items():
        if kernel == chosen:
            return number
    return -1
