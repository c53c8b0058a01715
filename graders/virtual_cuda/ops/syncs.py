"""Waits of the host for the device, and copies between them: how they come into the ledger."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import torch

from virtual_cuda.device.messages import device_assert
from virtual_cuda.device.state import now
from virtual_cuda.device.tensor import VIRTUAL
from virtual_cuda.ledger.records import SYNC, TRANSFER
from virtual_cuda.ops.registry import facts_of
from virtual_cuda.recorder import site

HOST: Final = "cpu"
_WARNING: Final = "called a synchronizing CUDA operation"


def note(kind: str, times: int = 1, explicit: bool = False, warned: bool | None = None, where: Any = None) -> None:
    """Record that the host waited, and warn or raise as `torch.cuda.set_sync_debug_mode` asks.

    That mode accepts `torch.cuda.synchronize()`, which says what it does, but not a stream's.
    Raises the assert of a kernel that has failed since the last wait; the device is lost from then on.
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
    if gpu.asserted:
        gpu.lost = True
        for place in gpu.places:
            place.shut = True
        raise device_assert()


def record_copy(
    direction: str, tensor: torch.Tensor, pinned: bool, non_blocking: bool, source: str, target: str, wait: str = "copy"
) -> None:
    """Record one copy. The host waits for every copy that it did not ask to be asynchronous."""
    gpu = now.gpu
    nbytes = tensor.nbytes
    if gpu is None or nbytes == 0:
        return  # nothing is copied, so nobody waits
    code, offset = site(2)
    gpu.ledger.rows.append(
        (TRANSFER, perf_counter(), code, offset, direction, nbytes, pinned, bool(non_blocking), source, target)
    )
    if not non_blocking and direction != "between_devices":
        note(wait, where=(code, offset))


def waits_of(func: Any) -> Callable[[Any, Any], None] | None:
    """A function(args, kwargs) that records the waits which a call of this operator has caused, or None."""
    waits = facts_of(func).waits
    if waits is None:
        return None
    kind, count = waits
    if not callable(count):
        return lambda args, kwargs: note(kind, count)
    names = [argument.name for argument in func._schema.arguments]

    def record(args: Any, kwargs: Any) -> None:
        times = count({**dict(zip(names, args, strict=False)), **kwargs})
        if times:
            note(kind, times)

    return record


# ---- counts that several families use; each takes the arguments by name --------------------------------------------


def on_device(value: Any) -> bool:
    """Whether this is a tensor of a virtual device."""
    return type(value) in VIRTUAL


def on_host(value: Any) -> bool:
    """Whether this is a tensor, and not one of a virtual device."""
    return isinstance(value, torch.Tensor) and type(value) not in VIRTUAL


def unless_empty(argument: str, count: int) -> Callable[[dict[str, Any]], int]:
    """`count`, or 0 where this argument has no elements: the work is skipped then, and so is the wait."""
    return lambda given: count if given[argument].numel() else 0


def device_values(*names: str) -> Callable[[dict[str, Any]], int]:
    """One for each of these arguments that is a tensor on the device: its value is read."""
    return lambda given: sum(on_device(given.get(name)) for name in names)
