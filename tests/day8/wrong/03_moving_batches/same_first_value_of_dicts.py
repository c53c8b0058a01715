# fails: on_same_device::searches_structures as -
import torch
from torch import nn


def devices_of(thing):
    if isinstance(thing, torch.Tensor):
        return {thing.device}
    found = set()
    if isinstance(thing, nn.Module):
        for tensor in [*thing.parameters(), *thing.buffers()]:
            found.add(tensor.device)
    elif isinstance(thing, dict):
        for value in thing.values():
            found |= devices_of(value)
            break
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            found |= devices_of(value)
    return found


def on_same_device(*things):
    return len(devices_of(things)) <= 1
