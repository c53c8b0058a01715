import torch
from torch import nn


def move_batch(batch, device, non_blocking=False):
    def frame(x):
        return [x, iter(x.values() if isinstance(x, dict) else x), []]

    root = [[None], iter([batch]), []]
    stack = [root]
    while True:
        x, it, done = stack[-1]
        try:
            item = next(it)
        except StopIteration:
            if len(stack) == 1:
                return done[0]
            stack.pop()
            if isinstance(x, dict):
                made = dict(zip(x.keys(), done))
            elif isinstance(x, list):
                made = done
            elif hasattr(x, "_fields"):
                made = type(x)(*done)
            else:
                made = tuple(done)
            stack[-1][2].append(made)
            continue
        if isinstance(item, torch.Tensor):
            done.append(item.to(device, non_blocking=non_blocking))
        elif isinstance(item, (dict, list, tuple)):
            stack.append(frame(item))
        else:
            done.append(item)


def on_same_device(*things):
    import itertools

    todo, devices = list(things), []
    while todo:
        x = todo.pop()
        if isinstance(x, torch.Tensor):
            devices.append(x.device)
        elif isinstance(x, nn.Module):
            todo += itertools.chain(x.parameters(), x.buffers())
        elif isinstance(x, dict):
            todo += x.values()
        elif isinstance(x, (list, tuple)):
            todo += x
    return all(a == b for a, b in itertools.pairwise(devices))
