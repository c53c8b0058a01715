# fails: on_same_device::searches_structures as judged-apart
import torch
from torch import nn


def on_same_device(*things):
    devices = set()
    for thing in things:
        if isinstance(thing, torch.Tensor):
            devices.add(thing.device)
        elif isinstance(thing, nn.Module):
            for p in thing.parameters():
                devices.add(p.device)
        elif isinstance(thing, (list, tuple)):
            if not on_same_device(*thing):
                return False
        elif isinstance(thing, dict):
            if not on_same_device(*thing.values()):
                return False
    return len(devices) <= 1
