"""Elementwise operators, fills, random numbers, and reading or writing by index or mask.

Most functions here stand in an operator's entry (see `Operator` in `registry.py`): functions for
`waits` count how often the host waits, functions for `placement` judge arguments on different
devices, and functions for `words` give CUDA's exception in place of the CPU's.
"""

from __future__ import annotations

import functools
import re
from functools import partial
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import (
    DTYPE_NAMES,
    kernel_lacks_dtype_error,
    label_of,
    two_devices_error,
)
from virtual_cuda.internals import find_internal
from virtual_cuda.ops import largest, placement
from virtual_cuda.ops.placement import (
    OperatorCall,
    allow_anywhere,
    device_values,
    find_host_number,
    on_device,
    on_host,
    record_crossing,
    refuse_factors,
    result_beside,
    takes_no_number,
    unless_empty,
)
from virtual_cuda.ops.registry import ALLOWED, NOT_EMULATED, name_of, operator
from virtual_cuda.recorder import tensors_in

aten: Final = torch.ops.aten
_MASKS: Final = (torch.bool, torch.uint8)


# ---- waits ---------------------------------------------------------------------------------------


def _is_device_mask(index: Any) -> bool:
    """True for a mask on the device."""
    return on_device(index) and index.dtype in _MASKS


def _is_host_mask(index: Any) -> bool:
    """True for a mask on the host."""
    return on_host(index) and index.dtype in _MASKS


def _waits_of_indices(indices: Any) -> int:
    """How often the host waits for these indices: once for each mask on the device.

    Its elements must be counted. A mask on the host costs nothing, and numbers on the host are
    copied, which is recorded by `_record_copies_to_device`.
    """
    masks = [index for index in tensors_in(indices) if _is_device_mask(index)]
    return len(masks)


def _waits_of_index(given: dict[str, Any]) -> int:
    """How often the host waits for `x[indices]`.

    `given` are the arguments by name.
    """
    if on_device(given["self"]):
        return _waits_of_indices(given["indices"])
    return 0


def _index_put_waits(given: dict[str, Any]) -> int:
    """How often the host waits for `x[indices] = values`.

    `given` are the arguments by name.
    """
    indices = given["indices"]
    values = given["values"]
    accumulates = given.get("accumulate")
    if not on_device(given["self"]):
        # A device mask on a host tensor is counted there, and the numbers it stands for come over.
        masks = [index for index in indices if _is_device_mask(index)]
        return 2 * len(masks)
    if not accumulates and _fills_by_mask(indices, values):
        return 0
    waits = _waits_of_indices(indices)
    if accumulates:  # sums over sorted indices, for which a host mask is copied too
        masks = [index for index in indices if _is_host_mask(index)]
        waits += len(masks)
    return waits


def _fills_by_mask(indices: Any, values: Any) -> bool:
    """True for `x[mask] = number`: it is a fill, which needs no count of the mask.

    torch's function for this is canDispatchToMaskedFill.
    """
    if not on_host(values) or values.numel() != 1:
        return False
    given_indices = [index for index in indices if index is not None]
    return len(given_indices) == 1 and _is_device_mask(given_indices[0])


# ---- placement -----------------------------------------------------------------------------------


def _judge_index(call: OperatorCall) -> Any:
    """Allow indices on the host or on the device of the indexed tensor.

    Gives ALLOWED, after it has recorded the copies of those on the host. Raises RuntimeError for
    indices on another device, and at a wait that is refused or tells of a failed kernel.
    """
    base = call.given["self"]
    for index in tensors_in(call.given["indices"]):
        if not on_host(index) and index.device != base.device:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({label_of(base)})"
            )
    if on_device(base):
        _record_copies_to_device(base, _numbers_among(call.given["indices"]))
    return _judge_mask(call)


