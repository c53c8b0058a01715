from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch


def move_batch(batch: Any, device: torch.device | str, non_blocking: bool = False) -> Any:
    """Structural matching, a shortcut for what is there, named tuples by `_make`."""
    match batch:
        case torch.Tensor():
            there = batch.device == torch.empty(0, device=device).device
            return batch if there else batch.to(device, non_blocking=non_blocking)
        case str() | bytes():
            return batch
        case Mapping():
            return type(batch)((k, move_batch(v, device, non_blocking)) for k, v in batch.items())
        case Sequence():
            make = getattr(batch, "_make", type(batch))
            return make(move_batch(v, device, non_blocking=non_blocking) for v in batch)
    return batch


def _devices(thing: Any) -> Iterator[torch.device]:
    match thing:
        case torch.Tensor():
            yield thing.device
        case torch.nn.Module():
            yield from (p.device for p in thing.parameters())
            yield from (b.device for b in thing.buffers())
        case str() | bytes():
            return
        case Mapping():
            for value in thing.values():
                yield from _devices(value)
        case Sequence():
            for value in thing:
                yield from _devices(value)


def on_same_device(*things: Any) -> bool:
    first, *rest = [*_devices(things)] or [None]
    return all(device == first for device in rest)
