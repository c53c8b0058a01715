"""How do `DataParallel`'s parts move tensors between virtual devices?"""

from __future__ import annotations

from typing import Any

import torch
import torch.cuda.comm
import torch.nn.parallel.comm as comm

from graders.bench.virtual.conversions import place_named


def _on(device: Any) -> Any:
    place = place_named(device)
    return torch.device("cpu") if place is None else place.cuda


def scatter(
    tensor: Any, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, streams: Any = None, *, out: Any = None
) -> Any:
    pieces = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return tuple(piece.to(_on(device), non_blocking=True) for piece, device in zip(pieces, devices, strict=False))


def broadcast(tensor: Any, devices: Any = None, *, out: Any = None) -> Any:
    return [tensor.to(_on(device)) for device in devices]


def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
    return [[tensor.detach().to(_on(device)) for tensor in tensors] for device in devices]


def reduce_add(inputs: Any, destination: Any = None) -> Any:
    target = inputs[0].device if destination is None else _on(destination)
    total = inputs[0].to(target)
    for tensor in inputs[1:]:
        total = total + tensor.to(target)
    return total


def reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> Any:
    return tuple(reduce_add(same, destination) for same in zip(*inputs, strict=True))


def gather(tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None) -> Any:
    target = _on(0 if destination is None else destination)
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


def patches() -> list[tuple[Any, str, Any]]:
    made = (scatter, broadcast, broadcast_coalesced, reduce_add, reduce_add_coalesced, gather)
    return [(home, function.__name__, function) for home in (comm, torch.cuda.comm) for function in made]
