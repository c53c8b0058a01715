"""Reductions, sorting, ranking, counting and comparing whole tensors."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from virtual_cuda.device.state import label_of
from virtual_cuda.ops import placement
from virtual_cuda.ops.elementwise import HALF, WHOLE, widened
from virtual_cuda.ops.placement import OperatorCall, unless_empty
from virtual_cuda.ops.registry import NOT_EMULATED, operator

aten: Final = torch.ops.aten
_NETWORK: Final = (
    32  # up to so many elements an unstable sort is a bitonic network; beyond, every sort is stable
)


# ---- ties ------------------------------------------------------------------------------------------------------------


def _network(keys: torch.Tensor) -> torch.Tensor:
    """The permutation that CUDA's bitonic network for 32 elements leaves in rows sorted by integer keys."""
    rows, length = keys.shape
    slots = torch.arange(_NETWORK).expand(rows, _NETWORK).clone()
    # What is not there sorts to the end.
    ranks = torch.full((rows, _NETWORK), torch.iinfo(torch.int64).max)
    ranks[:, :length] = keys
    there = slots < length
    thread = torch.arange(_NETWORK // 2)
    powers = [1 << power for power in range(_NETWORK.bit_length() - 1)]
    for half, stride in (
        (half, stride) for half in powers for stride in reversed(powers) if stride <= half
    ):
        flag = (
            (thread & half) != 0
            if 2 * half < _NETWORK
            else torch.zeros_like(thread, dtype=torch.bool)
        )
        left = 2 * thread - (thread & (stride - 1))
        right = left + stride
        before = ((ranks[:, left] < ranks[:, right]) & there[:, left]) | ~there[:, right]
        swap = before == flag
        for table in (slots, ranks, there):
            one = table[:, left]
            other = table[:, right]
            table[:, left], table[:, right] = (
                torch.where(swap, other, one),
                torch.where(swap, one, other),
            )
    return slots[:, :length]


def _ranks(rows: torch.Tensor, descending: bool) -> torch.Tensor:
    """Equal elements get equal integers, in the order of the sort; all that is no number is equal, and largest."""
    order = rows.sort(dim=1, descending=descending, stable=True)
    steps = order.values[:, 1:] != order.values[:, :-1]
    if rows.is_floating_point():
        steps &= ~(order.values[:, 1:].isnan() & order.values[:, :-1].isnan())
    ranks = torch.zeros(rows.shape, dtype=torch.int64)
    ranks[:, 1:] = steps.cumsum(1)
    return torch.empty_like(ranks).scatter_(1, order.indices, ranks)


def _as_rows(tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, Any]:
    """The tensor as rows along `dim`, and the way back."""
    moved = tensor.movedim(dim, -1)
    shape = moved.shape

    def back(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(*shape[:-1], rows.shape[-1]).movedim(-1, dim).contiguous()

    return moved.reshape(-1, shape[-1]), back


def _laid_out_as(self: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The same values with the strides that CUDA takes from the input."""
    like = torch.empty_like(self, dtype=out.dtype)
    return out if out.stride() == like.stride() else like.copy_(out)


def _sort(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """`sort` without `stable`: up to 32 elements through the network."""
    if self.dim() and self.numel() and 2 <= self.shape[dim] <= _NETWORK and not self.is_complex():
        rows, back = _as_rows(self, dim)
        ranks = _ranks(rows, descending)
        if (
            int(ranks.max(1).values.min()) != rows.shape[1] - 1
        ):  # else nothing is equal: any sort will do
            order = _network(ranks)
            return tuple(
                _laid_out_as(self, back(found)) for found in (rows.gather(1, order), order)
            )
    return aten.sort.stable(self, stable=True, dim=dim, descending=descending)


def _sort_stable(
    self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    if stable:
        return aten.sort.stable(self, stable=True, dim=dim, descending=descending)
    return _sort(self, dim, descending)


def _topk(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """First all beyond the last one chosen, as they come, then as many equal to it as are needed; then sorted."""
    if self.dim() == 0 or self.numel() == 0 or not 0 < k <= self.shape[dim]:
        return aten.topk.default(self, k, dim, largest, sorted)
    rows, back = _as_rows(self, dim)
    ranks = _ranks(rows, largest)
    last = ranks.sort(1).values[:, k - 1 : k]
    # Beyond: 0, equal: 1, the rest: 2; a stable sort of that is the order of collection.
    chosen = ((ranks == last) + 2 * (ranks > last)).sort(dim=1, stable=True).indices[:, :k]
    if sorted:
        kept = ranks.gather(1, chosen)
        order = _network(kept) if 2 <= k <= _NETWORK else kept.sort(dim=1, stable=True).indices
        chosen = chosen.gather(1, order)
    return back(rows.gather(1, chosen)), back(chosen)


def _equal_one(func: Any, dim_at: int, /, *args: Any, **kwargs: Any) -> Any:
    """`kthvalue` and `median` name the first element equal to the value found."""
    values, indices = func(*args, **kwargs)
    self = args[0]
    dim = args[dim_at] if len(args) > dim_at else kwargs.get("dim", -1)
    if self.dim() == 0 or self.numel() == 0:
        return values, indices
    keep = values.dim() == self.dim()
    wanted = values if keep else values.unsqueeze(dim)
    same = self == wanted
    if self.is_floating_point():
        same |= self.isnan() & wanted.isnan()
    return values, same.to(torch.uint8).argmax(dim, keepdim=keep)


_ONE_BLOCK: Final = 2048  # elements that one block of threads sorts


def _turned_round(number: torch.Tensor) -> torch.Tensor:
    """Five bits in the opposite order: a warp takes the lane that is least in it, of those that hold the same."""
    return sum((((number >> bit) & 1) << (4 - bit) for bit in range(5)), torch.zeros_like(number))


def _mode(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Of values that are equally frequent, the one that the reduction of the block prefers; its last element is named.

    In longer rows it is the smallest value, and its first element.
    """
    values, indices = aten.mode.default(self, dim, keepdim)
    if self.dim() == 0 or self.numel() == 0 or (self.is_floating_point() and self.isnan().any()):
        return values, indices
    found = values if keepdim else values.unsqueeze(dim)
    length = self.shape[dim]
    if length > _ONE_BLOCK:
        return values, (self == found).to(torch.uint8).argmax(dim, keepdim=keepdim)
    rows, back = _as_rows(self, dim)
    order = rows.sort(1).values
    place = torch.arange(length)
    begins = torch.ones_like(order, dtype=torch.bool)
    begins[:, 1:] = order[:, 1:] != order[:, :-1]
    runs = place - torch.where(begins, place, 0).cummax(1).values
    thread = place // 2
    preference = (_turned_round(thread // 32) * 32 + _turned_round(thread % 32)) * 2 + place % 2
    chosen = torch.where(runs == runs.amax(1, keepdim=True), preference, 2 * _ONE_BLOCK).argmin(
        1, keepdim=True
    )
    found = back(order.gather(1, chosen)).flatten().view(found.shape)
    last = length - 1 - (self == found).flip(dim).to(torch.uint8).argmax(dim, keepdim=True)
    return (found, last) if keepdim else (found.squeeze(dim), last.squeeze(dim))


# ---- counting --------------------------------------------------------------------------------------------------------


def _bincount(self: Any, weights: Any = None, minlength: int = 0) -> Any:
    """The smallest value is fetched to refuse negative ones (a byte cannot be), the largest to know the size.

    The waits are recorded here, since the operator may raise after the first.
    """
    if self.numel() == 0 or self.dim() != 1 or self.is_floating_point():
        return aten.bincount.default(self, weights, minlength)
    if self.dtype is not torch.uint8:
        placement.note("bincount")
    out = aten.bincount.default(self, weights, minlength)
    placement.note("bincount")
    return out


def _unique(inner: Any, kwargs: Any, out: Any) -> Any:
    """The result is the front of a buffer as long as the input."""
    found = out[0]
    buffer = found.new_empty(max(inner[0].numel(), found.numel()))
    return (buffer[: found.numel()].copy_(found), *out[1:])


def _equal(given: dict[str, Any]) -> int:
    """Different shapes, no elements, or the very same elements are known to be so without a look."""
    one = given["self"]
    other = given["other"]
    if one.shape != other.shape or one.numel() == 0:
        return 0
    return int(
        one.data_ptr() != other.data_ptr()
        or one.stride() != other.stride()
        or one.dtype is not other.dtype
    )


def _isin(given: dict[str, Any]) -> int:
    """Few candidates are compared one by one; many are sorted, which counts the different ones of both."""
    elements = given["elements"]
    candidates = given["test_elements"]
    if candidates.numel() < 10.0 * elements.numel() ** 0.145:
        return 0
    return 1 if given.get("assume_unique") else 3


def _nansum(func: Any, inner: Any, kwargs: Any, error: Exception) -> Any:
    """The CPU refuses complex numbers here."""
    self, *rest = inner
    if not self.is_complex() or "out" in kwargs:
        return NOT_EMULATED
    return aten.sum.dim_IntList(torch.where(self.isnan(), 0, self), *(rest or [None]), **kwargs)


def _prod(func: Any, self: Any, *args: Any, dtype: torch.dtype | None = None) -> Any:
    """Half precision is multiplied in single precision."""
    wanted = dtype or self.dtype
    if wanted in HALF:
        return func(self, *args, dtype=torch.float32).to(wanted)
    return func(self, *args, dtype=dtype)


# ---- placement -------------------------------------------------------------------------------------------------------


def _segment_reduce(call: OperatorCall) -> Any:
    name = "offsets" if call.given.get("lengths") is None else "lengths"
    raise RuntimeError(
        f"Expected data.get_device() == {name}_value.get_device() to be true, but got false.  "
        "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
    )


def _searchsorted(call: OperatorCall) -> Any:
    sorter = call.given.get("sorter")
    boundaries = call.given["sorted_sequence"]
    values = call.given["self"]
    same = not isinstance(values, torch.Tensor) or values.device == boundaries.device
    if sorter is not None and same and sorter.device != boundaries.device:
        raise RuntimeError(
            "torch.searchsorted(): sorter and boundary tensors should have same device type, but got sorter tensor "
            f"device type {label_of(sorter)} and input value tensor device type {label_of(boundaries)}"
        )
    return None


# ---- entries ---------------------------------------------------------------------------------------------------------

_BOOL: Final = widened((torch.bool,), torch.uint8)

operator("all", "amax", "amin", "aminmax", "any", "argmin", "norm", output_first=True)
operator("prod", kernel=partial(_prod, aten.prod.default), output_first=True)
operator("prod.dim_int", kernel=partial(_prod, aten.prod.dim_int))
operator("sum", "mean", "argmax", binding=True, output_first=True)
operator("nansum", emulate=_nansum)
operator("max", "min", binding=True)
# These bindings give a named tuple, which the dispatcher would not open.
operator("max.dim", "min.dim", binding=False)
operator("sort.default", kernel=_sort)
operator("sort.stable", kernel=_sort_stable)
operator("topk", kernel=_topk)
operator("kthvalue", kernel=partial(_equal_one, aten.kthvalue.default, 2))
operator("mode", kernel=_mode)
operator("median", emulate=_BOOL)
_ALERT: Final = "median CUDA with indices output"
operator("median.dim", kernel=partial(_equal_one, aten.median.dim, 1), nondeterministic=_ALERT)
operator("median.dim_values", nondeterministic=_ALERT)
operator("nanmedian", emulate=_BOOL)
operator("nanmedian.dim", kernel=partial(_equal_one, aten.nanmedian.dim, 1))
operator("bincount", kernel=_bincount, nondeterministic="_bincount_cuda", exact_integers=True)
operator(
    "histc",  # without a range, the smallest and the largest value are fetched
    waits=(
        "histc",
        lambda given: (
            2 if given.get("min", 0) == given.get("max", 0) and given["self"].numel() else 0
        ),
    ),
    nondeterministic="_histc_cuda with floating point input",
    exact_integers=True,
    emulate=widened(WHOLE, torch.float64),
)
operator("_unique", "_unique2", output=_unique, waits=("unique", unless_empty("self", 1)))
operator(
    "unique_consecutive",
    waits=("unique", lambda given: 1 if given.get("dim") is None and given["self"].numel() else 0),
)
operator("equal", waits=("equal", _equal))
operator("allclose", waits=("allclose", 1))
operator("isin.Tensor_Tensor", waits=("isin", _isin))
operator(
    "repeat_interleave.Tensor",
    waits=(
        "repeat_interleave",
        lambda given: 2 if given.get("output_size") is None and given["repeats"].numel() else 0,
    ),
)
operator(
    "segment_reduce",  # lengths are checked on the host; offsets are trusted
    waits=(
        "segment_reduce",
        lambda given: 0 if given.get("lengths") is None or given.get("unsafe") else 2,
    ),
    placement=_segment_reduce,
)
operator("searchsorted", placement=_searchsorted)
