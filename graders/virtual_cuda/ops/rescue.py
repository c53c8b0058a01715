"""Calls that fail on the CPU: what CUDA computes, what it reports later, and what it raises in its own words."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from virtual_cuda.device.memory import OutOfMemory
from virtual_cuda.device.messages import KERNEL, SPELLED, not_implemented, out_of_memory, worded
from virtual_cuda.device.state import Place, now
from virtual_cuda.ops.registry import NOT_EMULATED, facts_of, measured

_OUT_OF_RANGE: Final = re.compile(
    r"out of bounds|out of range|between 0 and 1|`inf`, `nan` or element < 0|invalid multinomial|nonzero value"
)


def rescue(func: Any, inner: Any, kwargs: Any, place: Place, error: Exception) -> Any:
    """What the operator gives on CUDA where the CPU raised `error`: a result, or an exception in CUDA's words."""
    text = str(error)
    if "DefaultCPUAllocator" in text or "can't allocate memory" in text:
        digits = (word for word in text.replace(",", " ").split() if word.isdigit())
        raise out_of_memory(OutOfMemory(int(next(digits, 0)), place.memory), place.index) from None
    facts = facts_of(func)
    if facts.asserts and now.gpu is not None and _OUT_OF_RANGE.search(text):
        now.gpu.asserted = True
        return _launched(func, inner, kwargs)
    if facts.emulate is not None:
        emulated = facts.emulate(func, inner, kwargs, error)
        if emulated is not NOT_EMULATED:
            return emulated
    translated = translate(func, inner, error)
    if translated is not None:
        raise translated from None
    raise error


def _launched(func: Any, inner: Any, kwargs: Any) -> Any:
    """The result that a launch gives although its kernel will assert."""
    if func._schema.is_mutable:
        return inner[0]
    if not func._schema.returns:
        return None
    return _blank(func(*_meta(inner), **{k: _meta(v) for k, v in kwargs.items() if k != "generator"}))


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return type(value)(_meta(item) for item in value) if isinstance(value, (list, tuple)) else value


def _blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    return tuple(_blank(item) for item in value) if isinstance(value, (list, tuple)) else value


def translate(func: Any, inner: Any, error: Exception) -> Exception | None:
    """CUDA's exception for a CPU kernel's, or None where both say the same."""
    text, facts = str(error), facts_of(func)
    if facts.words is not None and (ruled := facts.words(inner, text)) is not None:
        return ruled
    kernel = KERNEL.match(text)
    spelled = kernel[2] if kernel else _first_dtype(inner)
    if facts.spoken is not None:
        said = f"{type(error).__name__}: {text}"
        words = facts.spoken.get(said) or facts.spoken.get(re.sub(rf"\b{spelled}\b", "{T}", said))
        if words is not None:
            return worded(words, spelled)
    if kernel:
        cuda = measured("refusals")["kernels"].get(kernel[1]) or usual_name(kernel[1])
        return None if cuda == kernel[1] else not_implemented(cuda, spelled)
    reworded = _reworded(text)
    return None if reworded == text else type(error)(reworded)


def _first_dtype(inner: Any) -> str:
    for value in inner:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                return SPELLED.get(item.dtype, "Undefined")
    return "Undefined"


def usual_name(cpu: str) -> str:
    """The name of CUDA's kernel for the CPU's, if nothing else is known; `make_facts.py` leaves these names out."""
    cuda = cpu.replace("_vml_cpu", "_cuda").replace("_cpu", "_cuda")
    return cuda.replace("_channels_last", "_out_frame") if cuda.startswith("upsample_") else cuda


def _reworded(text: str) -> str:
    """The same sentence with the names that tensors have on the device, and without the CPU's count of arguments."""
    text = re.sub(r"^Argument #\d+: (?=Padding size)", "", text)
    text = re.sub(r"\btorch\.(?=[A-Z]\w*Tensor\b)", "torch.cuda.", text)
    text = re.sub(r"\bCPU(?=[A-Z]\w*Type\b)", "CUDA", text)
    text = text.removesuffix(" or input should be a MKLDNN tensor and weight is a dense tensor")
    return text.replace("expected m1 and m2 to have", "expected mat1 and mat2 to have")
