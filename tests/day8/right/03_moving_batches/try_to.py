import torch
def move_batch(batch, device, non_blocking=False):
    try:
        return batch.to(device, non_blocking=non_blocking)
    except AttributeError:
        pass
    if isinstance(batch, (str, bytes)) or batch is None:
        return batch
    if isinstance(batch, dict):
        return {k: move_batch(v, device, non_blocking) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, '_fields'):
        return batch.__class__(*[move_batch(v, device, non_blocking) for v in batch])
    try:
        iter(batch)
    except TypeError:
        return batch
    return type(batch)(move_batch(v, device, non_blocking) for v in batch)
def on_same_device(*things):
    devices = []
    for thing in things:
        if isinstance(thing, torch.nn.Module):
            devices += [t.device for t in thing.parameters()] + [t.device for t in thing.buffers()]
        elif isinstance(thing, torch.Tensor):
            devices += [thing.device]
        elif isinstance(thing, dict):
            for v in thing.values():
                if not on_same_device(v): return False
                devices += _one(v)
        elif isinstance(thing, (list, tuple)):
            if not on_same_device(*thing): return False
            for v in thing: devices += _one(v)
    return len(set(devices)) <= 1
def _one(v):
    if isinstance(v, torch.Tensor): return [v.device]
    if isinstance(v, torch.nn.Module): return [t.device for t in [*v.parameters(), *v.buffers()]]
    if isinstance(v, dict): v = list(v.values())
    if isinstance(v, (list, tuple)): return [d for x in v for d in _one(x)]
    return []
