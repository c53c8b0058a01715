"""Reductions, sorting, ranking, counting and comparing whole tensors."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from virtual_cuda.device.cuda_errors import label_of
from virtual_cuda.ops import largest, placement
from virtual_cuda.ops.elementwise import HALF, WHOLE, wider_emulation
from virtual_cuda.ops.placement import OperatorCall, unless_empty
from virtual_cuda.ops.registry import NOT_EMULATED, operator

aten: Final = torch.ops.aten


# ---- ties ----------------------------------------------------------------------------------------


def _sort_stably(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """The values and indices of a stable sort.

    Without `stable`, CPUs differ in the order of equal elements. Raises IndexError for a dimension
    that is not there.
    """
    return aten.sort.stable(self, stable=True, dim=dim, descending=descending)


def _sort_with_flag(
    self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    """The values and indices of a stable sort, whatever `stable` says.

    Raises IndexError for a dimension that is not there.
    """
    return _sort_stably(self, dim, descending)


def _values_and_first_indices(func: Any, dim_at: int, /, *args: Any, **kwargs: Any) -> Any:
    """The values of `kthvalue` or `median`, and for each the first index that has it.

    `func` is the operator; `dim_at` is the position of its argument `dim`. Raises what the operator
    raises.
    """
    values, indices = func(*args, **kwargs)
    self = args[0]
    if self.dim() == 0 or self.numel() == 0:
        return values, indices
    if len(args) > dim_at:
        dim = args[dim_at]
    else:
        dim = kwargs.get("dim", -1)
    keepdim = values.dim() == self.dim()
    if keepdim:
        wanted = values
    else:
        wanted = values.unsqueeze(dim)
    is_equal = self == wanted
    if self.is_floating_point():
        is_equal |= self.isnan() & wanted.isnan()
    matches = is_equal.to(torch.uint8)  # `argmax` gives the first of several
    return values, matches.argmax(dim, keepdim=keepdim)


# ---- counting ------------------------------------------------------------------------------------


def _count_values(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    """The counts, after recording how often the host waits for them.

    CUDA fetches the smallest value, to refuse negative ones (a byte cannot be negative), and the
    largest, to know the size. The waits are recorded here, since the operator may raise after the
    first. Raises RuntimeError for what cannot be counted, and at a wait that is refused or tells of
    a failed kernel.
    """
    is_refused = self.dim() != 1 or self.is_floating_point()
    if is_refused or self.numel() == 0:
        return aten.bincount.default(self, weights, minlength)
    if self.dtype is not torch.uint8:
        placement.record_waits("bincount")
    out = aten.bincount.default(self, weights, minlength)
    placement.record_waits("bincount")
    return out


def _put_at_front(inner: Any, kwargs: Any, out: Any) -> Any:
    """The results, `out`, with the values at the front of a buffer as long as the input.

    `inner` are the arguments of the operator, with CPU tensors.
    """
    values, *others = out
    count = values.numel()
    length = max(inner[0].numel(), count)
    buffer = values.new_empty(length)
    front = buffer[:count].copy_(values)
    return (front, *others)


def _waits_of_equal(given: dict[str, Any]) -> int:
    """How often the host waits for `equal`.

    Not at all for different shapes, no elements, or the very same memory: the answer is known then.
    `given` are the arguments by name.
    """
    one = given["self"]
    other = given["other"]
    if one.shape != other.shape or one.numel() == 0:
        return 0
    if one.stride() != other.stride():
        return 1
    if one.dtype is not other.dtype:
        return 1
    return int(one.data_ptr() != other.data_ptr())


def _waits_of_isin(given: dict[str, Any]) -> int:
    """How often the host waits for `isin`.

    Few candidates are compared one by one. Many are sorted, and the different ones of both are
    counted. `given` are the arguments by name.
    """
    elements = given["elements"]
    candidates = given["test_elements"]
    many = 10.0 * elements.numel() ** 0.145
    if candidates.numel() < many:
        return 0
    if given.get("assume_unique"):
        return 1
    return 3


def _sum_complex(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The sum of complex numbers, which the CPU refuses here; NOT_EMULATED for all else.

    `inner` and `kwargs` are the arguments with CPU tensors, `error` is what the CPU raised.
    """
    self, *rest = inner
    if not self.is_complex() or "out" in kwargs:
        return NOT_EMULATED
    dims = rest or [None]
    if self.dtype is torch.complex32:
        wide = self.to(torch.complex64)
        return _sum_complex(func, [wide, *rest], kwargs, error).to(torch.complex32)
    numbers = torch.where(self.isnan(), 0, self)
    return aten.sum.dim_IntList(numbers, *dims, **kwargs)


def _multiply_in_single(func: Any, self: Any, *args: Any, dtype: torch.dtype | None = None) -> Any:
    """The product of a tensor's elements; half precision is multiplied in single precision.

    `func` is the CPU's kernel; what it raises is raised.
    """
    wanted = dtype or self.dtype
    if wanted in HALF:
        product = func(self, *args, dtype=torch.float32)
        return product.to(wanted)
    return func(self, *args, dtype=dtype)


