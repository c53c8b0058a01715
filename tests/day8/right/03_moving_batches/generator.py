import torch
from collections.abc import Mapping, Sequence
def move_batch(batch, device, non_blocking=False):
    def go(x):
        match x:
            case torch.Tensor():
                return x.to(device=device, non_blocking=non_blocking)
            case dict():
                return type(x)((k, go(v)) for k, v in x.items())
            case tuple() if hasattr(x, "_make"):
                return x._make(map(go, x))
            case tuple():
                return tuple(map(go, x))
            case list():
                return list(map(go, x))
            case _:
                return x
    return go(batch)
def tensors(thing):
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, torch.nn.Module):
        yield from thing.parameters()
        yield from thing.buffers()
    elif isinstance(thing, Mapping):
        for v in thing.values():
            yield from tensors(v)
    elif isinstance(thing, Sequence) and not isinstance(thing, (str, bytes)):
        for v in thing:
            yield from tensors(v)
def on_same_device(*things):
    return len({t.device for t in tensors(things)}) < 2
