from functools import singledispatch
import torch


def move_batch(batch, device, non_blocking=False):
    @singledispatch
    def go(x):
        return x

    @go.register
    def _(x: torch.Tensor):
        return x.to(device, non_blocking=non_blocking)

    @go.register
    def _(x: list):
        return [go(y) for y in x]

    @go.register
    def _(x: tuple):
        made = map(go, x)
        return x._make(made) if hasattr(x, "_make") else tuple(made)

    @go.register
    def _(x: dict):
        return {k: go(v) for k, v in x.items()}

    return go(batch)
