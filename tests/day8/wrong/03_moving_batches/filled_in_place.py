# fails: move_batch::leaves_the_input_alone as input-modified
import torch


def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        for key, value in batch.items():
            batch[key] = move_batch(value, device, non_blocking)
    elif isinstance(batch, list):
        for i, value in enumerate(batch):
            batch[i] = move_batch(value, device, non_blocking)
    elif isinstance(batch, tuple):
        items = [move_batch(item, device, non_blocking) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch
