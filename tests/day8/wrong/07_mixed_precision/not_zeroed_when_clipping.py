# fails: mixed_precision_step::unscales_before_clipping as zero-grad-skipped
import torch
from torch import nn


def mixed_precision_step(model, batch, loss_fn, optimizer, scaler, device, max_norm=None):
    x, y = [t.to(device) for t in batch]
    if max_norm is None:
        optimizer.zero_grad()
    with torch.autocast(torch.device(device).type):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    if max_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()
