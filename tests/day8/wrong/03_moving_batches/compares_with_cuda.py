# fails: on_same_device::compares_tensors as -
import torch
from torch import nn


def on_same_device(*things):
    found = set()
    def look(t):
        if isinstance(t, torch.Tensor):
            found.add(str(t.device) == "cuda")
        elif isinstance(t, nn.Module):
            for p in list(t.parameters()) + list(t.buffers()):
                found.add(str(p.device) == "cuda")
        elif isinstance(t, dict):
            for v in t.values(): look(v)
        elif isinstance(t, (list, tuple)):
            for v in t: look(v)
    for t in things:
        look(t)
    return len(found) < 2
