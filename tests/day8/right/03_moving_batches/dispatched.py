from functools import singledispatch

import torch


def move_batch(batch, device, non_blocking=False):
    @singledispatch
    def move(thing):
        return thing

    @move.register
    def _(thing: torch.Tensor):
        if thing.device == torch.device(device):
            return thing
        return thing.cuda(device, non_blocking=non_blocking) if "cuda" in str(device) else thing.to(device)

    @move.register
    def _(thing: dict):
        return dict(zip(thing, map(move, thing.values()), strict=True))

    @move.register
    def _(thing: list):
        return list(map(move, thing))

    @move.register
    def _(thing: tuple):
        if hasattr(thing, "_replace"):
            return thing._replace(**{name: move(value) for name, value in thing._asdict().items()})
        return (*map(move, thing),)

    return move(batch)


def on_same_device(*things):
    """Depth first with a stack; devices by their text."""
    stack, found = list(things), set()
    while stack:
        thing = stack.pop()
        if isinstance(thing, torch.nn.Module):
            stack.extend(thing.parameters())
            stack.extend(thing.buffers())
        elif isinstance(thing, torch.Tensor):
            found.add(str(thing.device))
        elif isinstance(thing, dict):
            stack.extend(thing.values())
        elif isinstance(thing, (list, tuple)):
            stack.extend(thing)
    return not found or len(found) == 1
