# fails: move_batch::moves_every_tensor as -
import torch


def move_batch(batch, device, non_blocking=False):
    def move(thing):
        return thing.to(device, non_blocking=non_blocking) if isinstance(thing, torch.Tensor) else thing

    if isinstance(batch, dict):
        return {key: move(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [move(item) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return move(batch)
