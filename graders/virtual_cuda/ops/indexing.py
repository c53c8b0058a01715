"""Operators that read or write by index or mask, and embeddings."""

from __future__ import annotations

from typing import Any, Final

import torch

from virtual_cuda.device.messages import label_of, two_devices
from virtual_cuda.ops import placement
from virtual_cuda.ops.placement import OperatorCall, device_values, elementwise, on_device, on_host, stays
from virtual_cuda.ops.registry import ALLOWED, operator
from virtual_cuda.recorder import tensors_in

aten: Final = torch.ops.aten
_MASKS: Final = (torch.bool, torch.uint8)


# ---- waits -----------------------------------------------------------------------------------------------------------


def _indices(indices: Any) -> int:
    """A mask on the device must be counted; numbers on the host must be copied; a mask on the host costs nothing."""
    return sum(
        index.dtype in _MASKS if on_device(index) else index.dtype not in _MASKS and index.numel() > 0
        for index in tensors_in(indices)
    )


def _index_put_waits(given: dict[str, Any]) -> int:
    target, indices, values = given["self"], given["indices"], given["values"]
    if not on_device(target):
        # A device mask on a host tensor is counted there, and the numbers it stands for come over.
        return 2 * sum(on_device(index) and index.dtype in _MASKS for index in indices)
    masks = [index for index in indices if index is not None]
    masked = len(masks) == 1 and on_device(masks[0]) and masks[0].dtype in _MASKS
    if masked and on_host(values) and values.numel() == 1 and not given.get("accumulate"):
        return 0  # `x[mask] = number` is a fill, which needs no count of the mask (canDispatchToMaskedFill)
    waits = _indices(indices) + on_host(values)
    if given.get("accumulate"):  # sums over sorted indices, for which a host mask is copied too
        waits += sum(on_host(index) and index.dtype in _MASKS for index in indices)
    return waits


def _where_waits(given: dict[str, Any]) -> int:
    """Host scalars are copied to where the others are."""
    operands = [given["condition"], given["self"], given["other"]]
    return sum(map(on_host, operands)) if any(map(on_device, operands)) else 0


# ---- placement -------------------------------------------------------------------------------------------------------


def _index(call: OperatorCall) -> Any:
    base = call.given["self"]
    for index in tensors_in(call.given["indices"]):
        if not on_host(index) and index.device != base.device:
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor ({label_of(base)})"
            )
    return _masked(call)


def _masked(call: OperatorCall) -> Any:
    base, mask = call.given["self"], call.given.get("mask")
    if mask is not None and mask.device != base.device:
        raise RuntimeError(
            f"expected self and mask to be on the same device, but got mask on {label_of(mask)} "
            f"and self on {label_of(base)}"
        )
    return ALLOWED


def _index_put(call: OperatorCall) -> Any:
    """Indices may be anywhere, and so may a value without dimensions."""
    given = call.given
    base, values = given["self"], given["values"]
    if values.device != base.device and values.dim() > 0:
        masks = [i for i in tensors_in(given["indices"]) if not on_host(i) and i.dtype in _MASKS]
        placement.note("boolean index", len(masks))  # they have been counted by then
        sorted_first = given.get("accumulate", False) or torch.are_deterministic_algorithms_enabled()
        if not on_host(base) and sorted_first:
            raise RuntimeError(f"expected device {label_of(base)} but got device {label_of(values)} for value tensor")
        labels = label_of(base), label_of(values)
        raise two_devices(*(reversed(labels) if labels[0] == placement.HOST else labels))
    return stays(call, base)


def _masked_fill(call: OperatorCall) -> Any:
    if on_host(call.given["self"]) and isinstance(call.given["value"], torch.Tensor):
        raise RuntimeError("masked_fill_: Expected inputs to be on same device")
    return _masked(call)


def _where(call: OperatorCall) -> Any:
    operands = [t for name in ("condition", "self", "other") for t in tensors_in(call.given.get(name))]
    first = next((t for t in operands if not on_host(t)), None)
    if first is None:
        return None
    for tensor in operands:
        if tensor.device != first.device and tensor.dim() > 0:
            raise two_devices(label_of(first), label_of(tensor))
    return ALLOWED if "out" not in call.given else None


def _index_fill(call: OperatorCall) -> Any:
    base = call.given["self"]
    elementwise(call.func, {"self": base, "index": call.given["index"]}, ("self",))
    return stays(call, base)


# ---- kernels and outputs ---------------------------------------------------------------------------------------------


def _index_put_(self: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """`x[mask] = x[0, 0]`: the CPU reads the number first; CUDA finds it inside what is written to."""
    shared = values.numel() == 1 and values.untyped_storage()._cdata == self.untyped_storage()._cdata
    if shared and self.is_contiguous():
        at = values.storage_offset() - self.storage_offset()
        if 0 <= at <= sum((size - 1) * stride for size, stride in zip(self.shape, self.stride(), strict=True)):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )
    return aten.index_put_.default(self, indices, values, accumulate)


def _embedding_bag(inner: Any, kwargs: Any, out: Any) -> Any:
    """Every index knows its bag; the largest of a bag are remembered only where they are asked for."""
    result, bag_of, sizes, largest = out
    indices, offsets = inner[1], inner[2]
    mode = inner[4] if len(inner) > 4 else kwargs.get("mode", 0)
    padding = inner[8] if len(inner) > 8 else kwargs.get("padding_idx", -1)
    starts = offsets[1:][offsets[1:] < len(indices)].long()
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    bag_of = torch.zeros(len(indices), dtype=torch.int64).index_add_(0, starts, torch.ones_like(starts)).cumsum(0)
    if len(sizes) <= len(offsets):  # what is padding does not count
        counted = bag_of[indices != padding]
        sizes = torch.zeros(len(offsets), dtype=sizes.dtype).index_add_(
            0, counted, torch.ones(len(counted), dtype=sizes.dtype)
        )[: len(sizes)]
    bag_of = bag_of.to(dtype)
    return (result, bag_of, sizes, largest if mode == 2 else largest.new_empty(0))


# ---- entries ---------------------------------------------------------------------------------------------------------

operator("index", placement=_index, asserts=True)
operator(
    "index.Tensor",
    waits=("boolean index", lambda given: _indices(given["indices"]) if on_device(given["self"]) else 0),
)
operator("_unsafe_index", placement=_index, asserts=True)
operator("_unsafe_masked_index", placement=_index)
_PUT: Final[dict[str, Any]] = {"waits": ("boolean index", _index_put_waits), "placement": _index_put, "asserts": True}
operator("index_put", "_index_put_impl_", **_PUT)
operator("index_put_", kernel=_index_put_, **_PUT)
operator("_unsafe_index_put", placement=_index_put)
operator("masked_fill", "masked_fill_", placement=_masked_fill)
operator("masked_fill.Tensor", "masked_fill_.Tensor", waits=("fill value", device_values("value")))
operator("index_fill", "index_fill_", placement=_index_fill)
operator("index_fill.int_Tensor", "index_fill_.int_Tensor", waits=("fill value", device_values("value")))
operator("where", placement=_where, binding=True)
operator("where.self", waits=("copy", _where_waits))
operator("masked_scatter_backward", waits=("boolean index", 1))
operator("masked_select", waits=("masked_select", 1))
operator("nonzero", waits=("nonzero", 1))
operator(
    *("index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_reduce", "index_reduce_"),
    *("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"),
    *("take", "put", "put_", "embedding", "embedding_renorm_", "_embedding_bag_forward_only"),
    asserts=True,
)
operator("_embedding_bag", output=_embedding_bag, asserts=True)