def _judge_mask(call: OperatorCall) -> Any:
    """Allow a mask on the device of the tensor. Raises RuntimeError for one elsewhere.

    Gives ALLOWED.
    """
    base = call.given["self"]
    mask = call.given.get("mask")
    if mask is not None and mask.device != base.device:
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {label_of(mask)} "
            f"and self on {label_of(base)}"
        )
    return ALLOWED


def _judge_index_put_call(call: OperatorCall) -> Any:
    """Judge `x[indices] = values`: indices may be anywhere, and so may a value without dimensions.

    Gives the result where `x` is on the host, else ALLOWED; copies between host and device are
    recorded, with their waits. Raises RuntimeError for other values on another device, after
    recording that masks were counted, and RuntimeError at a wait that is refused or tells of a
    failed kernel.
    """
    given = call.given
    base = given["self"]
    values = given["values"]
    if values.device == base.device or values.dim() == 0:
        if on_host(base):
            _record_copies_to_host(values, given["indices"])
        elif given.get("accumulate") or not _fills_by_mask(given["indices"], values):
            _record_copies_to_device(base, [*_numbers_among(given["indices"]), values])
        return result_beside(call, base)
    tensors = tensors_in(given["indices"])
    masks = [index for index in tensors if _is_device_mask(index)]
    placement.record_waits("boolean index", len(masks))  # they have been counted by then
    base_label = label_of(base)
    values_label = label_of(values)
    is_sorted = given.get("accumulate", False) or torch.are_deterministic_algorithms_enabled()
    if not on_host(base) and is_sorted:
        raise RuntimeError(
            f"expected device {base_label} but got device {values_label} for value tensor"
        )
    if base_label == placement.HOST:
        raise two_devices_error(values_label, base_label)
    raise two_devices_error(base_label, values_label)


def _record_copies_to_device(base: Any, tensors: Any) -> None:
    """Record the copies of those of the tensors that are on the host to the device of `base`.

    The host waits for each, which is recorded. Raises RuntimeError at a wait that is refused or
    tells of a failed kernel.
    """
    for tensor in tensors:
        if on_host(tensor):
            placement.record_copy(tensor, placement.HOST, label_of(base))


def _numbers_among(indices: Any) -> list[torch.Tensor]:
    """Those of the indices that are numbers; what a mask on the host selects is found there."""
    return [index for index in tensors_in(indices) if index.dtype not in _MASKS]


def _record_copies_to_host(values: Any, indices: Any) -> None:
    """Record the copies to the host for `x[indices] = values`, where `x` is on the host.

    Those are `values` and each index of numbers that is on the device. The host waits for each,
    which is recorded; waits for masks are counted elsewhere. Raises RuntimeError at a wait that is
    refused or tells of a failed kernel.
    """
    for tensor in (values, *_numbers_among(indices)):
        if on_device(tensor):
            placement.record_copy(tensor, label_of(tensor), placement.HOST)


def _judge_masked_fill(call: OperatorCall) -> Any:
    """Refuse a value in a tensor for a tensor on the host, and a mask on another device.

    Raises RuntimeError; else gives ALLOWED.
    """
    if on_host(call.given["self"]) and isinstance(call.given["value"], torch.Tensor):
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")
    return _judge_mask(call)


def _judge_where(call: OperatorCall) -> Any:
    """Allow operands without dimensions on the host, and record that they are copied.

    Gives ALLOWED, or None, so that the general rules decide, where no operand is on a device or
    `out=` is given. Raises RuntimeError for other operands on the host, and at a wait that is
    refused or tells of a failed kernel.
    """
    given = [call.given.get(name) for name in ("condition", "self", "other")]
    operands = list(tensors_in(given))
    on_devices = [tensor for tensor in operands if not on_host(tensor)]
    if not on_devices:
        return None
    first = on_devices[0]
    for tensor in operands:
        if tensor.device != first.device and tensor.dim() > 0:
            raise two_devices_error(label_of(first), label_of(tensor))
    if "out" in call.given:
        return None
    _record_copies_to_device(first, operands)
    return ALLOWED


