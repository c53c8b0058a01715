import torch
def move_batch(batch, device, non_blocking=False):
    device = torch.device(device)
    if torch.is_tensor(batch):
        same = batch.device.type == device.type and (device.index is None or device.index == batch.device.index)
        return batch if same else batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, list):
        return [move_batch(b, device, non_blocking=non_blocking) for b in batch]
    if isinstance(batch, tuple):
        items = [move_batch(b, device, non_blocking=non_blocking) for b in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)
    if isinstance(batch, dict):
        return dict(zip(batch.keys(), (move_batch(b, device, non_blocking=non_blocking) for b in batch.values())))
    return batch
def on_same_device(*things):
    first = None
    stack = list(things)
    while stack:
        t = stack.pop()
        if isinstance(t, torch.nn.Module):
            stack.extend(t.parameters()); stack.extend(t.buffers())
        elif isinstance(t, torch.Tensor):
            if first is None:
                first = t.device
            elif first != t.device:
                return False
        elif isinstance(t, dict):
            stack.extend(t.values())
        elif isinstance(t, (list, tuple)):
            stack.extend(t)
    return True
