"""Operators that make the host wait for the device."""

from __future__ import annotations

import warnings
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device.state import now
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ledger.records import SYNC
from virtual_cuda.ops import refusals
from virtual_cuda.recording import site

_WARNING: Final = "called a synchronizing CUDA operation"
_MASKS: Final = (torch.bool, torch.uint8)


def note(kind: str, times: int = 1, explicit: bool = False, warned: bool | None = None, where: Any = None) -> None:
    """Write down that the host waited, and warn or raise as `torch.cuda.set_sync_debug_mode` asks.

    That mode does not mind `torch.cuda.synchronize()`, which says what it does, but it minds a stream's.
    """
    gpu = now.gpu
    if gpu is None:
        return
    code, offset = where or site(2)
    for _ in range(times):
        gpu.ledger.rows.append((SYNC, perf_counter(), code, offset, kind, explicit))
        if gpu.sync_debug and (not explicit if warned is None else warned):
            if gpu.sync_debug == 2:
                raise RuntimeError(_WARNING)
            warnings.warn(_WARNING, UserWarning, stacklevel=2)
    refusals.report(gpu)


# ---- counts that depend on the arguments: each takes them by name ------------------------------------------------


def _on_device(value: Any) -> bool:
    return type(value) in VIRTUAL


def _on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) not in VIRTUAL


def _unless_empty(argument: str, count: int) -> Any:
    """Work is skipped, and so is the wait, where there are no elements."""

    def times(given: dict[str, Any]) -> int:
        return count if given[argument].numel() else 0

    return times


def _device_values(*names: str) -> Any:
    """A scalar read out of the device for each of these arguments that is a tensor there."""

    def times(given: dict[str, Any]) -> int:
        return sum(_on_device(given.get(name)) for name in names)

    return times


def _equal(given: dict[str, Any]) -> int:
    """Different shapes, no elements, or the very same elements are known to be so without a look."""
    one, other = given["self"], given["other"]
    if one.shape != other.shape or one.numel() == 0:
        return 0
    return int(one.data_ptr() != other.data_ptr() or one.stride() != other.stride() or one.dtype is not other.dtype)


def _unique_consecutive(given: dict[str, Any]) -> int:
    return 1 if given.get("dim") is None and given["self"].numel() else 0


def _indices(indices: Any) -> int:
    """A mask on the device must be counted; numbers on the host must be copied; a mask on the host costs nothing."""
    waits = 0
    for index in indices:
        if _on_device(index):
            waits += index.dtype in _MASKS
        elif _on_host(index):
            waits += index.dtype not in _MASKS and index.numel() > 0
    return waits


def _index(given: dict[str, Any]) -> int:
    return _indices(given["indices"]) if _on_device(given["self"]) else 0


def _index_put(given: dict[str, Any]) -> int:
    target, indices, values = given["self"], given["indices"], given["values"]
    if not _on_device(target):
        # A device mask on a host tensor is counted there, and the numbers it stands for come over.
        return 2 * sum(_on_device(index) and index.dtype in _MASKS for index in indices)
    if _on_host(values) and not given.get("accumulate") and _is_masked_fill(target, indices, values):
        return 0
    waits = _indices(indices) + _on_host(values)
    if given.get("accumulate"):  # sums over sorted indices, for which a host mask is copied too
        waits += sum(_on_host(index) and index.dtype in _MASKS for index in indices)
    return waits


def _is_masked_fill(target: Any, indices: Any, values: Any) -> bool:
    """`x[mask] = number` is a fill, which needs no count of the mask (canDispatchToMaskedFill)."""
    masks = [index for index in indices if index is not None]
    if values.numel() != 1 or len(masks) != 1:
        return False
    mask = masks[0]
    return _on_device(mask) and mask.dtype in _MASKS


def _where(given: dict[str, Any]) -> int:
    """Host scalars are copied to where the others are."""
    operands = [given["condition"], given["self"], given["other"]]
    return sum(map(_on_host, operands)) if any(map(_on_device, operands)) else 0


def _histc(given: dict[str, Any]) -> int:
    """Without a range, the smallest and the largest value are fetched."""
    open_range = given.get("min", 0) == given.get("max", 0)
    return 2 if open_range and given["self"].numel() else 0


def _repeat_interleave(given: dict[str, Any]) -> int:
    return 0 if given.get("output_size") is not None or not given["repeats"].numel() else 2


def _isin(given: dict[str, Any]) -> int:
    """Few candidates are compared one by one; many are sorted, which counts the different ones of both."""
    elements, candidates = given["elements"], given["test_elements"]
    if candidates.numel() < 10.0 * elements.numel() ** 0.145:
        return 0
    return 1 if given.get("assume_unique") else 3


