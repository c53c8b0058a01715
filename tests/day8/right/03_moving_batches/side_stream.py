import torch
from torch import nn


def move_batch(batch, device, non_blocking=False):
    device = torch.device(device)
    if device.type == "cuda":
        side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            moved = _walk(batch, device, non_blocking)
        current.wait_stream(side)
        return moved
    return _walk(batch, device, non_blocking)


def _walk(x, device, nb):
    match x:
        case torch.Tensor():
            return x.to(device, non_blocking=nb)
        case dict():
            return {k: _walk(v, device, nb) for k, v in x.items()}
        case tuple() if hasattr(x, "_fields"):
            return x._replace(**{f: _walk(getattr(x, f), device, nb) for f in x._fields})
        case tuple():
            return tuple(_walk(v, device, nb) for v in x)
        case list():
            return [_walk(v, device, nb) for v in x]
    return x


def on_same_device(*things):
    seen = set()

    def look(x):
        if isinstance(x, torch.Tensor):
            seen.add((x.device.type, x.get_device()))
        elif isinstance(x, nn.Module):
            look(list(x.parameters()))
            look(list(x.buffers()))
        elif isinstance(x, dict):
            look(list(x.values()))
        elif isinstance(x, (list, tuple)):
            for v in x:
                look(v)

    look(things)
    return len(seen) < 2
