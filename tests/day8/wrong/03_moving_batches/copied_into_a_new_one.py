# fails: move_batch::does_not_copy_what_is_there as already-there-copied
import torch


def move_batch(batch, device, non_blocking=False):
    if torch.is_tensor(batch):
        fresh = torch.empty_like(batch, device=device)
        fresh.copy_(batch, non_blocking=non_blocking)
        return fresh
    if isinstance(batch, dict):
        return {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [move_batch(item, device, non_blocking) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch
