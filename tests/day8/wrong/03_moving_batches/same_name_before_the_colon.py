# fails: on_same_device::tells_gpus_apart as device-index-dropped
import torch
from torch import nn


def on_same_device(*things):
    names = set()

    def add(x):
        if isinstance(x, torch.Tensor):
            names.add(str(x.device).split(":")[0])
        elif isinstance(x, nn.Module):
            for t in list(x.parameters()) + list(x.buffers()):
                add(t)
        elif isinstance(x, dict):
            for t in x.values():
                add(t)
        elif isinstance(x, (list, tuple)):
            for t in x:
                add(t)

    for x in things:
        add(x)
    return len(names) <= 1
