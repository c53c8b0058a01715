# fails: on_same_device::compares_tensors as -
import torch
from torch import nn


def on_same_device(*things):
    def walk(x):
        if isinstance(x, torch.Tensor):
            yield x.device
        elif isinstance(x, nn.Module):
            for t in x.parameters():
                yield t.device
            for t in x.buffers():
                yield t.device
        elif isinstance(x, dict):
            for v in x.values():
                yield from walk(v)
        elif isinstance(x, (list, tuple)):
            for v in x:
                yield from walk(v)

    first = None
    for dev in walk(things):
        if first is None:
            first = dev
        elif dev is not first:
            return False
    return True
