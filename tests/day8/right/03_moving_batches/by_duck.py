import copy

import torch


def move_batch(batch, device, non_blocking=False):
    """What can be moved is moved; a container is copied shallowly and then filled."""
    if hasattr(batch, "to"):
        return batch.to(device=device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        batch = copy.copy(batch)
        for key, value in batch.items():
            batch[key] = move_batch(value, device, non_blocking)
        return batch
    if isinstance(batch, list):
        batch = batch[:]
        for i, value in enumerate(batch):
            batch[i] = move_batch(value, device, non_blocking)
        return batch
    if isinstance(batch, tuple):
        items = move_batch(list(batch), device, non_blocking)
        return type(batch)._make(items) if hasattr(type(batch), "_make") else tuple(items)
    return batch


def where(thing):
    if isinstance(thing, torch.Tensor):
        return {(thing.device.type, thing.get_device())}
    if isinstance(thing, torch.nn.Module):
        return where([*thing.parameters(), *thing.buffers()])
    if isinstance(thing, dict):
        return where(list(thing.values()))
    if isinstance(thing, (list, tuple)):
        return set().union(*map(where, thing))
    return set()


def on_same_device(*things):
    return len(where(things)) <= 1
