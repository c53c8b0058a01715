# fails: on_same_device::searches_structures as -
import torch
from torch import nn


def on_same_device(*things):
    devices = []

    def visit(thing):
        if isinstance(thing, torch.Tensor):
            devices.append(thing.device)
        elif isinstance(thing, nn.Module):
            visit(list(thing.parameters()))
            visit(list(thing.buffers()))
        elif isinstance(thing, dict):
            for key in thing:
                visit(key)
        elif isinstance(thing, (list, tuple)):
            for item in thing:
                visit(item)

    visit(things)
    return len(set(devices)) < 2