def _waits_of_histc(given: dict[str, Any]) -> int:
    """How often the host waits for `histc`: twice, for the range of the values if none is given.

    `given` are the arguments by name.
    """
    if given["self"].numel() == 0:
        return 0
    has_range = given.get("min", 0) != given.get("max", 0)
    if has_range:
        return 0
    return 2


def _waits_of_unique_consecutive(given: dict[str, Any]) -> int:
    """How often the host waits for `unique_consecutive`: once, but not with `dim` or no elements.

    `given` are the arguments by name.
    """
    if given.get("dim") is not None:
        return 0
    if given["self"].numel():
        return 1
    return 0


def _waits_of_repeat_interleave(given: dict[str, Any]) -> int:
    """How often the host waits for `repeat_interleave`: twice, unless the size is given.

    `given` are the arguments by name.
    """
    if given.get("output_size") is not None:
        return 0
    if given["repeats"].numel():
        return 2
    return 0


def _waits_of_segment_reduce(given: dict[str, Any]) -> int:
    """How often the host waits: lengths are checked on the host, offsets are trusted.

    `given` are the arguments by name.
    """
    if given.get("lengths") is None or given.get("unsafe"):
        return 0
    return 2


# ---- placement -----------------------------------------------------------------------------------


def _refuse_lengths_elsewhere(call: OperatorCall) -> Any:
    """Raise CUDA's RuntimeError for lengths or offsets on another device."""
    name = "lengths"
    if call.given.get("lengths") is None:
        name = "offsets"
    raise RuntimeError(
        f"Expected data.get_device() == {name}_value.get_device() to be true, but got false.  "
        "(Could this error message be improved?  "
        "If so, please report an enhancement request to PyTorch.)"
    )


def _refuse_sorter_elsewhere(call: OperatorCall) -> Any:
    """Raise CUDA's RuntimeError for a sorter on another device.

    None otherwise, so that the general rules decide.
    """
    sorter = call.given.get("sorter")
    boundaries = call.given["sorted_sequence"]
    values = call.given["self"]
    if sorter is None or sorter.device == boundaries.device:
        return None
    if isinstance(values, torch.Tensor) and values.device != boundaries.device:
        return None
    raise RuntimeError(
        "torch.searchsorted(): sorter and boundary tensors should have same device type, "
        f"but got sorter tensor device type {label_of(sorter)} "
        f"and input value tensor device type {label_of(boundaries)}"
    )


# ---- entries -------------------------------------------------------------------------------------

_BOOL: Final = wider_emulation((torch.bool,), torch.uint8)

operator("all", "amax", "amin", "aminmax", "any", "argmin", "norm", output_first=True)
operator(
    "prod",
    kernel=partial(_multiply_in_single, aten.prod.default),
    output_first=True,
    complex_half=True,
)
operator("prod.dim_int", kernel=partial(_multiply_in_single, aten.prod.dim_int))
operator("sum", binding=True, output_first=True, complex_half=True)
operator("mean", "argmax", binding=True, output_first=True)
operator("nansum", emulate=_sum_complex)
operator("max", "min", binding=True)
# These bindings give a named tuple, which the dispatcher would not open.
operator("max.dim", "min.dim", binding=False)
operator("sort.default", kernel=_sort_stably)
operator("sort.stable", kernel=_sort_with_flag)
operator("kthvalue", kernel=partial(_values_and_first_indices, aten.kthvalue.default, 2))
operator("median", emulate=_BOOL)
_ALERT: Final = "median CUDA with indices output"
operator(
    "median.dim",
    kernel=partial(_values_and_first_indices, aten.median.dim, 1),
    nondeterministic=_ALERT,
)
operator("median.dim_values", nondeterministic=_ALERT)
operator("nanmedian", emulate=_BOOL)
operator("nanmedian.dim", kernel=partial(_values_and_first_indices, aten.nanmedian.dim, 1))
operator(
    "bincount",
    kernel=_count_values,
    largest=largest.counts_up_to_minimum,
    nondeterministic="_bincount_cuda",
    exact_integers=True,
)
operator(
    "histc",
    waits=("histc", _waits_of_histc),
    nondeterministic="_histc_cuda with floating point input",
    exact_integers=True,
    emulate=wider_emulation(WHOLE, torch.float64),
)
_UNIQUE: Final[dict[str, Any]] = {
    "output": _put_at_front,
    "waits": ("unique", unless_empty("self", 1)),
}
operator("_unique", largest=largest.keep_all, **_UNIQUE)
operator("_unique2", largest=largest.keep_and_count_all, **_UNIQUE)
operator(
    "unique_consecutive",
    largest=largest.keep_all_in_order,
    waits=("unique", _waits_of_unique_consecutive),
)
operator("equal", waits=("equal", _waits_of_equal))
operator("allclose", waits=("allclose", 1))
operator("isin.Tensor_Tensor", waits=("isin", _waits_of_isin))
operator(
    "repeat_interleave.Tensor",
    largest=largest.repeat_to_given_size,
    waits=("repeat_interleave", _waits_of_repeat_interleave),
)
operator(
    "segment_reduce",
    waits=("segment_reduce", _waits_of_segment_reduce),
    placement=_refuse_lengths_elsewhere,
)
operator("searchsorted", placement=_refuse_sorter_elsewhere)
