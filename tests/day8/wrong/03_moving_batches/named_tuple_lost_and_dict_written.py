# fails: move_batch::keeps_the_structure as structure-changed
import torch


def move_batch(batch, device, non_blocking=False):
    if torch.is_tensor(batch):
        return batch.to(device, non_blocking=non_blocking)
    elif isinstance(batch, dict):
        for k, v in batch.items():
            batch[k] = move_batch(v, device, non_blocking)
        return batch
    elif isinstance(batch, list):
        return [move_batch(x, device, non_blocking) for x in batch]
    elif isinstance(batch, tuple):
        return tuple(move_batch(x, device, non_blocking) for x in batch)
    return batch
