import copy, torch
def move_batch(batch, device, non_blocking=False):
    if isinstance(batch, torch.Tensor):
        return batch.to(torch.device(device), non_blocking=non_blocking, copy=False)
    elif isinstance(batch, (dict, list)):
        new = copy.copy(batch)
        keys = new.keys() if isinstance(new, dict) else range(len(new))
        for k in keys:
            new[k] = move_batch(new[k], device, non_blocking)
        return new
    elif isinstance(batch, tuple):
        vals = [move_batch(v, device, non_blocking) for v in batch]
        return batch._make(vals) if hasattr(batch, "_fields") else tuple(vals)
    return batch
def on_same_device(*things):
    found = []
    def rec(x):
        if hasattr(x, "parameters") and hasattr(x, "buffers"):
            for p in x.parameters(): found.append(str(p.device))
            for p in x.buffers(): found.append(str(p.device))
        elif hasattr(x, "device"):
            found.append(str(x.device))
        elif isinstance(x, dict):
            [rec(v) for v in x.values()]
        elif isinstance(x, (tuple, list)):
            [rec(v) for v in x]
    rec(things)
    return len(set(found)) <= 1
