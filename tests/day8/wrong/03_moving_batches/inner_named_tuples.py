# fails: move_batch::keeps_the_structure as structure-changed
import torch


def move_batch(batch, device, non_blocking=False):
    def inner(x):
        if isinstance(x, torch.Tensor):
            return x.to(device, non_blocking=non_blocking)
        if isinstance(x, dict):
            return {k: inner(v) for k, v in x.items()}
        if isinstance(x, list):
            return [inner(v) for v in x]
        if isinstance(x, tuple):
            return tuple(inner(v) for v in x)
        return x

    if hasattr(batch, "_fields"):
        return type(batch)(*map(inner, batch))
    return inner(batch)
