import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = [t.to(device) for t in batch]
    with torch.autocast(device_type=torch.device(device).type):
        loss = loss_fn(model(x), y)
    value = loss.item()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return value
