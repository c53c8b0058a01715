import torch
def move_batch(batch, device, non_blocking=False):
    device = torch.device(device)
    if isinstance(batch, torch.Tensor):
        if device.type == "cuda":
            return batch.cuda(device, non_blocking=non_blocking)
        if device.type == "cpu" and not non_blocking:
            return batch.cpu()
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        out = type(batch)()
        for k in batch:
            out[k] = move_batch(batch[k], device, non_blocking)
        return out
    if isinstance(batch, (list, tuple)):
        out = []
        for x in batch:
            out.append(move_batch(x, device, non_blocking))
        if isinstance(batch, list): return out
        if hasattr(batch, "_fields"): return type(batch)(**dict(zip(batch._fields, out)))
        return tuple(out)
    return batch
def on_same_device(*things):
    """recursive compare with a sentinel"""
    def device_of(x):
        if isinstance(x, torch.Tensor):
            return [x.device]
        if isinstance(x, torch.nn.Module):
            return [d for t in (list(x.parameters()) + list(x.buffers())) for d in device_of(t)]
        if isinstance(x, dict):
            x = x.values()
        elif not isinstance(x, (list, tuple)):
            return []
        return sum((device_of(v) for v in x), [])
    ds = device_of(things)
    if not ds:
        return True
    return all(d == ds[0] for d in ds)
