import torch
from torch import nn


def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        return (
            batch
            if batch.device == torch.empty(0, device=device).device
            else batch.to(device, non_blocking=non_blocking)
        )
    if isinstance(batch, dict):
        new = {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
        return batch if all(new[k] is batch[k] for k in batch) else new
    if isinstance(batch, (list, tuple)):
        new = [move_batch(v, device, non_blocking) for v in batch]
        if all(a is b for a, b in zip(new, batch)):
            return batch
        return batch._make(new) if hasattr(batch, "_make") else type(batch)(new)
    return batch


class Mismatch(Exception):
    pass


def on_same_device(*things):
    first = None

    def visit(x):
        nonlocal first
        if isinstance(x, nn.Module):
            for t in (*x.parameters(), *x.buffers()):
                visit(t)
        elif isinstance(x, torch.Tensor):
            first = first or x.device
            if x.device != first:
                raise Mismatch
        elif isinstance(x, dict):
            for t in x.values():
                visit(t)
        elif isinstance(x, (list, tuple)):
            for t in x:
                visit(t)

    try:
        visit(things)
    except Mismatch:
        return False
    return True
