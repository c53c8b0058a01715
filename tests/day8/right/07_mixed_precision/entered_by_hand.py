import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = [t.to(device) for t in batch]
    optimizer.zero_grad()
    ctx = torch.autocast(torch.device(device).type)
    ctx.__enter__()
    try:
        loss = loss_fn(model(x), y)
    finally:
        ctx.__exit__(None, None, None)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()
