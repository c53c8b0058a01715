# fails: on_same_device::compares_tensors as -
import torch
from torch import nn


def _tensors(thing):
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, nn.Module):
        yield from thing.parameters()
        yield from thing.buffers()
    elif isinstance(thing, dict):
        yield from _tensors(list(thing.values()))
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from _tensors(part)


def on_same_device(*things):
    devices = [t.device for t in _tensors(things)]
    same = True
    for d in devices[1:]:
        if d is not devices[0]:
            same = False
    return same
