from functools import singledispatch

import torch


def _best():
    return next(
        torch.device(n)
        for n, there in (
            ("cuda", torch.cuda.is_available),
            ("mps", torch.backends.mps.is_available),
            ("cpu", lambda: True),
        )
        if there()
    )


@singledispatch
def _pick(prefer):
    raise TypeError(type(prefer))


@_pick.register
def _(prefer: None):
    return _best()


@_pick.register
def _(prefer: str):
    return _pick(torch.device(prefer))


@_pick.register
def _(prefer: torch.device):
    count = {"cuda": torch.cuda.device_count, "mps": lambda: int(torch.backends.mps.is_available()), "cpu": lambda: 1}
    return prefer if (prefer.index or 0) < count.get(prefer.type, lambda: 0)() else _best()


def select_device(prefer=None):
    return _pick(prefer)
