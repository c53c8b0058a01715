# fails: move_batch::moves_a_pair as -
import torch


def move_batch(batch, device, non_blocking=False):
    if torch.is_tensor(batch):
        return batch.to(device, torch.float32, non_blocking)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(v, device, non_blocking) for v in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_batch(v, device, non_blocking) for v in batch)
    if isinstance(batch, dict):
        return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
    return batch