def _segment_reduce(given: dict[str, Any]) -> int:
    """Lengths are checked on the host; offsets are trusted."""
    return 2 if given.get("lengths") is not None and not given.get("unsafe") else 0


def _pinv(given: dict[str, Any]) -> int:
    if not given["self"].numel():
        return 0
    return 1 if given.get("hermitian") else 2


def _eig(given: dict[str, Any]) -> int:
    """Solved on the host, so in and out again; a real matrix is copied once more, as a complex one."""
    return 2 if given["self"].is_complex() else 3


def _matrix_exp(given: dict[str, Any]) -> int:
    """One matrix is sorted by its norm into one of six cases, a batch by counting each case."""
    return 6 if given["self"].dim() == 2 else 3


def _ctc_loss(given: dict[str, Any]) -> int:
    """Lengths in tensors are read on the host; they and the offsets go to the device; targets there are looked at."""
    lengths = given["input_lengths"]
    waits = 3 + _on_device(given["targets"]) + isinstance(lengths, torch.Tensor)
    return waits + 3 * _on_device(lengths)


# Operator, or overload where only one of them waits -> what the ledger calls the wait, how often.
WAITS: Final[dict[str, tuple[str, Any]]] = {
    "_ctc_loss": ("ctc_loss", _ctc_loss),
    "_ctc_loss_backward": ("ctc_loss", 3),
    "_ctc_loss_backward.Tensor": ("ctc_loss", 5),
    "_index_put_impl_": ("boolean index", _index_put),
    "_linalg_eigh": ("linalg", _unless_empty("A", 1)),
    "_linalg_eigvals": ("linalg", 2),
    "_linalg_svd": ("linalg", _unless_empty("A", 2)),
    "_local_scalar_dense": ("item", 1),
    "_unique": ("unique", _unless_empty("self", 1)),
    "_unique2": ("unique", _unless_empty("self", 1)),
    "allclose": ("allclose", 1),
    "equal": ("equal", _equal),
    "histc": ("histc", _histc),
    "index.Tensor": ("boolean index", _index),
    "index_fill.int_Tensor": ("fill value", _device_values("value")),
    "index_fill_.int_Tensor": ("fill value", _device_values("value")),
    "index_put": ("boolean index", _index_put),
    "index_put_": ("boolean index", _index_put),
    "isin.Tensor_Tensor": ("isin", _isin),
    "linalg_eig": ("linalg", _eig),
    "linalg_lstsq": ("linalg", 1),
    "linalg_matrix_exp": ("linalg", _matrix_exp),
    "linalg_pinv.atol_rtol_tensor": ("linalg", _pinv),
    "linspace.Scalar_Tensor": ("item", _device_values("end")),
    "linspace.Tensor_Scalar": ("item", _device_values("start")),
    "linspace.Tensor_Tensor": ("item", _device_values("start", "end")),
    "logspace.Scalar_Tensor": ("item", _device_values("end")),
    "logspace.Tensor_Scalar": ("item", _device_values("start")),
    "logspace.Tensor_Tensor": ("item", _device_values("start", "end")),
    "masked_fill.Tensor": ("fill value", _device_values("value")),
    "masked_fill_.Tensor": ("fill value", _device_values("value")),
    "masked_scatter_backward": ("boolean index", 1),
    "masked_select": ("masked_select", 1),
    "nonzero": ("nonzero", 1),
    "normal.Tensor_Tensor": ("normal", _unless_empty("std", 2)),
    "normal.float_Tensor": ("normal", _unless_empty("std", 2)),
    "repeat_interleave.Tensor": ("repeat_interleave", _repeat_interleave),
    "segment_reduce": ("segment_reduce", _segment_reduce),
    "unique_consecutive": ("unique", _unique_consecutive),
    "where.self": ("copy", _where),
}


def of(func: Any) -> Any:
    """A function(args, kwargs, out) that writes down the waits this operator causes, or None."""
    name = func._schema.name.partition("::")[2]
    overload = func._schema.overload_name
    found = WAITS.get(f"{name}.{overload}" if overload else name) or WAITS.get(name)
    if found is None or func.namespace != "aten":
        return None
    kind, count = found
    if not callable(count):
        return lambda args, kwargs, out: note(kind, count)
    names = [argument.name for argument in func._schema.arguments]

    def tick(args: Any, kwargs: Any, out: Any) -> None:
        times = count({**dict(zip(names, args, strict=False)), **kwargs})
        if times:
            note(kind, times)

    return tick
