"""Results whose shape depends on values, in a run without values: the largest there can be.

Each function takes the arguments of its operator, with tensors of "meta", and notes what it assumes
for the report. Where there is no largest shape, NeedsValues is raised.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from virtual_cuda.device.known_values import certain_values
from virtual_cuda.device.no_values import note_assumption, shape_only
from virtual_cuda.device.state import META
from virtual_cuda.errors import NeedsValues

aten: Final = torch.ops.aten
_MASKS: Final = (torch.bool, torch.uint8)


def positions_of_all(tensor: Any) -> Any:
    """The result of `nonzero` where nothing is zero."""
    note_assumption(f"took all {tensor.numel():,} elements to be non-zero")
    return tensor.new_empty((tensor.dim(), tensor.numel()), dtype=torch.int64).t()


def select_all(tensor: Any, mask: Any) -> Any:
    """The result of `masked_select` with a mask that is true everywhere, or that is known."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    count = shape.numel()
    values = certain_values(mask)
    if values is not None:
        return tensor.new_empty(int(values.expand(shape).count_nonzero()))
    note_assumption(f"took a mask to be true for all {count:,} elements")
    return tensor.new_empty(count)


def select_by_indices(tensor: Any, indices: Any) -> Any:
    """The result of an index with masks that are true everywhere, or that are known.

    Raises what torch raises for indices that do not fit.
    """
    numbers: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            numbers.append(shape_only(index))
            continue
        values = certain_values(index)
        if values is None:
            count = index.numel()
            note_assumption(f"took a mask to be true for all {count:,} elements")
        else:
            count = int(values.count_nonzero())
        position = torch.empty(count, dtype=torch.int64, device=META)
        numbers += [position] * index.dim()
    return aten.index.Tensor(tensor, numbers)


def keep_all(tensor: Any, *options: Any, **named: Any) -> Any:
    """The results of `_unique` where all values differ."""
    values, inverse, _ = keep_and_count_all(tensor)
    return values, inverse


def keep_and_count_all(tensor: Any, *options: Any, **named: Any) -> Any:
    """The results of `_unique2` where all values differ."""
    note_assumption(f"took all {tensor.numel():,} values to differ")
    values = tensor.new_empty(tensor.numel())
    inverse = torch.empty_like(tensor, dtype=torch.int64)
    return values, inverse, torch.empty_like(values, dtype=torch.int64)


def keep_all_in_order(tensor: Any, *options: Any, **named: Any) -> Any:
    """The results of `unique_consecutive` where all neighbours differ."""
    note_assumption(f"took all {tensor.numel():,} values to differ")
    places = torch.empty_like(tensor, dtype=torch.int64)
    return tensor.new_empty(tensor.numel()), places, places.flatten()


def counts_up_to_minimum(tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    """The result of `bincount` where no value exceeds the length that was asked for.

    Raises NeedsValues where none was.
    """
    if minlength <= 0:
        raise NeedsValues("torch.bincount", "give it `minlength`, which is taken for the result")
    note_assumption(f"took all values to be below {minlength:,}, the minlength of bincount")
    dtype = torch.int64 if weights is None else torch.promote_types(weights.dtype, torch.float64)
    return tensor.new_empty(minlength, dtype=dtype)


def repeat_to_given_size(repeats: Any, *, output_size: int | None = None) -> Any:
    """The result of `repeat_interleave` with the size that was asked for.

    Raises NeedsValues where none was.
    """
    if output_size is None:
        raise NeedsValues("torch.repeat_interleave", "give it `output_size`")
    return repeats.new_empty(output_size, dtype=torch.int64)


def products_of_groups(
    left: Any, right: Any, offsets: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """The result of `grouped_mm`, whose shape is certain: torch tells it for bfloat16 alone.

    Raises RuntimeError for matrices that do not fit.
    """
    if left.shape[-1] != right.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    shape = [left.shape[-2], right.shape[-1]]
    dimensions = {left.dim(), right.dim()}
    # In front, a dimension for the groups: of both, or where the offsets cut both.
    if dimensions == {3}:
        shape.insert(0, left.shape[0])
    elif dimensions == {2}:
        shape.insert(0, offsets.shape[0])
    dtype = out_dtype or left.dtype
    return left.new_empty(shape, dtype=dtype)
