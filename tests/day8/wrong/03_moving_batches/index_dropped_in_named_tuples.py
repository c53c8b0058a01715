# fails: move_batch::uses_the_device_it_is_given as device-index-dropped
import torch


def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        kind = torch.device(device).type
        return type(batch)(*(move_batch(value, kind, non_blocking) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_batch(value, device, non_blocking) for value in batch)
    return batch
