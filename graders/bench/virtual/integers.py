"""What does CUDA make of a division by zero, and of floats that fit no integer?"""

from __future__ import annotations

from typing import Any, Final

import torch

aten: Final = torch.ops.aten
_NARROW: Final = (torch.int8, torch.int16, torch.int32)


def divided_by_zero(func: Any, inner: Any, kwargs: Any) -> Any:
    """The quotient or remainder where some divisors are zero, or None if the operator is neither."""
    name = func._schema.name.partition("::")[2]
    plain = name.rstrip("_")
    if plain not in ("floor_divide", "div", "remainder", "fmod") or len(inner) < 2:
        return None
    mode = "floor" if plain == "floor_divide" else kwargs.get("rounding_mode")
    dividend, divisor = inner[0], inner[1]
    dtype = torch.result_type(dividend, divisor)
    shape = (torch.as_tensor(dividend) + torch.as_tensor(divisor)).shape
    one = torch.as_tensor(dividend, dtype=dtype).expand(shape)
    other = torch.as_tensor(divisor, dtype=dtype).expand(shape)
    zero = other == 0
    safe = other.masked_fill(zero, 1)
    if plain in ("floor_divide", "div"):
        usual = torch.div(one, safe, rounding_mode=mode)
    else:
        usual = torch.remainder(one, safe) if plain == "remainder" else torch.fmod(one, safe)
    result = torch.where(zero, _by_zero(one, mode), usual)
    if name.endswith("_"):
        return dividend.copy_(result)
    out = kwargs.get("out")
    return result if out is None else out.copy_(result)


def _by_zero(dividend: torch.Tensor, mode: str | None) -> torch.Tensor:
    """All bits set, 64 of them only where the dividend needs so many; rounding down takes one off below zero."""
    ones = torch.full_like(dividend, 255 if dividend.dtype is torch.uint8 else -1)
    if dividend.dtype is torch.int64:
        ones = ones.masked_fill((dividend >= 0) & (dividend < 1 << 32), 0xFFFFFFFF)
    if mode == "floor" and dividend.dtype is not torch.uint8:
        ones = torch.where(dividend < 0, ones - 1, ones)
    return ones


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A float tensor as integers: what does not fit becomes the nearest of 32 or of 64 bits, and is then cut."""
    wide = torch.int32 if dtype in _NARROW else torch.int64
    limits = torch.iinfo(wide)
    whole = source.to(wide)
    # The largest integer is no float: the comparison is with the power of two above it.
    whole = whole.masked_fill(source >= -float(limits.min), limits.max).masked_fill(
        source <= float(limits.min), limits.min
    )
    if wide is torch.int32:
        # Only the instruction from double to 32 bits keeps the sign bit of what is no number.
        empty = limits.min if source.dtype is torch.float64 else 0
        whole = whole.masked_fill(source.isnan(), empty)
    else:
        whole = whole.masked_fill(source.isnan(), limits.min)
    return whole.to(dtype)


def _unusual(source: torch.Tensor, dtype: Any) -> bool:
    """Whether a cast on the CPU would give other integers than one on CUDA."""
    if (
        dtype is None
        or not source.is_floating_point()
        or dtype.is_floating_point
        or dtype.is_complex
        or dtype is torch.bool
    ):
        return False
    bound = float(2**31 if dtype in _NARROW else 2**63)
    return bool(source.numel()) and not bool((source.abs() < bound).all())


def _to_copy(source: torch.Tensor, **options: Any) -> torch.Tensor:
    dtype: Any = options.get("dtype")
    if _unusual(source, dtype):
        source = cast(source, dtype)
    return aten._to_copy.default(source, **options)  # type: ignore[no-any-return]


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if _unusual(source, target.dtype):
        source = cast(source, target.dtype)
    return target.copy_(source)


KERNELS: Final[dict[Any, Any]] = {aten._to_copy.default: _to_copy, aten.copy_.default: _copy_}
