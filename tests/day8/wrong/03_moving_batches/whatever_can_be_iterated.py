# fails: move_batch::leaves_other_things_alone as string-taken-for-container
import torch


def move_batch(batch, device, non_blocking=False):
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*[move_batch(v, device, non_blocking) for v in batch])
    try:
        return type(batch)([move_batch(v, device, non_blocking) for v in batch])
    except TypeError:
        return batch
