# fails: move_batch::runs as unknown-name
import torch


def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [move_batch(item, device, non_blocking) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else typ(batch)(items)  # noqa: F821
    return batch
