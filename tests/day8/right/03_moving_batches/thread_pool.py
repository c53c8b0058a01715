from concurrent.futures import ThreadPoolExecutor

import torch


def move_batch(batch, device, non_blocking=False):
    flat = []

    def collect(x):
        if isinstance(x, torch.Tensor):
            flat.append(x)
        elif isinstance(x, dict):
            [collect(v) for v in x.values()]
        elif isinstance(x, (list, tuple)):
            [collect(v) for v in x]

    collect(batch)
    with ThreadPoolExecutor(2) as pool:
        moved = iter(list(pool.map(lambda t: t.to(device, non_blocking=non_blocking), flat)))

    def rebuild(x):
        if isinstance(x, torch.Tensor):
            return next(moved)
        if isinstance(x, dict):
            return {k: rebuild(v) for k, v in x.items()}
        if isinstance(x, tuple) and hasattr(x, "_make"):
            return x._make(map(rebuild, x))
        if isinstance(x, (list, tuple)):
            return type(x)(map(rebuild, x))
        return x

    return rebuild(batch)
