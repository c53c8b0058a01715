import torch
from collections import Counter, deque
from torch import nn, Tensor
def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, Tensor):
        moved = batch.to(device, non_blocking=non_blocking)
        return moved
    if isinstance(batch, dict):
        moved = {}
        for key, value in batch.items():
            moved[key] = move_batch(value, device, non_blocking)
        return moved
    if isinstance(batch, (list, tuple)):
        moved = [move_batch(value, device, non_blocking) for value in batch]
        if isinstance(batch, tuple):
            moved = batch._make(moved) if hasattr(batch, "_make") else tuple(moved)
        return moved
    return batch
def on_same_device(*things):
    c = Counter()
    q = deque(things)
    while q:
        x = q.popleft()
        if isinstance(x, Tensor): c[x.device] += 1
        elif isinstance(x, nn.Module):
            for m in x.modules():
                q.extend(t for t in m._parameters.values() if t is not None)
                q.extend(t for t in m._buffers.values() if t is not None)
        elif isinstance(x, dict): q.extend(x.values())
        elif isinstance(x, (list, tuple)): q.extend(x)
    return len(c) <= 1