def _judge_index_fill(call: OperatorCall) -> Any:
    """The result of `index_fill` on the host, or ALLOWED.

    Raises CUDA's RuntimeError for operands on two devices, and one at a wait that is refused or
    tells of a failed kernel.
    """
    base = call.given["self"]
    operands = {"self": base, "index": call.given["index"]}
    find_host_number(call.func, operands, ("self",))
    return result_beside(call, base)


def _refuse_products(args: Any, kwargs: Any) -> None:
    """Raise CUDA's error for `scatter(..., reduce="multiply")` of complex numbers or booleans.

    It is a NotImplementedError. `args` are those of the operator, the source being the fourth.
    """
    dtype = args[0].dtype
    if kwargs.get("reduce") != "multiply":
        return
    if not dtype.is_complex and dtype is not torch.bool:
        return
    kernel = "cuda_scatter_fill_base_kernel_reduce_multiply"
    if isinstance(args[3], torch.Tensor):
        kernel = "cuda_scatter_gather_base_kernel_func"
    raise kernel_lacks_dtype_error(kernel, DTYPE_NAMES[dtype])


def _refuse_gaps_in_graphs(args: Any, kwargs: Any) -> None:
    """Raise torch's RuntimeError for a tensor in a graph that is not contiguous.

    The CPU's kernel raises it, too, but the tensors that it is given here are in no graph.
    """
    if args[0].requires_grad and not args[0].is_contiguous():
        raise RuntimeError(
            "!self.requires_grad() || self.is_contiguous() INTERNAL ASSERT FAILED at "
            '"/pytorch/aten/src/ATen/native/TensorShape.cpp":4916, please report a bug to PyTorch. '
            "as_strided_scatter is currently only supported for contiguous inputs"
        )


# ---- kernels and outputs -------------------------------------------------------------------------


def _index_put_unless_overlapping(
    self: Any, indices: Any, values: Any, accumulate: bool = False
) -> Any:
    """Change `self` as `index_put_` does, and return it.

    Raises RuntimeError for `x[mask] = x[0, 0]`: CUDA finds the number inside what is written to.
    The CPU reads it first. Raises also what the CPU's kernel raises.
    """
    if values.numel() == 1 and self.is_contiguous() and _lies_inside(values, self):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor "
            "refer to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    return aten.index_put_.default(self, indices, values, accumulate)


def _lies_inside(number: torch.Tensor, tensor: torch.Tensor) -> bool:
    """True if a tensor of one element lies in the memory of a contiguous one."""
    if number.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
        return False
    last = 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (size - 1) * stride
    position = number.storage_offset() - tensor.storage_offset()
    return 0 <= position <= last


def _index_put_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for values that do not fit; None for other texts.

    Where CUDA sorts the indices first, it expands the values, and that says so in other words. It
    is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    found = re.search(r"cannot be broadcast to indexing result of shape \[([\d, ]*)\]", text)
    if found is None:
        return None
    accumulates = len(inner) > 3 and inner[3]
    if not accumulates and not torch.are_deterministic_algorithms_enabled():
        return None
    values = inner[2]
    sizes = re.findall(r"\d+", found[1])
    try:
        values.expand([int(size) for size in sizes])
    except RuntimeError as error:
        return error
    return None


def in_single(func: Any, first: Any, *args: Any) -> Any:
    """The result of a function, where half precision is computed in single and rounded once.

    `first` decides; others in half precision are cast with it. Raises what the function raises.
    """
    if first.dtype not in HALF:
        return func(first, *args)
    wide = [to_single(value) for value in args]
    return func(first.float(), *wide).to(first.dtype)


def to_single(value: Any) -> Any:
    """A half-precision tensor in single precision; any other value as it is."""
    if isinstance(value, torch.Tensor) and value.dtype in HALF:
        return value.float()
    return value


