import torch
from torch import nn


def move_batch(batch, device, non_blocking=False):
    if torch.is_tensor(batch):
        return batch.to(device, non_blocking=non_blocking)
    elif isinstance(batch, dict):
        moved = {}
        for key in batch:
            moved[key] = move_batch(batch[key], device, non_blocking)
        return moved
    elif isinstance(batch, list):
        return [move_batch(item, device, non_blocking) for item in batch]
    elif isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(item, device, non_blocking) for item in batch))
    elif isinstance(batch, tuple):
        return tuple(move_batch(item, device, non_blocking) for item in batch)
    else:
        return batch


def collect(thing, devices):
    if torch.is_tensor(thing):
        devices.append(thing.device)
    elif isinstance(thing, nn.Module):
        for tensor in list(thing.parameters()) + list(thing.buffers()):
            devices.append(tensor.device)
    elif isinstance(thing, dict):
        for value in thing.values():
            collect(value, devices)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            collect(value, devices)


def on_same_device(*things):
    devices = []
    for thing in things:
        collect(thing, devices)
    if not devices:
        return True
    return devices.count(devices[0]) == len(devices)
