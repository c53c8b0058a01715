"""Answers for operators whose CPU kernel has raised, as CUDA would give them.

CUDA gives a result, or fails later by an assertion on the device, or raises in other words.
"""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import (
    DTYPE_NAMES,
    KERNEL_LACKS_DTYPE,
    error_from_fact,
    kernel_lacks_dtype_error,
    out_of_memory_error,
)
from virtual_cuda.device.memory import OutOfMemory
from virtual_cuda.device.state import VirtualDevice, now
from virtual_cuda.errors import NeedsValues
from virtual_cuda.ops.registry import NOT_EMULATED, facts_of, measured_table
from virtual_cuda.recorder import tensors_in
from virtual_cuda.trees import map_only

# Complaints of kernels about tensors of "meta", which have no values.
WANTS_VALUES: Final = re.compile(r"[Mm]eta tensors?\b|'Meta' backend|no fake impl|Meta kernel")
# Complaints of CPU kernels about values, which CUDA finds on the device.
_BAD_VALUE: Final = re.compile(
    r"out of bounds(?! for dimension with size 0)|out of range|between 0 and 1|"
    r"`inf`, `nan` or element < 0|invalid multinomial|nonzero value"
)


def handle_cpu_error(
    func: Any, inner: Any, kwargs: Any, device: VirtualDevice, error: Exception
) -> Any:
    """The result that an operator gives on CUDA although the CPU raised `error`.

    `inner` and `kwargs` are the arguments with CPU tensors. In a run without values, NeedsValues is
    raised for an operator that needs them. Where CUDA raises as well, this raises: the error in
    CUDA's words, or `error` itself; torch's OutOfMemoryError where the host had no memory. For a
    bad index the result is a stand-in, and the open GPU is marked: the next wait of the host
    raises.
    """
    text = str(error)
    if "DefaultCPUAllocator" in text or "can't allocate memory" in text:
        words = text.replace(",", " ").split()
        numbers = [int(word) for word in words if word.isdigit()]
        wanted = 0
        if numbers:
            wanted = numbers[0]
        raise out_of_memory_error(OutOfMemory(wanted, device.memory), device.index) from None
    if not device.gpu.values and WANTS_VALUES.search(text):
        raise _error_without_values(func) from error
    facts = facts_of(func)
    if facts.asserts and now.gpu is not None and _BAD_VALUE.search(text):
        now.gpu.asserted = True
        return _result_before_assertion(func, inner, kwargs)
    if facts.emulate is not None:
        emulated = facts.emulate(func, inner, kwargs, error)
        if emulated is not NOT_EMULATED:
            return emulated
    if facts.complex_half and text.endswith("not implemented for 'ComplexHalf'"):
        return _compute_in_complex64(func, inner, kwargs)
    try:
        raise _error_in_cuda_words(func, inner, error) or error from None
    finally:
        del error  # it would keep this frame, and the frame it


def _error_without_values(func: Any) -> NeedsValues:
    """The error for an operator that cannot run without values."""
    if func.namespace == "aten":
        return NeedsValues(str(func))
    name = func.name()
    remedy = f'say what its results look like: torch.library.register_fake("{name}", function)'
    return NeedsValues(name, remedy)


def _result_before_assertion(func: Any, inner: Any, kwargs: Any) -> Any:
    """The result of a launch whose kernel will assert: zeros, or what was to be changed.

    `inner` and `kwargs` are the arguments with CPU tensors. Raises what the operator raises on
    "meta".
    """
    schema = func._schema
    if schema.is_mutable:
        return inner[0]
    if not schema.returns:
        return None
    named = {key: value for key, value in kwargs.items() if key != "generator"}
    arguments = (tuple(inner), named)
    args, named = map_only(torch.Tensor, lambda tensor: tensor.to("meta"), arguments)
    results = func(*args, **named)
    return map_only(torch.Tensor, _zeros_on_host, results)


def _compute_in_complex64(func: Any, inner: Any, kwargs: Any) -> Any:
    """The results of an operator on complex32, computed in complex64.

    A tensor that the operator writes to gets the values, and is returned. `inner` and `kwargs` are
    the arguments with CPU tensors. Raises what the operator raises in complex64.
    """
    arguments = (tuple(inner), kwargs)
    args, named = map_only(torch.Tensor, _as_complex64, arguments)
    if named.get("dtype") is torch.complex32:
        named["dtype"] = torch.complex64
    results = func(*args, **named)
    if not func._schema.is_mutable:
        return map_only(torch.Tensor, _as_complex32, results)
    target = kwargs.get("out", inner[0])
    return target.resize_(results.shape).copy_(results)


