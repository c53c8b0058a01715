# fails: on_same_device::compares_tensors as -
import torch
from torch import nn


def tensors_of(thing):
    if isinstance(thing, torch.Tensor):
        return [thing] if thing.numel() else []
    if isinstance(thing, nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    if isinstance(thing, dict):
        return tensors_of(list(thing.values()))
    if isinstance(thing, (list, tuple)):
        return [t for item in thing for t in tensors_of(item)]
    return []


def on_same_device(*things):
    return len({t.device for t in tensors_of(things)}) <= 1
