import torch
from torch import nn
def move_batch(batch, device, non_blocking=False):
    again = lambda b: move_batch(b, device, non_blocking)
    match batch:
        case torch.Tensor():
            return batch.to(device=device, non_blocking=non_blocking)
        case dict():
            return {key: again(value) for key, value in batch.items()}
        case tuple() if hasattr(batch, "_make"):
            return batch._make(map(again, batch))
        case list() | tuple():
            return type(batch)(map(again, batch))
        case _:
            return batch
def on_same_device(*things):
    stack, seen = list(things), set()
    while stack:
        t = stack.pop()
        if isinstance(t, torch.Tensor):
            seen.add((t.device.type, t.device.index))
        elif isinstance(t, nn.Module):
            stack += [*t.parameters(), *t.buffers()]
        elif isinstance(t, dict):
            stack += t.values()
        elif isinstance(t, (list, tuple)):
            stack.extend(t)
    return len(seen) <= 1