def _as_complex64(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its values as complex64 if it is complex32."""
    if tensor.dtype is torch.complex32:
        return tensor.to(torch.complex64)
    return tensor


def _as_complex32(tensor: torch.Tensor) -> torch.Tensor:
    """The values in half precision: complex32, and float16 for real ones such as angles."""
    if tensor.is_complex():
        return tensor.to(torch.complex32)
    return tensor.to(torch.float16)


def _zeros_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros of the shape and dtype of a tensor."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _error_in_cuda_words(func: Any, inner: Any, error: Exception) -> Exception | None:
    """CUDA's exception in place of a CPU kernel's; None where both say the same.

    It is returned, not raised. `inner` are the arguments of the operator, with CPU tensors.
    """
    text = str(error)
    facts = facts_of(func)
    # A rule of the operator's own goes first.
    if facts.words is not None:
        by_rule = facts.words(inner, text)
        if by_rule is not None:
            return by_rule
    # Then what was measured on a GPU for this operator.
    kernel = KERNEL_LACKS_DTYPE.match(text)
    if kernel:
        dtype_name = kernel[2]
    else:
        dtype_name = _first_dtype_name(inner)
    if facts.spoken is not None:
        words = _measured_words(facts.spoken, error, dtype_name)
        if words is not None:
            return error_from_fact(words, dtype_name)
    # Then kernels' names, and what all messages have in common.
    if kernel:
        cpu_name = kernel[1]
        names_on_cuda = measured_table("refusals")["kernels"]
        cuda_name = names_on_cuda.get(cpu_name) or usual_cuda_name(cpu_name)
        if cuda_name == cpu_name:
            return None
        return kernel_lacks_dtype_error(cuda_name, dtype_name)
    in_cuda_words = _in_cuda_words(text)
    if in_cuda_words == text:
        return None
    return type(error)(in_cuda_words)


def _measured_words(spoken: dict[str, str], error: Exception, dtype_name: str) -> str | None:
    """CUDA's words for an error of the CPU; None where none were measured.

    `spoken` are the words by the error's text, in which {T} may stand for the dtype.
    """
    key = f"{type(error).__name__}: {error}"
    if key in spoken:
        return spoken[key]
    with_placeholder = re.sub(rf"\b{dtype_name}\b", "{T}", key)
    return spoken.get(with_placeholder)


def _first_dtype_name(inner: Any) -> str:
    """C++'s name for the dtype of the first tensor among the arguments."""
    for tensor in tensors_in(inner):
        return DTYPE_NAMES.get(tensor.dtype, "Undefined")
    return "Undefined"


def _in_cuda_words(text: str) -> str:
    """A message with the names that tensors have on the device, and without the CPU's details."""
    text = re.sub(r"^Argument #\d+: (?=Padding size)", "", text)
    text = re.sub(r"\btorch\.(?=[A-Z]\w*Tensor\b)", "torch.cuda.", text)
    text = re.sub(r"\bCPU(?=[A-Z]\w*Type\b)", "CUDA", text)
    text = re.sub(r"(?<=from the ')(\w*)CPU(?=' backend)", r"\1CUDA", text)
    text = text.replace("_out_cpu_template()", "_out_cuda_template()")
    text = text.removesuffix(" or input should be a MKLDNN tensor and weight is a dense tensor")
    return text.replace("expected m1 and m2 to have", "expected mat1 and mat2 to have")


def usual_cuda_name(cpu_name: str) -> str:
    """The name that CUDA's kernel usually has, made from the CPU kernel's name.

    `tools/make_facts.py` leaves these names out of the measured ones.
    """
    if cpu_name.endswith("_stub"):  # both kernels are written by torch's code generator
        return f"ufunc_{cpu_name.removesuffix('_stub')}_CUDA"
    name = cpu_name.removesuffix("_reduced_float")
    name = name.replace("_vml_cpu", "_cuda").replace("_cpu", "_cuda")
    if name.startswith("upsample_"):
        name = name.replace("_channels_last", "_out_frame")
    return name
