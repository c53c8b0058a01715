from collections import deque
import torch
from torch import nn


def on_same_device(*things):
    waiting, seen = deque(things), None
    while waiting:
        thing = waiting.popleft()
        if isinstance(thing, nn.Module):
            waiting.extend(thing.parameters())
            waiting.extend(thing.buffers())
        elif isinstance(thing, dict):
            waiting.extend(thing.values())
        elif isinstance(thing, (list, tuple)):
            waiting.extend(thing)
        elif isinstance(thing, torch.Tensor):
            if seen is None:
                seen = thing.device
            if thing.device != seen:
                return False
    return True
