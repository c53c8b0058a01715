import torch
from torch import nn


def move_batch(batch, device, non_blocking=False):
    """Not waiting only where that has an effect; a shortcut for empty containers."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking and (batch.device.type != "cpu" or batch.is_pinned()))
    if not isinstance(batch, (dict, list, tuple)) or not batch:
        return batch
    if isinstance(batch, dict):
        return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
    items = (move_batch(v, device, non_blocking) for v in batch)
    return type(batch)(*items) if isinstance(batch, tuple) and hasattr(batch, "_fields") else type(batch)(items)


def on_same_device(*things):
    seen = None
    queue = [*things]
    for thing in queue:
        if isinstance(thing, nn.Module):
            queue += [*thing.parameters(), *thing.buffers()]
        elif isinstance(thing, dict):
            queue += thing.values()
        elif isinstance(thing, (tuple, list)):
            queue += thing
        elif isinstance(thing, torch.Tensor):
            if seen is not None and thing.device != seen:
                return False
            seen = thing.device
    return True
