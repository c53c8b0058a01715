"""The CPU kernel refused: what would CUDA have done? Raise its own error, go on, or report it later."""

from __future__ import annotations

from typing import Any

from graders.bench.virtual import asserts, kernels, refusals
from graders.bench.virtual.memory import OutOfMemory
from graders.bench.virtual.places import Place
from graders.bench.virtual.wording import out_of_memory


def rescue(func: Any, inner: Any, kwargs: Any, place: Place, error: Exception) -> Any:
    """What the operator gives on CUDA where the CPU raised `error`: a result, or an exception in CUDA's words."""
    text = str(error)
    if "DefaultCPUAllocator" in text or "can't allocate memory" in text:
        raise out_of_memory(OutOfMemory(_wanted(text), place.memory), place.index) from None
    blank = asserts.later(func, inner, kwargs, error)
    if blank is not None:
        return None if blank is asserts.NOTHING else blank
    emulated = kernels.emulate(func, inner, kwargs, error)
    if emulated is not kernels.NOT_EMULATED:
        return emulated
    translated = refusals.translate(func, inner, kwargs, error)
    if translated is not None:
        raise translated from None
    raise error


def _wanted(text: str) -> int:
    digits = [word for word in text.replace(",", " ").split() if word.isdigit()]
    return int(digits[0]) if digits else 0
