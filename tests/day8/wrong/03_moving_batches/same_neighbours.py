# fails: on_same_device::searches_structures as -
import torch
from torch import nn


def on_same_device(*things):
    def of(x):
        if isinstance(x, torch.Tensor):
            return {x.device}
        if isinstance(x, nn.Module):
            return {t.device for t in (*x.parameters(), *x.buffers())}
        if isinstance(x, dict):
            x = list(x.values())
        if isinstance(x, (list, tuple)):
            return set().union(*map(of, x))
        return set()

    sets = [of(t) for t in things]
    return all(len(s) <= 1 for s in sets) and all(not a or not b or a == b for a, b in zip(sets, sets[1:]))
