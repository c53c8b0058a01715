# fails: move_batch::moves_a_pair as return-forgotten
import torch


def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [move_batch(item, device, non_blocking) for item in batch]
        type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return None
