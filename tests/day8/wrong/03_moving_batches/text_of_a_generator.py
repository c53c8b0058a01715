# fails: move_batch::leaves_other_things_alone as -
import torch


def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*[move_batch(item, device, non_blocking) for item in batch])
    if hasattr(batch, "__iter__"):
        return type(batch)(move_batch(item, device, non_blocking) for item in batch)
    return batch
