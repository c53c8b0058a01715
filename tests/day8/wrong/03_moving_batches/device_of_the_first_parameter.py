# fails: on_same_device::searches_modules as first-tensor-only
import torch
from torch import nn


def on_same_device(*things):
    def device_of(x):
        if isinstance(x, torch.Tensor):
            return {x.device}
        if isinstance(x, nn.Module):
            return {next(x.parameters()).device}
        if isinstance(x, dict):
            return device_of(list(x.values()))
        if isinstance(x, (list, tuple)):
            return set().union(*(device_of(i) for i in x))
        return set()

    return len(device_of(things)) <= 1
