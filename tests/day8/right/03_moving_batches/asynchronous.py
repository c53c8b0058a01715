import asyncio

import torch


async def _move(x, device, nb):
    if torch.is_tensor(x):
        return x.to(device, non_blocking=nb)
    if isinstance(x, dict):
        return dict(zip(x, await asyncio.gather(*(_move(v, device, nb) for v in x.values()))))
    if isinstance(x, (list, tuple)):
        parts = await asyncio.gather(*(_move(v, device, nb) for v in x))
        if isinstance(x, list):
            return list(parts)
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return x


def move_batch(batch, device, non_blocking=False):
    return asyncio.run(_move(batch, device, non_blocking))
