# fails: move_batch::leaves_other_things_alone as -
import copy

import torch


def move_batch(batch, device, non_blocking=False):
    return _moved(copy.deepcopy(batch), device, non_blocking)


def _moved(batch, device, non_blocking):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: _moved(value, device, non_blocking) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(value, device, non_blocking) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_moved(value, device, non_blocking) for value in batch)
    return batch
