# fails: move_batch::leaves_other_things_alone as -
from typing import NamedTuple
import torch
from torch import nn


def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move_batch(value, device, non_blocking) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        items = [move_batch(item, device, non_blocking) for item in batch]
        if hasattr(batch, "_fields"):
            return type(batch)(*items)
        return type(batch)(items)