def _bags_as_cuda(inner: Any, kwargs: Any, out: Any) -> Any:
    """The results of `_embedding_bag` with CUDA's side results.

    `inner` and `kwargs` are the arguments, with CPU tensors, `out` is what the CPU gave for them.
    Every index has its bag. The largest of a bag are kept only for the mode "max".
    """
    result, _, sizes, largest = out
    schema = aten._embedding_bag.default._schema
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, inner, strict=False)) | kwargs
    indices = given["indices"]
    offsets = given["offsets"]
    bags = _bags_of_indices(indices, offsets)
    if len(sizes) <= len(offsets):
        padding = given.get("padding_idx", -1)
        is_counted = (indices != padding).long()
        counts = is_counted.new_zeros(len(offsets)).scatter_add_(0, bags.long(), is_counted)
        sizes = counts[: len(sizes)].to(sizes.dtype)
    if given.get("mode", 0) != _LARGEST_OF_BAG:
        largest = largest.new_empty(0)
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    return result, bags.to(dtype), sizes, largest


_LARGEST_OF_BAG: Final = 2  # the number of the mode "max"


def _bags_of_indices(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The bag of each index; `offsets` says where each bag begins."""
    starts = offsets[1:].contiguous()
    positions = torch.arange(len(indices), dtype=starts.dtype, device=starts.device)
    return torch.searchsorted(starts, positions, right=True)


# ---- entries -------------------------------------------------------------------------------------


def _index_select_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for an index of a wrong dtype or shape; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    dtype = inner[2].dtype
    if "Expected dtype int32 or int64 for index" in text and dtype in DTYPE_NAMES:
        return kernel_lacks_dtype_error("index_select_out_cuda_impl", DTYPE_NAMES[dtype])
    if "Index is supposed to be a vector" not in text:
        return None
    return RuntimeError("Index is supposed to be an empty tensor or a vector")


IN_CPP: Final = {
    "Byte": "unsigned char",
    "Char": "signed char",
    "Short": "short int",
    "Long": "long int",
    "Half": "c10::Half",
    "BFloat16": "c10::BFloat16",
    "ComplexHalf": "c10::complex<c10::Half>",
    "ComplexFloat": "c10::complex<float>",
    "ComplexDouble": "c10::complex<double>",
}


def _masked_fill_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for a mask of a wrong dtype; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    mask = inner[1]
    if "only supports boolean masks" not in text or mask.dtype not in DTYPE_NAMES:
        return None
    dtype = DTYPE_NAMES[mask.dtype]
    return RuntimeError(f"masked_fill only supports boolean masks, but got dtype {dtype}")


def _embedding_bag_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for arguments of different dtypes; None for other texts.

    It is returned, not raised. `text` is the CPU's message, `inner` the arguments with CPU tensors.
    """
    if "'per_sample_weights'; but type" in text:
        expected = DTYPE_NAMES.get(inner[0].dtype)
        found = DTYPE_NAMES.get(inner[6].dtype)
        if expected is not None and found is not None:
            return RuntimeError(f"expected scalar type {expected} but found {found}")
    if "arguments for embedding_bag)" not in text:
        return None
    text = text.replace("arguments for embedding_bag)", "arguments for embedding_bag_cuda)")
    text = re.sub(r"\btorch\.(?=[A-Z]\w*Tensor\b)", "torch.cuda.", text)
    return RuntimeError(re.sub(r"\bCPU(?=[A-Z]\w*Type\b)", "CUDA", text))


def _masked_scatter_words(inner: Any, text: str) -> Exception | None:
    """CUDA's exception for a source or a mask of a wrong dtype; None for other texts.

    CUDA calls the mask's dtype by its name in C++. It is returned, not raised. `text` is the CPU's
    message, `inner` the arguments with CPU tensors.
    """
    if text.startswith("masked_scatter: expected self and source"):
        text = re.sub(r"^masked_scatter: (.* but got) ?", r"masked_scatter_: \1 ", text)
        return RuntimeError(text)
    start, found, dtype = text.partition("only supports boolean masks, but got mask with dtype ")
    if not found:
        return None
    expected = IN_CPP.get(dtype, dtype.lower())
    return RuntimeError(f"{start}{found}{expected}")


def _by_columns(inner: Any, kwargs: Any, out: torch.Tensor) -> torch.Tensor:
    """The indices, `out`, with one column after the other in memory, as CUDA leaves them."""
    rows = max(len(out), 1)
    if out.stride() == (1, rows):
        return out
    turned = out.shape[::-1]
    columns = torch.empty(turned, dtype=out.dtype, device=out.device)
    columns.copy_(out.t())
    return columns.t()


operator("index", placement=_judge_index, asserts=True)
operator(
    "index.Tensor", largest=largest.select_by_indices, waits=("boolean index", _waits_of_index)
)
operator("_unsafe_index", placement=_judge_index, asserts=True)
operator("_unsafe_masked_index", placement=_judge_index)
_PUT: Final[dict[str, Any]] = {
    "waits": ("boolean index", _index_put_waits),
    "placement": _judge_index_put_call,
    "asserts": True,
    "words": _index_put_words,
}
operator("index_put", "_index_put_impl_", **_PUT)
operator("index_put_", kernel=_index_put_unless_overlapping, **_PUT)
operator("_unsafe_index_put", placement=_judge_index_put_call)
operator("masked_fill", "masked_fill_", placement=_judge_masked_fill, words=_masked_fill_words)
operator("masked_fill.Tensor", "masked_fill_.Tensor", waits=("fill value", device_values("value")))
operator("index_fill", "index_fill_", placement=_judge_index_fill)
operator(
    "index_fill.int_Tensor", "index_fill_.int_Tensor", waits=("fill value", device_values("value"))
)
operator("where", placement=_judge_where, binding=True)
operator("masked_scatter", "masked_scatter_", words=_masked_scatter_words)
operator("masked_scatter_backward", waits=("boolean index", 1))
operator("masked_select", largest=largest.select_all, waits=("masked_select", 1))
operator("nonzero", largest=largest.positions_of_all, output=_by_columns, waits=("nonzero", 1))
operator("nonzero_static", output=_by_columns)
operator(
    *("index_add", "index_add_", "index_copy", "index_copy_", "gather", "scatter", "scatter_"),
    *("scatter_add", "scatter_add_", "take", "embedding", "embedding_renorm_"),
    asserts=True,
)
operator("_embedding_bag_forward_only", asserts=True, words=_embedding_bag_words)
operator("index_select", asserts=True, words=_index_select_words)
operator(
    "narrow_copy",
    kernel=lambda self, *where: self.narrow(*where).clone(memory_format=torch.contiguous_format),
)
operator("index_reduce", "index_reduce_", asserts=True, nondeterministic="index_reduce_cuda")
operator("put", "put_", asserts=True, nondeterministic="put_")
operator(
    *("scatter_reduce", "scatter_reduce_"),
    asserts=True,
    nondeterministic=lambda args: "scatter_reduce_cuda_prod_" if args[4] == "prod" else None,
)
operator(
    *("scatter.reduce", "scatter_.reduce", "scatter.value_reduce", "scatter_.value_reduce"),
    nondeterministic="scatter_reduce_cuda_kernel",
    refuse=_refuse_products,
)
operator("_embedding_bag", output=_bags_as_cuda, asserts=True, words=_embedding_bag_words)
operator(
    "embedding_dense_backward", kernel=partial(in_single, aten.embedding_dense_backward.default)
)


HALF: Final = (torch.float16, torch.bfloat16)


_bf16_in_mkldnn: Final = find_internal(
    "torch.ops.mkldnn._is_mkldnn_bf16_supported", otherwise=lambda: False
)


@functools.cache
def is_slow_on_host(dtype: torch.dtype) -> bool:
    """True for a dtype whose products are better computed in single precision and rounded once.

    GPUs do it so. CPUs without units for a dtype take a hundred times as long otherwise. torch does
    not say whether there are any for float16; those for bfloat16 add up in single precision, too.
    """
    if dtype is torch.bfloat16:
        return not (torch.backends.mkldnn.is_available() and _bf16_in_mkldnn())
    return dtype is torch.float16


WHOLE: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_NARROW: Final = (torch.int8, torch.int16, torch.int32)


# ---- dtypes the CPU has no kernel for ------------------------------------------------------------


def wider_emulation(
    narrow: tuple[torch.dtype, ...], wide: torch.dtype, back: torch.dtype | None = None
) -> Any:
    """An emulation that computes `narrow` dtypes in a `wide` one, and casts back.

    An emulation is a function(func, inner, kwargs, error), called where the CPU's kernel has raised
    and CUDA's does not. Results for booleans are cast to `back` where it is given.
    """

    def emulate(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
        """The results, or NOT_EMULATED where the error has another reason.

        `inner` and `kwargs` are the arguments with CPU tensors, `error` is what the CPU's kernel
        raised. Raises what `func` raises in the wide dtype.
        """
        if not isinstance(error, NotImplementedError):
            return NOT_EMULATED
        tensors = [value for value in inner if isinstance(value, torch.Tensor)]
        dtype = _first_dtype_among(narrow, tensors)
        if dtype is None:
            return NOT_EMULATED
        # Indices and targets are whole numbers too: where the operator takes those, only the first
        # tensor is widened.
        if dtype not in HALF:
            tensors = tensors[:1]
        narrow_ones = [tensor for tensor in tensors if tensor.dtype is dtype]
        wide_args = []
        for value in inner:
            is_narrow = any(value is tensor for tensor in narrow_ones)
            wide_args.append(value.to(wide) if is_narrow else value)
        results = func(*wide_args, **kwargs)
        target = dtype
        if back is not None and dtype is torch.bool:
            target = back
        if not isinstance(results, tuple):
            return results.to(target)
        return tuple(each.to(target) if each.dtype is wide else each for each in results)

    return emulate


def _first_dtype_among(
    dtypes: tuple[torch.dtype, ...], tensors: list[torch.Tensor]
) -> torch.dtype | None:
    """The dtype of the first tensor that has one of these; None if none has."""
    for tensor in tensors:
        if tensor.dtype in dtypes:
            return tensor.dtype
    return None


# ---- integers ------------------------------------------------------------------------------------


def _divide_by_zero(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The quotient or remainder where some divisors are zero, which the CPU refuses.

    `inner` and `kwargs` are the arguments with CPU tensors, `error` is what the CPU raised. The
    result is written into the first argument by an in-place operator, or into `out`. NOT_EMULATED
    where the error has another reason.
    """
    if "ZeroDivisionError" not in str(error) or len(inner) < 2:
        return NOT_EMULATED
    name = name_of(func)
    plain = name.rstrip("_")
    if plain == "floor_divide":
        mode = "floor"
    else:
        mode = kwargs.get("rounding_mode")
    # Divide by 1 where the divisor is 0, and put CUDA's number there.
    dtype = torch.result_type(inner[0], inner[1])
    operands = [torch.as_tensor(operand, dtype=dtype) for operand in inner[:2]]
    dividend, divisor = torch.broadcast_tensors(*operands)
    zero = divisor == 0
    safe = divisor.masked_fill(zero, 1)
    if plain in ("floor_divide", "div"):
        usual = torch.div(dividend, safe, rounding_mode=mode)
    elif plain == "remainder":
        usual = torch.remainder(dividend, safe)
    else:
        usual = torch.fmod(dividend, safe)
    by_zero = _quotients_by_zero(dividend, mode)
    result = torch.where(zero, by_zero, usual)
    if name.endswith("_"):
        target = inner[0]
    else:
        target = kwargs.get("out")
    if target is None:
        return result
    return target.copy_(result)


def _quotients_by_zero(dividend: torch.Tensor, mode: str | None) -> torch.Tensor:
    """The integers that CUDA gives for a division by zero.

    All bits are set, 64 of them only where the dividend needs so many. Rounding down takes one off
    below zero.
    """
    if dividend.dtype is torch.uint8:
        return torch.full_like(dividend, 255)
    ones = torch.full_like(dividend, -1)
    if dividend.dtype is torch.int64:
        needs_few_bits = (dividend >= 0) & (dividend < 1 << 32)
        ones = ones.masked_fill(needs_few_bits, 0xFFFFFFFF)
    if mode == "floor":
        ones = torch.where(dividend < 0, ones - 1, ones)
    return ones


def _to_integers(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A float tensor as integers, cast as CUDA casts.

    What does not fit becomes the nearest integer of 32 or of 64 bits, and is then cut to the dtype.
    """
    if dtype in _NARROW:
        wide = torch.int32
    else:
        wide = torch.int64
    limits = torch.iinfo(wide)
    # The largest integer is no float: the comparison is with the power of two above it.
    least = float(limits.min)
    whole = source.to(wide)
    whole = whole.masked_fill(source >= -least, limits.max)
    whole = whole.masked_fill(source <= least, limits.min)
    # Only the instruction from float to 32 bits drops the sign bit of what is not a number.
    drops_sign = wide is torch.int32 and source.dtype is not torch.float64
    if drops_sign:
        not_a_number = 0
    else:
        not_a_number = limits.min
    whole = whole.masked_fill(source.isnan(), not_a_number)
    return whole.to(dtype)


def _source_of_cast(source: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor to cast: `source`, or integers where the CPU's cast would differ from CUDA's."""
    if dtype is None or dtype is torch.bool:
        return source
    if dtype.is_floating_point or dtype.is_complex:
        return source
    if not source.is_floating_point() or not source.numel() or source.is_meta:
        return source
    if source.element_size() == 1:  # float8, which the CPU cannot compare
        source = source.float()
    if dtype in _NARROW:
        bound = 2.0**31
    else:
        bound = 2.0**63
    fits = source.abs() < bound
    if bool(fits.all()):
        return source
    return _to_integers(source, dtype)


def to_copy_as_cuda(source: torch.Tensor, **options: Any) -> torch.Tensor:
    """A copy, made by the kernel of `_to_copy`, with casts as on CUDA."""
    source = _source_of_cast(source, options.get("dtype"))
    copy: torch.Tensor = aten._to_copy.default(source, **options)
    return copy


def copy_as_cuda(
    target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy `source` into `target` and return it, with casts as on CUDA."""
    return target.copy_(_source_of_cast(source, target.dtype))


# ---- placement -----------------------------------------------------------------------------------


def _judge_addcmul(call: OperatorCall) -> Any:
    """Allow one CPU number as `tensor2`. Raises RuntimeError for other numbers.

    Raises RuntimeError also for operands on two devices; else gives ALLOWED.
    """
    number = find_host_number(call.func, call.given)
    if number is not None and number.argument in ("self", "tensor1"):
        text = (
            f"CPU Scalar support for {number.argument} argument is not supported "
            "when calling addcmul on CUDA tensors."
        )
        if number.argument == "tensor1":
            text += (
                " However, CPU Scalar support for tensor2 is supported, "
                "please swap your tensor1 and tensor2 terms."
            )
        raise RuntimeError(text)
    return takes_no_number(call)


def _judge_copy(call: OperatorCall) -> Any:
    """Record the copy that this operator makes, and go on or give its result on the host.

    To go on is to give ALLOWED. These operators copy under another name; `fill_` with a number on
    the host does not. Raises what the CPU's kernel raises, and RuntimeError at a wait that is
    refused or tells of a failed kernel.
    """
    base = call.given["self"]
    source = call.given.get("src", call.given.get("value"))
    if not (name_of(call.func) == "fill_" and on_host(source)):  # a host number needs no copy
        record_crossing(source, base)
    return result_beside(call, base)


# ---- entries -------------------------------------------------------------------------------------

operator(
    *(
        "add",
        "add_",
        "sub",
        "sub_",
        "mul",
        "mul_",
        "neg",
        "reciprocal",
    ),
    *(
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "t",
        "transpose",
        "permute",
        "view",
        "expand",
        "unsqueeze",
        "select",
    ),
    *("clone", "relu", "relu_", "gelu", "silu", "leaky_relu", "zero_"),
    *("_foreach_add_", "_foreach_mul_", "_foreach_lerp_", "_foreach_sqrt", "_foreach_div_"),
    binding=True,
)
operator(
    *("sqrt", "rsqrt", "pow", "exp", "log", "sigmoid", "tanh"),
    binding=True,
    complex_half=True,
)
operator(
    *("sqrt_", "rsqrt_", "pow_", "exp_", "log_", "sigmoid_", "tanh_"),
    *("angle", "logaddexp"),
    complex_half=True,
)
for _name in (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "sin",
    "sinh",
    "tan",
):
    operator(_name, f"{_name}_", complex_half=True)
operator("_foreach_addcdiv_", "_foreach_addcmul_", binding=True)
for _name in ("addcdiv", "addcmul"):
    operator(f"_foreach_{_name}.Tensor", f"_foreach_{_name}_.Tensor", refuse=refuse_factors)
for _name, _single in {"maximum": "clamp_min", "minimum": "clamp_max"}.items():
    operator(f"_foreach_{_name}", single=_single)
    operator(f"_foreach_{_name}_", single=f"{_single}_")
# To these bindings, alpha by position means something else, which is deprecated and warns.
operator("add.Scalar", "add_.Scalar", "sub.Scalar", "sub_.Scalar", binding=False)
operator("detach", binding=True, fast_path="detach")
operator("alias", fast_path="detach")
operator("_unsafe_view", fast_path="view")
operator("zeros_like", "ones_like", "empty_like", binding=True, fast_path="like")
operator("_local_scalar_dense", fast_path="item", waits=("item", 1))

operator("div", "div_", binding=True, emulate=_divide_by_zero, complex_half=True)
operator(
    "floor_divide",
    "floor_divide_",
    "remainder",
    "remainder_",
    "fmod",
    "fmod_",
    emulate=_divide_by_zero,
)
operator("abs", binding=True, emulate=wider_emulation((torch.bool,), torch.uint8))
operator("lerp", placement=takes_no_number, complex_half=True)
operator("lerp_", placement=takes_no_number, binding=True, complex_half=True)
operator("addcmul", placement=_judge_addcmul)
operator("addcmul_", placement=_judge_addcmul, binding=True)
# The probe met these with dimensions only; the rest is from the sources of the operators.
operator("addcdiv_", strict=("self", "tensor1", "tensor2"), binding=True)

operator("fill_", placement=_judge_copy, binding=True)
operator("as_strided_scatter", placement=_judge_copy, refuse=_refuse_gaps_in_graphs)
operator("copy", "diagonal_scatter", "select_scatter", "slice_scatter", placement=_judge_copy)
operator("resize_as_", placement=lambda call: result_beside(call, call.given["self"]))
operator("is_same_size", "linspace", "logspace", placement=allow_anywhere)
for _name in ("linspace", "logspace"):
    operator(f"{_name}.Scalar_Tensor", waits=("item", device_values("end")))
    operator(f"{_name}.Tensor_Scalar", waits=("item", device_values("start")))
    operator(f"{_name}.Tensor_Tensor", waits=("item", device_values("start", "end")))

operator("normal.Tensor_Tensor", "normal.float_Tensor", waits=("normal", unless_empty("std", 2)))
operator("multinomial", "_assert_async", asserts=True)
operator("rrelu_with_noise", emulate=wider_emulation(HALF, torch.float32))
